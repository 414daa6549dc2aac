"""The simulated engine's scheduler beside the real one, on the same scenario.

It shares no code with the replay, so it is held against the same runs. It knows one cache group
and no drafts.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored
from leadsman_engines.simulated.scheduler import Scheduler
from leadsman_engines.simulated.sequences import SimulatedRequest, Tracked
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.steps import Step

from oracle.texts import Texts

Said = tuple[str, Any, Any]


class SimulatedSide:
    """One scenario on the simulated scheduler."""

    def __init__(self, told: dict[str, Any], version: str) -> None:
        settings = told["settings"]
        self._settings = SimulatedSettings(
            model="m",
            version=version,
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_num_seqs=settings["max_num_seqs"],
            max_model_len=settings["max_model_len"],
            block_size=settings["block_size"],
            num_blocks=settings["num_blocks"] - 1,
            long_prefill_token_threshold=settings["long_prefill_token_threshold"] or None,
            async_scheduling=settings["async_scheduling"],
            policy=settings["policy"],
            watermark=settings["watermark"],
            reserve_full_isl=settings["scheduler_reserve_full_isl"],
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            enable_prefix_caching=settings["enable_prefix_caching"],
        )
        self._texts = Texts(told["requests"], settings["block_size"])
        self._scheduler = Scheduler(self._settings)
        self._requests: dict[str, Tracked] = {}
        self._steps: deque[Step] = deque()
        self._names: dict[int, int] = {}

    def add(self, arrival: int, told: dict[str, Any]) -> None:
        """Let a request come."""
        name, size = told["id"], self._settings.block_size
        prompt = len(self._texts.prompt(name))
        request = SimulatedRequest(
            id=name,
            prompt_tokens=prompt,
            prompt_hashes=[self._texts.name(name, number) for number in range(prompt // size)],
            output_tokens=told["stops"] or told["max_tokens"],
            max_tokens=told["max_tokens"],
            output_hash=lambda number: self._texts.name(name, number),
            priority=told["priority"],
            reads_cache=told["reads_cache"],
        )
        limit = self._settings.max_model_len
        tracked = Tracked(request, arrival=float(arrival), max_model_len=limit)
        self._requests[name] = tracked
        self._scheduler.add(tracked)

    def abort(self, name: str) -> None:
        """Let a request's client leave."""
        tracked = self._requests.get(name)
        if tracked is not None and not tracked.done:
            self._scheduler.abort(tracked)

    def cycle(self, seen: dict[str, Any]) -> Iterator[Said]:
        """Do what the engine did in a cycle; gives what each side says."""
        is_full = True
        if seen["tokens"] is not None:
            step = self._scheduler.schedule()
            self._steps.append(step)
            tokens = [[one.id, count] for one, count in step.tokens.items()]
            yield "tokens", seen["tokens"], tokens
            yield "preempted", seen["preempted"], sorted(one.id for one in step.preempted)
            depth = 2 if self._settings.async_scheduling else 1
            is_full = len(self._steps) == depth or not step.tokens
        if is_full and self._steps:
            first = self._scheduler.process(self._steps.popleft()).first
            yield "cached", seen["cached"], first
        yield "blocks", seen["events"], list(self._events())
        yield "free", seen["free"], self._scheduler.pool.free

    def _events(self) -> Iterator[list[Any]]:
        for event in self._scheduler.pool.take_events():
            assert isinstance(event, BlocksStored | BlocksRemoved)
            numbers = [self._names.setdefault(name, len(self._names)) for name in event.hashes]
            if isinstance(event, BlocksStored):
                yield [True, 0, numbers]
            else:
                yield from ([False, 0, [number]] for number in numbers)
