"""How long one worker takes to prefill N tokens that it has not cached, alone: C(N).

Model: `C(N) = overhead + a*N + b*N^2`, all three non-negative. The feed-forward layers cost the
same for every token; in attention each token looks at all before it, so that part grows with the
square. A prompt of which a prefix is cached costs `C(whole) - C(cached)` and one overhead: the new
tokens still attend to the cached ones.

Learned from isolated requests (nothing cached, nothing else running). Errors are relative, since a
fit in seconds is blind to short prompts (34 % off at most instead of 21 % on a real engine).
Outliers are weighed down (see `robust`). Recent samples weigh more, and a new sample pushes out
only the oldest of its own octave of lengths, so that a day of short prompts does not push out what
is known of long ones.

Ignored: the steps at multiples of the token budget (about 10 % at N = budget) and everything that
runs beside the request; `steptime` has terms for those.
Source: nonlinear prefill prices by C(whole) - C(cached) after Sference's account of its scheduler.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from leadsman.engine import EngineSettings
from leadsman.prediction import Provenance
from leadsman.records import Learned
from leadsman.robust import fit_square
from leadsman.units import Seconds, Tokens, WorkerId

CURVE_SAMPLES = 8
"""From eight samples on, 90 % of fits are within 3-13 % up to the longest length seen."""

CURVE_SPREAD = 4.0
"""Longest over shortest sample that a curve needs: below it a and b cannot be told apart."""

RATE_SAMPLES = 3
PER_OCTAVE = 12
HALF_LIFE = 32.0
"""Samples after which a sample counts half."""

_REFIT_EVERY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCurve:
    """C(N) of one worker, in seconds: `overhead` a request, `a` a token, `b` a token squared."""

    overhead: Seconds
    a: float
    b: float

    def __post_init__(self) -> None:
        for name in ("overhead", "a", "b"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"PrefillCurve.{name}: {value} is not a non-negative number")

    def seconds(self, tokens: Tokens) -> Seconds:
        """C(tokens): the isolated prefill of a prompt of which nothing is cached."""
        return self.overhead + tokens * (self.a + self.b * tokens)

    def price(self, whole: Tokens, cached: Tokens) -> Seconds:
        """Seconds to prefill a prompt of `whole` tokens whose first `cached` need no work."""
        new = whole - cached
        return self.overhead + new * (self.a + self.b * (whole + cached))

    def scaled(self, factor: float) -> "PrefillCurve":
        """Keep the shape, `factor` times as slow."""
        return PrefillCurve(overhead=self.overhead * factor, a=self.a * factor, b=self.b * factor)


DEFAULT_CURVE = PrefillCurve(overhead=0.05, a=1e-4, b=1e-10)
"""What is assumed of a worker that nobody has measured: about three times as slow as the published
curve of one DeepSeek deployment (30*N + 37*N^2 s, N in millions of tokens). Chosen, not measured:
it ranks workers, and never refuses a request on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCurve:
    """The best curve that there is for a worker, and where it comes from."""

    curve: PrefillCurve
    provenance: Provenance


def fingerprint(settings: EngineSettings) -> str:
    """Name all that bears on a worker's speed: 16 hex digits; a change discards what was learned.

    The number of KV blocks follows free memory at the start, not speed, so it is left out; only
    where the hardware is unknown does its magnitude stand in, so that one GPU's curve is not lent
    to another's worker.
    """
    facts = asdict(settings)
    blocks = facts.pop("num_blocks")
    if settings.hardware is None:
        facts["blocks_magnitude"] = round(2 * math.log2(max(blocks, 1)))
    text = "\n".join(f"{name}={facts[name]!r}" for name in sorted(facts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CurveLearner:
    """Samples of one worker's isolated prefills, and the curve that they give.

    The first sample after an engine's start is thrown away: warm-up doubles it.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._octaves: dict[int, deque[tuple[int, Tokens, Seconds]]] = {}
        self._seen = 0
        self._cold = True
        self._fitted: PrefillCurve | None = None
        self._fit_at: int | None = None

    def __len__(self) -> int:
        return sum(len(octave) for octave in self._octaves.values())

    def add(self, tokens: Tokens, seconds: Seconds) -> None:
        """Take one isolated request: its prompt, nothing of it cached, and grant to first token.

        Raises ValueError where either is not a positive, finite number.
        """
        if tokens < 1 or not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(
                f"isolated sample: {tokens} tokens in {seconds} s is not a measurement"
            )
        if self._cold:
            self._cold = False
            return
        self._keep(tokens, seconds)

    def restarted(self, fingerprint: str) -> None:
        """Note an engine start: its next sample is cold, other settings discard all."""
        self._cold = True
        if fingerprint != self.fingerprint:
            self.fingerprint = fingerprint
            self._octaves.clear()
            self._fit_at = None

    @property
    def samples(self) -> tuple[tuple[Tokens, Seconds], ...]:
        """What is kept, oldest first."""
        return tuple((tokens, seconds) for _, tokens, seconds in self._ordered())

    @property
    def curve(self) -> PrefillCurve | None:
        """The worker's own curve; None until enough samples of different lengths are there.

        Refits at the first look after a sample, from 32 samples on after every fourth. 0.5 ms.
        """
        waits = 1 if self._seen < 32 else _REFIT_EVERY
        if self._fit_at is None or self._seen - self._fit_at >= waits:
            self._fitted = self._fit()
            self._fit_at = self._seen
        return self._fitted

    def rate(self, shape: PrefillCurve) -> PrefillCurve | None:
        """`shape`, as slow as the worker's own samples: for lengths too alike to bend a curve."""
        samples = self.samples
        if len(samples) < RATE_SAMPLES:
            return None
        ratios = [seconds / shape.seconds(tokens) for tokens, seconds in samples]
        return shape.scaled(float(np.median(ratios)))

    def export(self, worker: WorkerId) -> Learned:
        """Give the samples as a record, so that nobody has to measure them again."""
        return Learned(worker=worker, fingerprint=self.fingerprint, samples=self.samples)

    def adopt(self, learned: Learned) -> bool:
        """Take over samples that were exported; False, and nothing taken, if they are of another
        fingerprint or no more than are here already.
        """
        if learned.fingerprint != self.fingerprint or len(learned.samples) <= len(self):
            return False
        self._octaves.clear()
        self._fit_at = None
        for tokens, seconds in learned.samples:
            self._keep(tokens, seconds)
        return True

    def _keep(self, tokens: Tokens, seconds: Seconds) -> None:
        octave = self._octaves.setdefault(tokens.bit_length(), deque(maxlen=PER_OCTAVE))
        self._seen += 1
        octave.append((self._seen, tokens, seconds))

    def _ordered(self) -> list[tuple[int, Tokens, Seconds]]:
        return sorted(sample for octave in self._octaves.values() for sample in octave)

    def _fit(self) -> PrefillCurve | None:
        ordered = self._ordered()
        lengths = {tokens for _, tokens, _ in ordered}
        if len(ordered) < CURVE_SAMPLES or len(lengths) < 3:
            return None
        if max(lengths) < CURVE_SPREAD * min(lengths):
            return None
        ages = np.array([self._seen - seen for seen, _, _ in ordered], dtype=np.float64)
        tokens = np.array([tokens for _, tokens, _ in ordered], dtype=np.float64)
        seconds = np.array([seconds for _, _, seconds in ordered], dtype=np.float64)
        weights = 0.5 ** (ages / HALF_LIFE)
        start = DEFAULT_CURVE.overhead + tokens * (DEFAULT_CURVE.a + DEFAULT_CURVE.b * tokens)
        overhead, a, b = fit_square(tokens, seconds, weights=weights, start=start)
        return PrefillCurve(overhead=overhead, a=a, b=b)


def best_known(own: CurveLearner, peers: Iterable[CurveLearner]) -> KnownCurve:
    """Choose a worker's curve: its own; its own rate; that of a peer like it; the default.

    May fit every peer anew: for when a sample came, not for every decision.
    """
    if (curve := own.curve) is not None:
        return KnownCurve(curve=curve, provenance="own")
    alike = (peer for peer in peers if peer is not own and peer.fingerprint == own.fingerprint)
    lent = max(
        ((len(peer), curve) for peer in alike if (curve := peer.curve) is not None),
        key=lambda pair: pair[0],
        default=None,
    )
    shape = DEFAULT_CURVE if lent is None else lent[1]
    if (scaled := own.rate(shape)) is not None:
        return KnownCurve(curve=scaled, provenance="own")
    return KnownCurve(curve=shape, provenance="unmeasured" if lent is None else "borrowed")
