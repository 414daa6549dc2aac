"""Held requests behind a real Envoy: who waits is answered once, whatever happens meanwhile."""

import asyncio
import json
from random import Random

import aiohttp
import pytest
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId
from leadsman_extproc.grants import Grants
from leadsman_extproc.metrics import Counts
from leadsman_extproc.verdict import SendOn
from leadsman_extproc.waiting import GONE, PUSHED, REFUSED, SENT, Waiting

from .conftest import SETTINGS, PicksInTurn, WorkerSeen

CHAT = "/v1/chat/completions"


async def post(stack, model):
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.url + CHAT, data=json.dumps(body)) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


def begun(stack, model, count=1):
    """Send requests, and wait until they are held."""
    stack.picker.wait = 9.0
    calls = [asyncio.create_task(post(stack, model)) for _ in range(count)]
    return calls, asyncio.to_thread(stack.comes, lambda: stack.picking.counts.held() == count)


def how_long(stack):
    histograms = stack.picking.counts.held_seconds
    return {outcome: seen.buckets()[-1][1] for outcome, seen in histograms.items()}


@pytest.mark.envoy
async def test_who_is_held_is_sent_on_when_a_worker_comes_free(stack):
    calls, held = begun(stack, "hold-1000", 3)
    assert await held
    assert stack.engine.bodies == []

    stack.free()
    answers = await asyncio.gather(*calls)

    assert [(status, body[-14:]) for status, _, body in answers] == [(200, b"data: [DONE]\n\n")] * 3
    assert stack.is_settled()
    assert how_long(stack) == {SENT: 3}
    assert all(0 < one.held_for < 15 for one in stack.keeps.decisions)
    assert all(grant.request.waited > 0 for grant in stack.keeps.grants)


@pytest.mark.envoy
async def test_a_client_that_goes_away_frees_its_place_at_once(stack):
    calls, held = begun(stack, "hold-1000")
    assert await held

    calls[0].cancel()

    assert await asyncio.to_thread(stack.comes, lambda: not stack.picking.counts.held())
    assert stack.is_settled()
    assert (len(stack.picker.lobby), how_long(stack)) == (0, {GONE: 1})
    assert (stack.keeps.decisions, stack.engine.bodies) == ([], [])


@pytest.mark.envoy
async def test_who_can_be_in_time_no_more_is_refused(stack):
    calls, held = begun(stack, "hold-2.5")
    assert await held

    status, headers, body = await calls[0]

    assert (status, headers["x-should-retry"]) == (429, "true")
    assert json.loads(body)["error"]["code"] == "would_wait_too_long"
    assert stack.is_settled()
    assert how_long(stack) == {REFUSED: 1}
    assert stack.keeps.decisions[0].held_for > 0


@pytest.mark.envoy
async def test_who_has_been_held_for_as_long_as_may_be_is_sent_on_wherever(stack):
    stack.picker.longest, stack.picker.wait = 0.4, 9.0

    status, _, _ = await post(stack, "hold-1000")

    stack.picker.longest = 3.0
    assert status == 200
    assert stack.is_settled()
    assert how_long(stack) == {PUSHED: 1}


@pytest.mark.envoy
@pytest.mark.parametrize("profile", ["buffered", "duplex"])
async def test_a_picker_that_is_stopped_loses_nobody_who_is_held(behind, profile):
    stack, stop = behind(profile, engines=1)
    stack.picker.longest = 60.0
    calls, held = begun(stack, "hold-1000", 5)
    assert await held

    await asyncio.to_thread(stop)
    answers = await asyncio.gather(*calls)

    assert [status for status, _, _ in answers] == [200] * 5
    assert len(stack.engine.bodies) == 5
    assert [one.held_for > 0 for one in stack.keeps.decisions] == [True] * 5


# -- without a gateway -----------------------------------------------------------------------------


@pytest.fixture
def request_of():
    def make(name, at):
        return Request(id=RequestId(name), model="hold-1000", prompt_tokens=1, arrived_at=at)

    return make


class Late:
    """A picker that holds, and the calls that wait for it."""

    def __init__(self):
        self.picker, self.records, self.ended = PicksInTurn(wait=9.0), [], []
        self.picker.apply(WorkerSeen(worker="0", endpoint="e", settings=SETTINGS), 0.0)
        self.grants = Grants(emit=self.records.append, on_end=self.ended.append)
        self.clock = asyncio.get_running_loop().time
        self.waiting = Waiting(
            picker=self.picker,
            grants=self.grants,
            counts=Counts(),
            clock=self.clock,
            rng=Random(0),
        )

    def asks(self, request):
        held = self.picker.decide(request, None, self.clock(), None)
        return self.waiting.verdict(held, self.settle)

    def settle(self, settled):
        grant = self.grants.open(settled.request, settled.decision, self.clock())
        return SendOn(grant, {})


async def test_a_call_that_is_gone_just_after_its_turn_gives_its_grant_back(request_of):
    late = Late()
    call = asyncio.ensure_future(late.asks(request_of("r", late.clock())))
    await asyncio.sleep(0)

    late.picker.free(late.clock())
    late.waiting.close()
    assert len(late.grants) == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert len(late.grants) == 0
    assert [grant.outcome for grant in late.ended] == [Outcome.CLIENT_GONE]


async def test_a_turn_before_the_call_has_begun_to_wait_is_not_lost(request_of):
    late = Late()
    later = late.asks(request_of("r", late.clock()))

    late.waiting.close()

    assert isinstance(await later, SendOn)


async def test_a_verdict_that_fails_fails_alone(request_of):
    late = Late()
    first, second = (late.asks(request_of(name, late.clock())) for name in "ab")
    late.waiting._callers["b"].settle = lambda settled: 1 / 0

    late.waiting.close()

    assert isinstance(await first, SendOn)
    with pytest.raises(ZeroDivisionError):
        await second
