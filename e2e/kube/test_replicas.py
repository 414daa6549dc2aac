"""Several pickers pick as one: their predictions are as good, and the load as even, as one's alone.

One and two replicas take turns under the same kind of load, on engines of different speed. What
they predicted and what became of it are in their journals, whose times are of one clock here.
"""

import json
from bisect import bisect_left, insort
from collections import Counter
from contextlib import contextmanager
from statistics import mean

import pytest
from leadsman_bench.envoy import running_envoy

from .conftest import PATIENCE, within
from .front import Front
from .redis_server import RedisServer, needs_redis
from .release import LABELS, installed
from .traffic import steady

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SPEEDS = ("1", "1", "1.5", "2")
BACKENDS = ("grpc", pytest.param("redis", marks=needs_redis))
"""The ways in which replicas hear of each other."""
ROUNDS = 2
REQUESTS = 300
RATE = 30.0
WORSE = 1.1
MOST_UNPREDICTED = 0.05
COMPONENT = "picker-chat"


@pytest.fixture(params=BACKENDS)
def release(request, helm_path, plane, tmp_path):
    """A release with engines and an operator, and no pickers yet; gives it and its gateway."""
    namespace = f"replicas-{request.param}"
    with (
        _state_by(request.param, tmp_path) as values,
        installed(helm_path, plane, tmp_path, namespace, **values) as release,
    ):
        stage = release.stage
        for number, speed in enumerate(SPEEDS):
            stage.pod(f"engine-{number}", stage.engine("--speed", speed), labels=LABELS)
        release.run("operator")
        with running_envoy(Front(release.service(COMPONENT), release.names.address)) as envoy:
            yield release, envoy.url


@contextmanager
def _state_by(backend, folder):
    """Have a Redis where one is needed; gives the chart's values."""
    if backend == "grpc":
        yield {}
        return
    redis = RedisServer(folder)
    redis.start()
    try:
        yield {"state": {"backend": "redis", "redis": {"url": redis.url}}}
    finally:
        redis.stop()


@pytest.mark.slow
def test_two_pickers_predict_as_well_and_spread_as_evenly_as_one(release):
    release, url = release
    outcomes = {1: [], 2: []}
    _play(release, url, 1, seed=0)
    for turn in range(1, ROUNDS + 1):
        for count, seen in outcomes.items():
            seen.append(_play(release, url, count, seed=turn))

    one, two = outcomes[1], outcomes[2]
    assert _error(two) <= WORSE * _error(one)
    assert _imbalance(two) <= WORSE * _imbalance(one)


def _play(release, url, count, *, seed):
    """Load so many new pickers with as many requests; gives what they wrote of each."""
    stage, journals = release.stage, []
    release.start(COMPONENT, count)
    with steady(url, MODEL, stage.folder, rate=RATE, seed=seed) as traffic:
        assert within(3 * PATIENCE, lambda: len(traffic.so_far()) >= REQUESTS)
    assert traffic.lost() == []
    for replica in list(release.replicas[COMPONENT]):
        journals.append(stage.folder / f"{replica.name}.journal" / "outcomes.jsonl")
        release.end(COMPONENT, replica)
    rows = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    assert len(rows) >= REQUESTS
    return rows


def _error(plays):
    """Give the mean difference of predicted and real time to the first token.

    Who was not decided on in time went to the least loaded engine, without a prediction.
    """
    times = [(row["predicted_ttft"], row["ttft"]) for rows in plays for row in rows]
    known = [(predicted, ttft) for predicted, ttft in times if predicted is not None and ttft]
    assert len(known) >= (1 - MOST_UNPREDICTED) * len(times)
    return mean(abs(predicted - ttft) for predicted, ttft in known)


def _imbalance(plays):
    """Give how far the fullest and the emptiest engine are apart, in requests, as each arrives."""
    return mean(apart for rows in plays for apart in _apart(rows))


def _apart(rows):
    running, ends = Counter({row["worker"]: 0 for row in rows}), []
    for row in sorted(rows, key=lambda row: row["sent_at"]):
        over = bisect_left(ends, (row["sent_at"], ""))
        running.subtract(worker for _, worker in ends[:over])
        del ends[:over]
        running[row["worker"]] += 1
        insort(ends, (row["ended_at"], row["worker"]))
        yield max(running.values()) - min(running.values())
