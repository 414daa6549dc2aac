"""How much faster than life is virtual time, on one core and with 64 workers?

The sixteen workers four times over, and the conversations of the trace at its own pace (12,031
requests in 59 minutes); and at half of the fleet's capacity, where every second holds fifteen times
as many requests. CPU seconds are this process's own, after a start that is not counted.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from leadsman.budget import Budget
from leadsman.units import Seconds

from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import capacity, offers
from leadsman_bench.scenario import WorkerSpec, workers
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.virtual import VirtualFleet

FLEETS = 4
START, COUNTED = 100, 500


def fleet() -> list[WorkerSpec]:
    """Give the 64 workers."""
    return [
        replace(spec, name=f"{number}-{spec.name}")
        for number in range(FLEETS)
        for spec in workers()
    ]


def measure(per_s: float | None = None, *, seed: int = 1) -> float:
    """Give virtual seconds a CPU second, at so many requests a second; the trace's own if None."""
    model = bundled_model()
    pace = per_s or model.statistics.requests_per_s
    specs = fleet()
    rows = islice(generate(model, requests_per_s=pace, seed=seed), START + COUNTED)
    sizes = [spec.settings.block_size for spec in specs]
    made = offers(rows, block_sizes=sizes, rng=Random(f"{seed}/callers"))
    picker = LivePicker(Budget(), Random(f"{seed}/decisions"))
    running = VirtualFleet(specs, picker, Grades(), seed=seed).run(made, iter(()))
    return _ratio([(at, time.process_time()) for at in running])


def half_capacity() -> float:
    """Give half of the requests a second that the fleet can serve."""
    return 0.5 * FLEETS * sum(capacity(workers(), bundled_model(), seed=1))


def _ratio(moments: Sequence[tuple[Seconds, Seconds]]) -> float:
    (began, since), (ended, until) = moments[START], moments[-1]
    return (ended - began) / (until - since)
