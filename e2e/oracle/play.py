"""Plays a scenario on the replay beside what the real scheduler did, cycle by cycle.

Two replays are held against it: the exact one, on all that was seen; and, where its sequences
decode in lockstep, the counting one that prices are asked of, which is told what its owner knows
from the engine's events: what is cached, and how many blocks are free as a step begins. It does not
know whose blocks are shared, so it is followed up to the first step that pushes somebody out while
some are: `counted` steps of it were compared. The simulated engine's own scheduler is a third side.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from leadsman.copies import Named
from leadsman.engine import EngineSettings
from leadsman.exact import Exact
from leadsman.replay import Replay
from leadsman.sequence import NOTHING, Hit, Seq, Step
from leadsman.units import BlockKey, RequestId

from oracle.simulated import SimulatedSide
from oracle.texts import Texts

Seen = dict[str, Any]


class Mismatch(NamedTuple):
    """The first cycle in which two sides differ, and what each said."""

    side: str
    cycle: int
    what: str
    engine: Any
    replay: Any


def settings_of(told: dict[str, Any], version: str) -> EngineSettings:
    """Say a scenario's settings as Leadsman does."""
    return EngineSettings(
        model="m",
        version=version,
        max_num_batched_tokens=told["max_num_batched_tokens"],
        max_num_seqs=told["max_num_seqs"],
        max_model_len=told["max_model_len"],
        block_size=told["block_size"],
        num_blocks=told["num_blocks"] - 1,
        enable_prefix_caching=told["enable_prefix_caching"],
        enable_chunked_prefill=told["enable_chunked_prefill"],
        long_prefill_token_threshold=told["long_prefill_token_threshold"] or None,
        async_scheduling=told["async_scheduling"],
        policy=told["policy"],
        watermark=told["watermark"],
        reserve_full_isl=told["scheduler_reserve_full_isl"],
        windows=tuple(told["windows"]),
        retention_interval=told["retention"],
        num_speculative_tokens=told["num_speculative_tokens"],
        num_lookahead_tokens=told["num_lookahead_tokens"],
        is_eagle=told["use_eagle"],
        aligns_chunks=told.get("aligns_chunks", False),
    )


class Play:
    """One scenario on both replays."""

    def __init__(self, told: dict[str, Any], version: str) -> None:
        settings = settings_of(told["settings"], version)
        self.texts = texts = Texts(told["requests"], settings.block_size)
        self.exact = Exact(settings, lambda seq, number: BlockKey(texts.name(seq.id, number)))
        texts.looks_ahead = self.exact.looks_ahead
        self.exact.accepts = lambda seq: texts.right(seq.id, seq.generated)
        is_plain = settings.decodes_in_lockstep
        self.counting = Replay(settings) if is_plain else None
        self.simulated = SimulatedSide(told, version) if is_plain else None
        self._sharers: set[Seq] = set()
        self.told = told["requests"]
        self.preemptions = self.counted = 0
        self._names: dict[BlockKey, int] = {}
        self._seqs: dict[str, list[Seq]] = {}
        self._cached: dict[str, int] = {}

    def against(self, cycles: list[Seen]) -> Mismatch | None:
        """Return the first difference, None where there is none."""
        todo = [(number, told) for number, told in enumerate(self.told)]
        for seen in cycles:
            while todo and todo[0][1]["cycle"] <= seen["cycle"]:
                self._add(*todo.pop(0))
            for told in self.told:
                if told["aborts"] == seen["cycle"]:
                    self._drop(told["id"])
            for side, what, engine, replay in self._cycle(seen):
                if engine != replay:
                    return Mismatch(side, seen["cycle"], what, engine, replay)
        return None

    def _add(self, arrival: int, told: dict[str, Any]) -> None:
        prompt = self.texts.prompt(told["id"])
        if self.simulated is not None:
            self.simulated.add(arrival, told)
        self._seqs[told["id"]] = []
        for replay in (self.exact, self.counting):
            if replay is None:
                continue
            seq = Seq(RequestId(told["id"]), len(prompt), -1.0)
            seq.limit, seq.stops, seq.arrival = told["max_tokens"], told["stops"], arrival
            seq.priority, seq.reads_cache = told["priority"], told["reads_cache"]
            replay.add(seq)
            self._seqs[told["id"]].append(seq)

    def _drop(self, name: str) -> None:
        if self.simulated is not None:
            self.simulated.abort(name)
        seqs = self._seqs.pop(name, [])
        for seq, replay in zip(seqs, (self.exact, self.counting), strict=False):
            if replay is not None:
                replay.drop(seq)

    def _cycle(self, seen: Seen) -> Iterator[tuple[str, str, Any, Any]]:
        if seen["tokens"] is None:
            for replay in (self.exact, self.counting):
                if replay is not None:
                    replay.wake()
        else:
            yield from self._step(seen)
        for name, cached in seen["cached"].items():
            yield "exact", "cached", [name, cached], [name, self._cached.get(name)]
        yield "exact", "blocks", seen["events"], self._events()
        yield "exact", "free", seen["free"], self.exact.free
        if self.simulated is not None:
            for what, engine, ours in self.simulated.cycle(seen):
                yield "simulated", what, engine, ours

    def _step(self, seen: Seen) -> Iterator[tuple[str, str, Any, Any]]:
        hits: dict[RequestId, Hit] = {}
        free, shared = self.exact.free, self.exact.copies.are_shared

        def lookup(seq: Seq) -> Hit:
            hits[seq.id] = self.exact.lookup(seq)
            return hits[seq.id]

        step = self.exact.step(lookup)
        self.preemptions += len(step.preempted)
        for seq in step.admitted:
            self._cached.setdefault(seq.id, seq.cached or 0)
        yield "exact", "tokens", seen["tokens"], [[seq.id, n] for seq, n in step.turns]
        yield "exact", "preempted", seen["preempted"], _names(step.preempted)
        if step.preempted and (self._sharers or shared):
            self.counting = None
        if self.counting is None:
            return
        self.counted += 1
        self.counting.free = free
        summed = self.counting.step(lambda seq: hits.get(seq.id, NOTHING))
        yield "counting", "preempted", seen["preempted"], _names(summed.preempted)
        yield "counting", "chunks", _chunks(step), _chunks(summed)
        yield "counting", "decodes", step.features.decodes, summed.features.decodes
        yield "counting", "finals", _names(step.finals), _names(summed.finals)
        self._sharers |= {seq for seq in summed.admitted if seq.shared}
        knows = not (self._sharers or self.exact.copies.are_shared)
        self._sharers &= set(self.counting.running)
        if knows:
            yield "counting", "free", seen["free"], self.counting.free

    def _events(self) -> list[list[Any]]:
        """Name blocks by numbers, in the order in which they are first heard of."""
        told, self.exact.copies.told = self.exact.copies.told, []
        events: list[list[Any]] = []
        for event in told:
            keys = event.keys if isinstance(event, Named) else (event.key,)
            numbers = [self._names.setdefault(key, len(self._names)) for key in keys]
            events.append([isinstance(event, Named), event.group, numbers])
        return events


def _names(seqs: list[Seq]) -> list[str]:
    return sorted(seq.id for seq in seqs)


def _chunks(step: Step) -> list[list[Any]]:
    return [[seq.id, n] for seq, n in step.chunks]
