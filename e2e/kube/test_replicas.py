"""Several pickers pick as one: their predictions are as good, and the load as even, as one's alone.

One and two replicas take turns at the same requests, on engines of different speed. What they
predicted and what became of it are in their journals, whose times are of one clock here. On a
machine that does other things too, two plays of the same differ by more than a tenth; so this fails
only where it is not chance that two pickers are worse, as far as drawing the rounds anew can tell.
How much worse they are to the digit, tests/bench/test_replicas.py says in virtual time.
"""

import json
from bisect import bisect_left, insort
from collections import Counter
from contextlib import contextmanager
from random import Random
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
ROUNDS = 5
REQUESTS = 120
RATE = 20.0
LEARNING = 300
"""Requests of the first play, after which all later pickers are told how fast the engines are."""

WORSE = 1.1
DRAWS = 1000
CHANCE = 0.01
MOST_UNPREDICTED = 0.05
COMPONENT = "picker-chat"
QUICK = {"pickers": {"noticeSeconds": 0}}


@pytest.fixture(params=BACKENDS)
def release(request, helm_path, plane, tmp_path):
    """A release with engines and an operator, and no pickers yet; gives it and its gateway."""
    namespace = f"replicas-{request.param}"
    with (
        _state_by(request.param, tmp_path) as values,
        installed(helm_path, plane, tmp_path, namespace, **values, **QUICK) as release,
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
def test_two_pickers_predict_as_well_and_spread_as_evenly_as_one(release, capsys):
    release, url = release
    _play(release, url, 1, LEARNING, seed=0)
    rounds = [
        [_play(release, url, count, REQUESTS, seed=turn) for count in (1, 2)]
        for turn in range(1, ROUNDS + 1)
    ]

    for figures in (_errors, _imbalances):
        ratios = _ratios([[list(figures(rows)) for rows in pair] for pair in rounds])
        least, middle, most = (ratios[int(at * DRAWS)] for at in (CHANCE, 0.5, 1 - CHANCE))
        with capsys.disabled():
            print(f"\n{figures.__name__[1:]}: two pickers' by one's is {middle:.2f}", end=" ")
            print(f"({least:.2f} to {most:.2f})")
        assert least <= WORSE


def _ratios(rounds):
    """Give what two's figure by one's may as well have been, from the least on."""
    rng = Random(0)

    def again():
        drawn = rng.choices(rounds, k=len(rounds))
        one, two = (mean(n for pair in drawn for n in pair[which]) for which in (0, 1))
        return two / one

    return sorted(again() for _ in range(DRAWS))


def _play(release, url, count, requests, *, seed):
    """Load so many new pickers with as many requests; gives what they wrote of each."""
    stage, journals = release.stage, []
    release.start(COMPONENT, count)
    with steady(url, MODEL, stage.folder, rate=RATE, seed=seed) as traffic:
        assert within(3 * PATIENCE, lambda: len(traffic.so_far()) >= requests)
    assert traffic.lost() == []
    for replica in list(release.replicas[COMPONENT]):
        journals.append(stage.folder / f"{replica.name}.journal" / "outcomes.jsonl")
        release.end(COMPONENT, replica)
    rows = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    assert len(rows) >= requests
    return rows


def _errors(rows):
    """Give the differences of predicted and real time to the first token.

    Who was not decided on in time went to the least loaded engine, without a prediction.
    """
    times = [(row["predicted_ttft"], row["ttft"]) for row in rows]
    known = [(predicted, ttft) for predicted, ttft in times if predicted is not None and ttft]
    assert len(known) >= (1 - MOST_UNPREDICTED) * len(times)
    return [abs(predicted - ttft) for predicted, ttft in known]


def _imbalances(rows):
    """Give how far the fullest and the emptiest engine are apart, in requests, as each arrives."""
    running, ends = Counter({row["worker"]: 0 for row in rows}), []
    for row in sorted(rows, key=lambda row: row["sent_at"]):
        over = bisect_left(ends, (row["sent_at"], ""))
        running.subtract(worker for _, worker in ends[:over])
        del ends[:over]
        running[row["worker"]] += 1
        insort(ends, (row["ended_at"], row["worker"]))
        yield max(running.values()) - min(running.values())
