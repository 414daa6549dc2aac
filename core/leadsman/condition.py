"""How a worker stands, as a picker sees it: what is shown of it, and decided by nobody."""

from dataclasses import dataclass

from leadsman.curve import PrefillCurve
from leadsman.prediction import Price, Provenance
from leadsman.records import LoadSample
from leadsman.steptime import StepWeights
from leadsman.units import Blocks, Seconds, Tokens, WorkerId


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What takes a replay or a look at the whole cache to say of a worker.

    queue: what a prompt of one token would meet there now. held: distinct blocks by tier; room:
    blocks of its GPU; None of any other tier's room is known. samples: (prompt tokens, seconds) of
    the isolated requests that its curve rests on. curve_from: where that comes from; weights: what
    prices now, which busy steps may have taught, in steps of at most so many tokens.
    """

    queue: Price
    in_flight: int
    slots: int
    held: tuple[tuple[str, Blocks], ...]
    room: Blocks
    block_size: Tokens
    samples: tuple[tuple[Tokens, Seconds], ...]
    curve_from: Provenance
    weights: StepWeights
    step_tokens: Tokens
