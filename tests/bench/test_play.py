"""Tasks played at a gateway: what follows what, and what callers do with what they are told."""

import asyncio
from random import Random

import pytest
from leadsman_bench.callers import RETRIES
from leadsman_bench.live import play
from leadsman_bench.live.play import TaskPlay
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest

pytestmark = pytest.mark.looptime


def call(at=0.0, **rest):
    row = TraceRequest(at=at, input_tokens=8, output_tokens=2, pieces=(0,), piece_tokens=8)
    return Call(row=row, **rest)


class Gateway:
    """Answers each try in a second; refuses the first so many of each call."""

    def __init__(self, refuses=0, later=3.0, should_retry=True, places=None):
        self.refuses, self.later, self.should_retry = refuses, later, should_retry
        self.places, self.asked, self.cut = places, [], []

    async def __call__(self, _url, _session, one, now, _tally):
        name, place, number = one.planned.id.rsplit(".", 2)
        self.asked.append((f"{name}.{place}", now(), dict(one.planned.headers)))
        if int(number) < self.refuses and self.places in {None, int(place)}:
            one.status, one.retry_after, one.should_retry = 429, self.later, self.should_retry
            return
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            self.cut.append(name)
            raise
        one.status, one.first_at = 200, now()

    @property
    def times(self):
        return [(name, round(at, 6)) for name, at, _ in self.asked]


async def played(monkeypatch, gateway, tasks, manners="leave"):
    monkeypatch.setattr(play, "send", gateway)
    return await TaskPlay("http://gateway", tasks, manners, "m", Random(1)).run()


async def test_a_call_follows_the_last_of_those_before_it_once_its_caller_has_thought(monkeypatch):
    gateway = Gateway()
    fan = (call(), call(after=(0,), thinks=0.5), call(after=(0,), thinks=2.0), call(after=(1, 2)))

    told = await played(monkeypatch, gateway, [Task(name="t", calls=fan)])

    assert gateway.times == [("t.0", 0.0), ("t.1", 1.5), ("t.2", 3.0), ("t.3", 4.0)]
    assert all(one.was_served for one in told)


@pytest.mark.parametrize(
    ("manners", "times"),
    [
        pytest.param("leave", [0.0], id="leave"),
        pytest.param("obey", [0.0, 3.0, 6.0], id="obey"),
    ],
)
async def test_who_is_refused_comes_back_as_its_manners_are(monkeypatch, manners, times):
    gateway = Gateway(refuses=9)

    [told] = await played(monkeypatch, gateway, [Task(name="t", calls=(call(),))], manners)

    assert gateway.times == [("t.0", at) for at in times]
    assert not told.was_served


async def test_who_ignores_what_it_is_told_comes_back_by_its_own_backoff(monkeypatch):
    gateway = Gateway(refuses=9, should_retry=False)

    await played(monkeypatch, gateway, [Task(name="t", calls=(call(),))], "ignore")

    first, second, third = (at for _, at in gateway.times)
    assert 0.375 <= second - first <= 0.5
    assert 0.75 <= third - second <= 1.0


@pytest.mark.parametrize("told", [{"should_retry": False}, {"later": 121.0}, {"later": None}])
async def test_who_obeys_does_not_come_back_where_the_sdks_would_not(monkeypatch, told):
    gateway = Gateway(refuses=9, **told)

    await played(monkeypatch, gateway, [Task(name="t", calls=(call(),))], "obey")

    assert len(gateway.asked) == 1


async def test_a_call_that_is_let_in_at_its_last_try_counts_from_its_first(monkeypatch):
    gateway = Gateway(refuses=RETRIES)

    [told] = await played(monkeypatch, gateway, [Task(name="t", calls=(call(),))], "obey")

    assert told.was_served
    assert told.ttft == pytest.approx(3.0 * RETRIES + 1.0)


async def test_a_task_is_over_with_the_first_call_that_is_refused_for_good(monkeypatch, looptime):
    gateway = Gateway(refuses=9, places=1)
    line = tuple(call(after=(place - 1,) if place else ()) for place in range(5))

    told = await played(monkeypatch, gateway, [Task(name="t", calls=line)])

    assert [one.place for one in told] == [0, 1]
    assert looptime == pytest.approx(1.0)


async def test_who_loses_patience_closes_its_connection_and_goes_on(monkeypatch):
    gateway = Gateway()
    calls = (call(hangs_up=0.25), call(after=(0,)))

    first, _ = await played(monkeypatch, gateway, [Task(name="t", calls=calls)])

    assert gateway.cut == ["t"]
    assert first.gave_up
    assert gateway.times == [("t.0", 0.0), ("t.1", 0.25)]


async def test_sessions_and_tenants_are_told(monkeypatch):
    gateway = Gateway()

    await played(monkeypatch, gateway, [Task(name="t", session="s", tenant="b", calls=(call(),))])

    [(_, _, headers)] = gateway.asked
    assert headers == {play.SESSION_HEADER: "s", play.TENANT_HEADER: "b"}
