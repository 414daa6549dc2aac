"""How long a price takes on a worker with a long queue, and a decision among 256 workers.

The question: `price_20_queued_s` is one replay behind 20 queued prompts of 100,000 tokens, more
than the worker's KV cache holds at once, beside the same replay made step by step, without the
closed form (`price_stepping_s`). `decision_p99_s` is `Fleet.decide` for a tokenised prompt of 8,192
tokens: every worker holds a different share of some conversations, half of them decode 8 requests
and have 4 prompts queued. No two questions are the same, the clock moves, and each grant is given
back, so nothing is remembered from one to the next. `decision_p99_cpu_s` is the same in time on the
CPU: where other work shares the machine, the slowest hundredth is those that waited for a core.
"""

import gc
import json
import time
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import Final

import numpy as np
from leadsman.budget import Budget
from leadsman.curve import fingerprint
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.prediction import Admitted
from leadsman.pricing import stepwise
from leadsman.records import (
    Ended,
    Granted,
    KvEvents,
    Learned,
    Outcome,
    Stored,
    TokensSeen,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.sequence import Seq
from leadsman.units import Keys, RequestId, Seconds, Tokens, WorkerId

MODEL: Final = "bench"
BLOCK: Final[Tokens] = 16
PROMPT: Final[Tokens] = 8192
WORKERS: Final = 256
CONVERSATIONS: Final = 64
PRICES: Final = 101
STEPPED: Final = 5
DECISIONS: Final = 2500
APART: Final[Seconds] = 1e-4

SETTINGS: Final = EngineSettings(
    model=MODEL,
    version="0.33.0",
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    max_model_len=131_072,
    block_size=BLOCK,
    num_blocks=40_000,
)
SPEED: Final = Learned(
    worker=WorkerId(""),
    fingerprint=fingerprint(SETTINGS),
    samples=tuple((n, 0.02 + 3e-5 * n + 4e-11 * n * n) for n in (256 << i for i in range(10))),
    step_weights=(0.008, 3e-5, 8e-11, 2e-5, 5e-9, 0.004),
)


def measure() -> dict[str, float]:
    """Measure all figures: seconds."""
    rng = np.random.default_rng(7)
    closed, stepped = _price(rng)
    decisions, on_cpu = _decisions(rng)
    return {
        "price_20_queued_s": closed,
        "price_stepping_s": stepped,
        "decision_p99_s": quantiles(decisions, n=100)[98],
        "decision_p99_cpu_s": quantiles(on_cpu, n=100)[98],
        "decision_median_s": median(decisions),
    }


def _price(rng: np.random.Generator) -> tuple[Seconds, Seconds]:
    fleet = Fleet()
    worker = _join(fleet, 0)
    for number in range(20):
        _grant(fleet, worker, f"queued-{number}", _keys(rng, 100_000 // BLOCK))
    state = fleet.workers[worker]
    asked = [_request(f"asked-{i}", _keys(rng, PROMPT // BLOCK), PROMPT - i) for i in range(PRICES)]
    work = [partial(state.price, request, 1 + i * APART) for i, request in enumerate(asked)]
    closed = median(map(_seconds, work))
    mirror, seq = state.mirror, Seq(RequestId("stepped"), PROMPT, visible_at=2.0)
    in_steps = partial(stepwise, mirror, seq, state.weights, 2.0, skips=False)
    return closed, median(_seconds(in_steps) for _ in range(STEPPED))


def _decisions(rng: np.random.Generator) -> tuple[list[Seconds], list[Seconds]]:
    """Decide again and again; gives what each took, and what of that on the CPU."""
    fleet = Fleet()
    talks = [_keys(rng, PROMPT // BLOCK) for _ in range(CONVERSATIONS)]
    for number in range(WORKERS):
        worker = _join(fleet, number)
        held = talks[number % CONVERSATIONS][: PROMPT // BLOCK * (number + 1) // WORKERS]
        stored = Stored(keys=held)
        fleet.apply(
            KvEvents(worker=worker, sequence=0, engine_time=0, received_at=0, events=(stored,)), 0
        )
        if number % 2:
            _make_busy(fleet, worker, rng)
    chance, budget = Random(7), Budget(max_queue_wait=30.0)
    times, on_cpu = list[Seconds](), list[Seconds]()
    for number in range(DECISIONS):
        mine = _keys(rng, int(rng.integers(1, 64)))
        keys = np.concatenate([talks[number % CONVERSATIONS][: -len(mine)], mine])
        request, now = _request(f"d{number}", keys, PROMPT), 10 + number * APART
        start, busy = time.perf_counter(), time.process_time()
        decision = fleet.decide(request, budget, now, chance)
        on_cpu.append(time.process_time() - busy)
        times.append(time.perf_counter() - start)
        assert isinstance(decision, Admitted)
        gone = Ended(
            worker=decision.worker, request=request.id, at=now, outcome=Outcome.CLIENT_GONE
        )
        fleet.apply(gone, now)
    return times, on_cpu


def _make_busy(fleet: Fleet, worker: WorkerId, rng: np.random.Generator) -> None:
    """Let it decode 8 requests since a moment ago, with 4 prompts queued behind them."""
    for number in range(8):
        _grant(fleet, worker, f"{worker}-{number}", _keys(rng, 256))
    for number in range(8):
        seen = TokensSeen(worker=worker, request=RequestId(f"{worker}-{number}"), at=9.9, tokens=1)
        fleet.apply(seen, 9.9)
    for number in range(8, 12):
        _grant(fleet, worker, f"{worker}-{number}", _keys(rng, 1250), at=9.9)


def _join(fleet: Fleet, number: int) -> WorkerId:
    worker = WorkerId(f"10.0.{number // 250}.{number % 250}:8000")
    fleet.apply(WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS), 0)
    speed = Learned(
        worker=worker,
        fingerprint=SPEED.fingerprint,
        samples=SPEED.samples,
        step_weights=SPEED.step_weights,
    )
    fleet.apply(speed, 0)
    return worker


def _grant(fleet: Fleet, worker: WorkerId, name: str, keys: Keys, *, at: Seconds = 0.0) -> None:
    granted = Granted(
        worker=worker,
        request=RequestId(name),
        at=at,
        prompt_tokens=len(keys) * BLOCK,
        keys=keys,
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )
    fleet.apply(granted, at)


def _request(name: str, keys: Keys, prompt: Tokens) -> Request:
    return Request(
        id=RequestId(name), model=MODEL, prompt_tokens=prompt, arrived_at=0, keys={BLOCK: keys}
    )


def _keys(rng: np.random.Generator, blocks: int) -> Keys:
    return rng.integers(1, 2**64, blocks, dtype=np.uint64)


def _seconds(work: Callable[[], object]) -> Seconds:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    gc.collect()
    print(json.dumps(measure(), indent=2))
