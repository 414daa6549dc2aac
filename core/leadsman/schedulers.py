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
