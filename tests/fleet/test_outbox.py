import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from leadsman.records import Ended, Granted, Learned, Outcome, TokensSeen, WorkerSeen
from leadsman_fleet.outbox import Outbox
from leadsman_fleet.state import FleetState

from tests.settings import SETTINGS

LIMIT = 6


def granted(request, worker="w"):
    return Granted(
        worker=worker,
        request=request,
        at=1.0,
        prompt_tokens=9,
        keys=np.empty(0, np.uint64),
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )


def tokens_seen(request, tokens):
    return TokensSeen(worker="w", request=request, at=2.0, tokens=tokens)


def ended(request, worker="w"):
    return Ended(worker=worker, request=request, at=3.0, outcome=Outcome.FINISHED)


def listener():
    state = FleetState()
    state.apply(WorkerSeen(worker="w", endpoint="w", settings=SETTINGS))
    return state


class ReportsToAListenerThatComesAndGoes(RuleBasedStateMachine):
    """Whatever is lost on the way, the listener ends with exactly the live grants."""

    def __init__(self):
        super().__init__()
        self.box = Outbox(limit=LIMIT)
        self.listener = listener()
        self.live = {}
        self.begun = 0

    @rule()
    def begin(self):
        request = f"r{self.begun}"
        self.begun += 1
        self.live[request] = 0
        self.box.put(granted(request))

    @rule(data=st.data())
    def see_a_token(self, data):
        if self.live:
            request = data.draw(st.sampled_from(sorted(self.live)))
            self.live[request] += 1
            self.box.put(tokens_seen(request, self.live[request]))

    @rule(data=st.data())
    def end(self, data):
        if self.live:
            request = data.draw(st.sampled_from(sorted(self.live)))
            del self.live[request]
            self.box.put(ended(request))

    @rule(arrives=st.booleans(), is_confirmed=st.booleans())
    def send(self, arrives, is_confirmed):
        batch = self.box.take()
        if arrives:
            for report in batch:
                self.listener.apply(report, "me")
        if arrives and is_confirmed:
            self.box.confirm()

    @rule()
    def reconnect(self):
        self.box.restate()

    @rule()
    def reconnect_to_a_listener_that_forgot_everything(self):
        self.listener = listener()
        self.box.restate()

    @invariant()
    def the_box_keeps_its_bound(self):
        assert len(self.box._pending) <= max(LIMIT, 2 * (4 * self.begun + 1))

    def teardown(self):
        while self.box.take():
            for report in self.box.take():
                self.listener.apply(report, "me")
            self.box.confirm()
        told = {grant.request for grant in self.listener.grants_of("me")}
        seen = {
            record.request: record.tokens
            for record in self.listener.snapshot()
            if isinstance(record, TokensSeen)
        }
        assert told == set(self.live)
        assert seen == {request: tokens for request, tokens in self.live.items() if tokens}


ReportsToAListenerThatComesAndGoes.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestReportsToAListenerThatComesAndGoes = ReportsToAListenerThatComesAndGoes.TestCase


def test_requests_that_come_and_go_unheard_take_no_room():
    box = Outbox(limit=LIMIT)

    for number in range(1000):
        box.put(granted(f"r{number}"))
        box.put(ended(f"r{number}"))

    assert len(box) <= LIMIT
    assert box.forgotten == 2000 - len(box)


def test_the_end_of_a_grant_that_was_told_outlives_every_shrinking():
    box = Outbox(limit=LIMIT)
    box.put(granted("told"))
    box.take()
    box.confirm()
    box.restate()
    box.put(ended("told"))

    for number in range(1000):
        box.put(granted(f"r{number}"))
        box.put(ended(f"r{number}"))

    assert ended("told") in [report for report in box.take() if isinstance(report, Ended)]


def test_lessons_are_told_again_to_a_listener_that_lost_them():
    box = Outbox()
    lesson = Learned(worker="w", fingerprint="f", samples=((9, 0.1),))
    box.put(lesson)
    box.take()
    box.confirm()

    box.restate("w")

    assert box.take() == [lesson]


def test_a_request_that_moved_unheard_is_live_where_it_moved_to():
    box = Outbox(limit=2)
    box.put(granted("r", "one"))
    box.put(ended("r", "one"))

    box.put(granted("r", "two"))

    assert [(type(report), report.worker) for report in box.take()] == [(Granted, "two")]
