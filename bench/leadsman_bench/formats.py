"""Trace files in three formats, read as tasks; ours is written too.

Ours is Mooncake's row with what makes a task of rows, all of it optional, so that a Mooncake file
is one of ours: `id`, `session`, `tenant`, `after` (ids of the calls that must be over before),
`think_ms` (from the last of their ends), `hangs_up_ms`, `priority`, `piece_tokens`, `max_tokens`,
`max_queue_wait_s`. Rows of one `session` whose `after` names each other are one task; a row without
is a task of its own.

AdmitPerf's trace (0.0.2's infra: `id`, `arrival_t`, `prompt_tokens`, `prefix_hash`, `timeout_s`, …)
says of a prompt only whose prefix it has: rows with the same `prefix_hash` share half of the
shorter prompt, at a block's precision. Its length of an answer is `max_new_tokens`: the cap, as it
knows no other. `timeout_s` is when the caller hangs up. Events of its first generation (`time`,
`agent_id`, `turn_index`, …) are calls at their own times, a session for each agent; a later turn's
prompt goes on from the former's.

Source: the Mooncake trace's README; AdmitPerf 0.0.2, infra/; AdmitPerf's history, TraceEvent.
"""

import gzip
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from leadsman.units import Seconds, Tokens

from leadsman_bench.scenario import Wishes
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import PIECE_TOKENS, TraceError, TraceRequest

PIECE: Tokens = 16
"""Of prompts that a trace names no pieces of: one block of most engines."""


class OurRow(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A row of ours, and of Mooncake's; times in milliseconds as there."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]
    id: str | None = None
    session: str | None = None
    tenant: str | None = None
    after: list[str] = []
    think_ms: float = 0.0
    hangs_up_ms: float | None = None
    priority: int = 0
    piece_tokens: int = PIECE_TOKENS
    max_tokens: int | None = None
    max_queue_wait_s: float | None = None


class AdmitPerfRow(msgspec.Struct, kw_only=True):
    """A row of AdmitPerf 0.0.2's traces."""

    id: str | int
    arrival_t: float
    prompt_tokens: int
    max_new_tokens: int
    priority: int = 0
    prefix_hash: str | int | None = None
    timeout_s: float | None = None
    tenant: str | None = None


class AdmitPerfEvent(msgspec.Struct, kw_only=True):
    """An event of AdmitPerf's first generation."""

    time: float
    request_id: str
    input_tokens: int
    expected_output_tokens: int
    agent_id: str | None = None
    tenant_id: str | None = None
    turn_index: int = 0
    is_final_turn: bool = False


Reader: TypeAlias = Callable[[Sequence[bytes], str], list[Task]]


def load(path: Path) -> list[Task]:
    """Read a trace of any of the formats, gzipped where its name ends in `.gz`.

    Raises TraceError, which names the line, for what is none of them.
    """
    content = path.read_bytes()
    return parse(gzip.decompress(content) if path.suffix == ".gz" else content, source=str(path))


def parse(content: bytes, *, source: str) -> list[Task]:
    """Read tasks from bytes; the format is that of the first line."""
    lines = content.splitlines()
    if not lines:
        raise TraceError(f"{source}: no rows")
    try:
        first: Mapping[str, Any] = msgspec.json.decode(lines[0], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TraceError(f"{source}, line 1: {error}") from error
    for key, reader in READERS.items():
        if key in first:
            return sorted(reader(lines, source), key=lambda task: task.at)
    raise TraceError(
        f"{source}, line 1: no trace that is known has rows of {', '.join(sorted(first))}; "
        f"Mooncake's and ours have hash_ids, AdmitPerf's arrival_t or expected_output_tokens"
    )


def _decoded(lines: Sequence[bytes], kind: type[Any], source: str) -> list[Any]:
    decoder = msgspec.json.Decoder(kind)
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise TraceError(f"{source}, line {number}: {error}") from error
    return rows


# -- ours and Mooncake's ---------------------------------------------------------------------------


def _ours(lines: Sequence[bytes], source: str) -> list[Task]:
    rows: list[OurRow] = _decoded(lines, OurRow, source)
    task_of: dict[str, list[OurRow]] = {}
    groups: list[list[OurRow]] = []
    for number, row in enumerate(rows, start=1):
        _check(row, f"{source}, line {number}")
        owners = {id(task_of[name]): task_of[name] for name in row.after if name in task_of}
        if len(owners) != bool(row.after) or not all(name in task_of for name in row.after):
            raise TraceError(f"{source}, line {number}: after {row.after}: no rows of one task yet")
        group = next(iter(owners.values()), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(row)
        if row.id is not None:
            task_of[row.id] = group
    return [_task(group, number) for number, group in enumerate(groups)]


def _check(row: OurRow, where: str) -> None:
    if row.input_length < 1 or row.output_length < 1 or row.piece_tokens < 1:
        raise TraceError(f"{where}: lengths must be at least 1")
    pieces = math.ceil(row.input_length / row.piece_tokens)
    if len(row.hash_ids) != pieces:
        raise TraceError(
            f"{where}: {row.input_length} tokens are {pieces} pieces of {row.piece_tokens}, "
            f"but hash_ids has {len(row.hash_ids)}"
        )


def _task(rows: Sequence[OurRow], number: int) -> Task:
    places = {row.id: place for place, row in enumerate(rows)}
    calls = tuple(
        Call(
            row=TraceRequest(
                at=row.timestamp / 1e3,
                input_tokens=row.input_length,
                output_tokens=row.output_length,
                pieces=tuple(row.hash_ids),
                piece_tokens=row.piece_tokens,
            ),
            after=tuple(places[name] for name in row.after),
            thinks=row.think_ms / 1e3,
            hangs_up=None if row.hangs_up_ms is None else row.hangs_up_ms / 1e3,
            wishes=Wishes(max_queue_wait=row.max_queue_wait_s, max_tokens=row.max_tokens),
            priority=row.priority,
        )
        for row in rows
    )
    return Task(
        name=rows[0].id or f"r{number}", calls=calls, session=rows[0].session, tenant=rows[0].tenant
    )


def dump(tasks: Iterable[Task]) -> bytes:
    """Write tasks in our format, one call a line."""
    lines = [
        msgspec.json.encode(_row(task, place)) for task in tasks for place in range(len(task.calls))
    ]
    return b"".join(line + b"\n" for line in lines)


def _row(task: Task, place: int) -> OurRow:
    call = task.calls[place]
    alone = len(task.calls) == 1
    return OurRow(
        timestamp=round(call.row.at * 1e3),
        input_length=call.row.input_tokens,
        output_length=call.row.output_tokens,
        hash_ids=list(call.row.pieces),
        id=task.name if alone else f"{task.name}/{place}",
        session=task.session,
        tenant=task.tenant,
        after=[f"{task.name}/{one}" for one in call.after],
        think_ms=call.thinks * 1e3,
        hangs_up_ms=None if call.hangs_up is None else call.hangs_up * 1e3,
        priority=call.priority,
        piece_tokens=call.row.piece_tokens,
        max_tokens=call.wishes.max_tokens,
        max_queue_wait_s=call.wishes.max_queue_wait,
    )


# -- AdmitPerf's -----------------------------------------------------------------------------------


def _admitperf(lines: Sequence[bytes], source: str) -> list[Task]:
    rows: list[AdmitPerfRow] = _decoded(lines, AdmitPerfRow, source)
    pieces = count()
    shared: dict[str | int, list[int]] = {}
    tasks = []
    for row in rows:
        known = [] if row.prefix_hash is None else shared.setdefault(row.prefix_hash, [])
        own = _grown(known, row.prompt_tokens // 2, pieces)
        request = _request(row.arrival_t, row.prompt_tokens, row.max_new_tokens, own, pieces)
        call = Call(
            row=request,
            hangs_up=row.timeout_s,
            wishes=Wishes(max_tokens=row.max_new_tokens),
            priority=row.priority,
        )
        tasks.append(Task(name=str(row.id), calls=(call,), tenant=row.tenant))
    return tasks


def _events(lines: Sequence[bytes], source: str) -> list[Task]:
    rows: list[AdmitPerfEvent] = _decoded(lines, AdmitPerfEvent, source)
    pieces = count()
    lineage: dict[str, list[int]] = {}
    tasks = []
    for row in sorted(rows, key=lambda one: one.time):
        line = [] if row.agent_id is None else lineage.setdefault(row.agent_id, [])
        own = _grown(line, row.input_tokens, pieces)
        request = _request(row.time, row.input_tokens, row.expected_output_tokens, own, pieces)
        tasks.append(
            Task(
                name=row.request_id,
                calls=(Call(row=request),),
                session=row.agent_id,
                tenant=row.tenant_id,
            )
        )
    return tasks


def _grown(line: list[int], tokens: Tokens, pieces: "count[int]") -> tuple[int, ...]:
    """Give a line's first full pieces for so many tokens; it grows where it is short."""
    wanted = tokens // PIECE
    line += [next(pieces) for _ in range(wanted - len(line))]
    return tuple(line[:wanted])


def _request(
    at: Seconds, tokens: Tokens, output: Tokens, shared: tuple[int, ...], pieces: "count[int]"
) -> TraceRequest:
    more = math.ceil(tokens / PIECE) - len(shared)
    return TraceRequest(
        at=at,
        input_tokens=tokens,
        output_tokens=max(1, output),
        pieces=shared + tuple(next(pieces) for _ in range(more)),
        piece_tokens=PIECE,
    )


READERS: Mapping[str, Reader] = {
    "hash_ids": _ours,
    "arrival_t": _admitperf,
    "expected_output_tokens": _events,
}
"""Who reads a format, by a key that no other one has."""
