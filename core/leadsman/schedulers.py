"""Which replay an engine gets, and what its running requests have for others to find.

The one place where the core asks which engine it is that a replay follows.
"""

from leadsman.engine import EngineSettings
from leadsman.replay import Replay
from leadsman.sglang import SglangReplay
from leadsman.units import RequestId, Tokens


def replay_for(settings: EngineSettings) -> Replay:
    """Make the replay of an engine that has just started."""
    return Replay(settings) if settings.sglang is None else SglangReplay(settings)


def findable(run: object, request: RequestId, computed: Tokens) -> Tokens:
    """Count the tokens of a running request that others can find now in a run of the engine."""
    return run.stored(request, computed) if isinstance(run, SglangReplay) else computed
