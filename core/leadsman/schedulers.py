"""Which replay an engine gets, and what its requests leave for others to find.

The one place where the core asks which engine it is that a replay follows.
"""

from leadsman.engine import EngineSettings
from leadsman.replay import Replay
from leadsman.rules import rules_of
from leadsman.sglang import SglangReplay
from leadsman.units import Blocks, RequestId, Tokens


def replay_for(settings: EngineSettings) -> Replay:
    """Make the replay of an engine that has just started."""
    return Replay(settings) if settings.sglang is None else SglangReplay(settings)


def findable(run: object, request: RequestId, computed: Tokens) -> Tokens:
    """Count the tokens of a running request that others can find now in a run of the engine."""
    return run.stored(request, computed) if isinstance(run, SglangReplay) else computed


def prompts_go_first(settings: EngineSettings) -> bool:
    """Whether whoever decodes waits while a prompt is computed, as in SGLang."""
    return settings.sglang is not None


def tells_early(settings: EngineSettings) -> bool:
    """Whether events tell of a step's blocks before it ends: SGLang's tell after."""
    return settings.async_scheduling and settings.sglang is None


def steps_together(settings: EngineSettings) -> bool:
    """Whether an engine steps together with the other ranks of its server."""
    return settings.sglang is not None and settings.sglang.steps_together


def lost_to_eagle(settings: EngineSettings) -> tuple[Tokens, Blocks]:
    """Count what drafting from its own states costs: tokens at a prompt's end, and blocks found.

    SGLang names blocks by pairs, so by one token more. A vLLM whose names do not cover the token
    behind a block computes the last block found anew, for its drafter needs that block's states.
    Source: vLLM 0.32 v1/core/single_type_kv_cache_manager.py, find_longest_cache_hit.
    """
    if not settings.is_eagle:
        return 0, 0
    if settings.sglang is not None:
        return 1, 0
    return 0, int(not rules_of(settings.version).hashes_next)
