"""What differs between versions of an engine's scheduler, as data.

A version that is not listed has the rules of the newest one before it; one newer than all has those
of the newest, which is an assumption that discovery says aloud (`is_known`). Each rule was found by
holding the replay against the real scheduler of two versions.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

Release: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One version's answers, each to a question that versions answer differently.

    serves_on: whether, under the priority policy, those behind a request that preempted itself
        are still served in that step.
    names_drafted: whether a speculating engine names the blocks that a step has filled when the
        step is processed; else it does when the request is scheduled next.
    hashes_next: whether an EAGLE engine's block names cover the token behind the block; else what
        is found cached is cut by its last block.
    renews_states: whether a state at a prompt's last whole block counts as named anew by each step
        that goes on from it, so that who would find it waits for the step's end.
    """

    serves_on: bool
    names_drafted: bool
    hashes_next: bool
    renews_states: bool


VLLM: Final[dict[Release, Rules]] = {
    (0, 0): Rules(serves_on=False, names_drafted=False, hashes_next=False, renews_states=True),
    (0, 33): Rules(serves_on=True, names_drafted=True, hashes_next=True, renews_states=False),
}
"""By the first version that has them. Source: vLLM 0.32 and 0.33, v1/core/sched/scheduler.py,
schedule and update_from_output; config/vllm.py, num_hash_lookahead_tokens; v1/core/
single_type_kv_cache_manager.py, MambaManager._cache_partial_tail_block."""

NEWEST_KNOWN: Final[Release] = (0, 33)


def release_of(version: str) -> Release:
    """Read major and minor; a version that is no number is taken to be the newest known."""
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return NEWEST_KNOWN
    return int(major), int(minor)


def rules_of(version: str) -> Rules:
    """Give the rules of the newest listed version that is not newer than `version`."""
    release = release_of(version)
    return VLLM[max(since for since in VLLM if since <= release)]


def is_known(version: str) -> bool:
    """Say whether a version is no newer than those that the replay was held against."""
    return release_of(version) <= NEWEST_KNOWN
