"""How a worker stands, as a picker sees it: what is shown of it, and decided by nobody."""

from dataclasses import dataclass

from leadsman.curve import PrefillCurve
from leadsman.prediction import Provenance
from leadsman.records import LoadSample
from leadsman.units import Seconds, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One worker. heard_at: when anything of its cache or its load was last heard; load: the last
    word of the engine itself; None: never. samples: isolated requests that its curve rests on.

    event_lag: how much longer the last batch of KV events was under way than the quickest one;
    missed_batches: how many of them never came, of those before the last.
    """

    worker: WorkerId
    model: str
    ready: bool
    heard_at: Seconds | None
    load: LoadSample | None
    provenance: Provenance
    curve: PrefillCurve
    samples: int
    event_lag: Seconds | None = None
    missed_batches: int = 0
