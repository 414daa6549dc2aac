"""A live page of a fleet in virtual time: to be looked at, tested and measured without an engine.

The picker, its fleet and what it remembers are the real ones; engines and traffic are simulated,
and stand still after so many requests, with whatever is queued then.
"""

import time
from collections import deque
from itertools import islice
from random import Random

from leadsman.budget import Budget
from leadsman_extproc.page import Recent
from leadsman_fleet.page.server import Site

from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import offers
from leadsman_bench.scenario import workers
from leadsman_bench.seeing.virtual_records import Recorded
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.virtual import VirtualFleet


def shown(requests: int, *, engines: int = 4, rate: float = 4.0, seed: int = 3) -> Site:
    """Make what a page shows once a burst of so many requests at `rate` a second has arrived."""
    specs = workers()[:engines]
    picker = LivePicker(Budget(max_queue_wait=8.0, ttft=15.0), Random(seed))
    began = time.time() - requests / rate
    recent = Recent(epoch=lambda: began)
    recorded = Recorded(picker, Grades(), recent)
    fleet = VirtualFleet(specs, recorded, recorded, seed=seed)
    traffic = islice(generate(bundled_model(), requests_per_s=rate, seed=seed), requests)
    sizes = [spec.settings.block_size for spec in specs]
    offered = offers(traffic, block_sizes=sizes, rng=Random(seed))
    [stopped] = deque(islice(fleet.run(offered, iter(())), requests), maxlen=1)
    return Site(
        fleet=picker.fleet,
        clock=lambda: stopped,
        history=recent.history,
        explain=recent.explain,
        find=recent.find,
    )
