"""In which order an SGLang scheduler tries those who wait, as far as it is known outside.

`fcfs` keeps the order of arrival, `lof` takes the longest answers first, and `lpm` the longest
prefix in the cache; but of several that have hardly any there and share one among themselves, all
but the first wait behind everybody, to find it. With priorities, `fcfs` and `lof` go by them
first. A prompt that is cached to its very end counts whole but for its last token, though it will
find a page less; only one that a request shares to its end which does not wait itself is known to
be, and one of a single page, of which less is nothing, only where that request has entered. Above
128 requests looking up all of them is too much for it, and `lpm` becomes `fcfs`.
Source: SGLang 0.5.23 srt/managers/schedule_policy.py, SchedulePolicy.calc_priority.
"""

from collections.abc import Container

from leadsman.engine import SglangRules
from leadsman.sequence import Lookup, Seq
from leadsman.units import Blocks, RequestId, Tokens

MOST_LOOKED_UP = 128
HARDLY_ANY: Tokens = 32
"""So many tokens of a prefix, in the cache or in the queue, count as none."""

LAST = 1 << 60


def in_order(
    queue: list[Seq],
    rules: SglangRules,
    lookup: Lookup,
    page: Tokens,
    entered: Container[RequestId] = (),
) -> list[Seq]:
    """Order those who wait, given as they came; ties keep that order.

    entered: who runs or ran.
    """
    sign = 1 if rules.low_priority_first else -1
    match rules.schedule_policy:
        case "lpm" if len(queue) <= MOST_LOOKED_UP:
            return _longest_prefix_first(queue, lookup, page, entered)
        case "lof" if rules.enable_priority_scheduling:
            return sorted(queue, key=lambda seq: (sign * seq.priority, -(seq.limit or LAST)))
        case "lof":
            return sorted(queue, key=lambda seq: -(seq.limit or LAST))
        case "fcfs" if rules.enable_priority_scheduling:
            return sorted(queue, key=lambda seq: sign * seq.priority)
    return queue


def _longest_prefix_first(
    queue: list[Seq], lookup: Lookup, page: Tokens, entered: Container[RequestId]
) -> list[Seq]:
    waiting = {seq.id for seq in queue}
    matched = []
    for seq in queue:
        sharers = [(other, common) for other, common in seq.kin if other not in waiting]
        matched.append(_matched(seq, lookup(seq).tokens, sharers, page, entered))
    leaders, followers = set[RequestId](), set[RequestId]()
    for seq, tokens in zip(queue, matched, strict=True):
        if tokens > HARDLY_ANY:
            continue
        if any(other in leaders and common * page >= HARDLY_ANY for other, common in seq.kin):
            followers.add(seq.id)
        else:
            leaders.add(seq.id)
    places = {
        seq.id: LAST if seq.id in followers else -tokens
        for seq, tokens in zip(queue, matched, strict=True)
    }
    return sorted(queue, key=lambda seq: places[seq.id])


def _matched(
    seq: Seq,
    tokens: Tokens,
    sharers: list[tuple[RequestId, Blocks]],
    page: Tokens,
    entered: Container[RequestId],
) -> Tokens:
    if tokens != seq.target - page:
        return tokens
    is_whole = any(
        common * page >= seq.target and (tokens or other in entered) for other, common in sharers
    )
    return seq.target - 1 if is_whole else tokens
