"""What a worker can bring back from below its GPU: host memory, disks, stores that many share.

A tier is credited only as far as outcomes bear it out. One whose engine also says what leaves it is
believed from the start, since its stream keeps it right; one that only ever says what was stored
is believed once requests were seen to find what it claims. Whatever is claimed of each granted
request, credited or not, is held against what the request found, and the latest count most.

A tier may be one that many share, as a store of Mooncake's or LMCache's: its engine finds what any
other put there. No event says so. So what others' tiers hold beyond a worker's own is claimed for
it too, as one tier more, which is believed like any other that only says what was stored: once
requests were seen to find it. Where such a store has a directory of its own, what that lists is
held in a store's name (`records.STORE`), and is "of others" to every worker.

Bringing tokens back takes time in proportion to them. How much is learned from the same requests:
what the first token came later than it would have, had they been on the GPU. Before the first of
them it is assumed to take half of what computing them takes.

Ignored: a request that takes blocks from more than one tier (the one that reaches furthest counts),
and that loads of several requests share one link.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from leadsman.records import GPU, Cleared, KvEvent, Removed, Stored
from leadsman.units import Blocks, Seconds, Tokens
from leadsman.windows import is_group

OTHERS: Final = "of others"
"""Names what the tiers of other workers hold, as a tier of this one."""

FADE: Final = 0.8
"""Weight of what was known before, at each outcome."""

UNMEASURED: Final = 0.5
"""Share of the time of computing tokens that bringing them is taken to need until it is seen."""


@dataclass(slots=True)
class _Tier:
    """hits, outcomes: faded counts; rate: seconds a token, None until seen."""

    tells_removals: bool = False
    hits: float = 0.0
    outcomes: float = 0.0
    rate: float | None = None

    @property
    def is_credited(self) -> bool:
        """Whether most of what it claimed lately was found."""
        prior = 1.0 if self.tells_removals else 0.0
        return (self.hits + prior) / (self.outcomes + 1.0) >= 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker's tiers claim of one prompt: blocks on the GPU, and with each tier's help."""

    gpu: Blocks
    with_tier: Mapping[str, Blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far the best credited tier reaches beyond the GPU, and how long bringing that takes."""

    blocks: Blocks
    tokens: Tokens
    seconds: Seconds


class LowerTiers:
    """One worker's tiers below its GPU."""

    def __init__(self) -> None:
        self._tiers: dict[str, _Tier] = {}
        self._others = _Tier()

    @property
    def names(self) -> list[str]:
        """Tiers that anything was ever said of."""
        return list(self._tiers)

    @property
    def are_credited(self) -> bool:
        """Whether any of them is."""
        return any(tier.is_credited for tier in self._tiers.values())

    @property
    def finds_others(self) -> bool:
        """Whether it was lately seen to find what others' tiers hold."""
        return self._others.is_credited

    def _of(self, name: str) -> _Tier:
        return self._others if name == OTHERS else self._tiers[name]

    def note(self, events: Iterable[KvEvent]) -> None:
        """Learn which tiers there are, and which of them say what leaves them."""
        for event in events:
            if isinstance(event, Cleared) or event.tier == GPU or is_group(event.tier):
                continue
            tier = self._tiers.setdefault(event.tier, _Tier())
            tier.tells_removals |= isinstance(event, Removed)
            assert isinstance(event, Stored | Removed)

    def reach(self, claim: Claim, size: Tokens, compute: Seconds) -> Reach | None:
        """Choose the credited tier that reaches furthest; compute: seconds a token computed."""
        credited = [name for name in claim.with_tier if self._of(name).is_credited]
        best = max(credited, key=claim.with_tier.__getitem__, default=None)
        if best is None or claim.with_tier[best] <= claim.gpu:
            return None
        tokens = (claim.with_tier[best] - claim.gpu) * size
        rate = self._of(best).rate
        rate = UNMEASURED * compute if rate is None else rate
        return Reach(blocks=claim.with_tier[best], tokens=tokens, seconds=rate * tokens)

    def judge(self, claim: Claim, found: Blocks, late: Seconds | None, size: Tokens) -> None:
        """Hold a claim against the blocks that the request found.

        late: seconds that the first token came later than had all that was found been on the GPU;
        None where that is not known.
        """
        for name, blocks in claim.with_tier.items():
            if blocks <= claim.gpu or claim.gpu > found:
                continue
            tier, more = self._of(name), found - claim.gpu
            is_hit = 2 * more > blocks - claim.gpu
            tier.hits = FADE * tier.hits + is_hit
            tier.outcomes = FADE * tier.outcomes + 1.0
            if is_hit and late is not None:
                seen = max(0.0, late) / (more * size)
                before = seen if tier.rate is None else tier.rate
                tier.rate = FADE * before + (1.0 - FADE) * seen
