from random import Random

import msgspec
import numpy as np
import pytest
from leadsman.admit import no_endpoint
from leadsman.budget import Budget
from leadsman.prediction import Admitted, Prediction, Price, Reason, Refused
from leadsman.records import Outcome, Trust
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.columns import encoder
from leadsman_extproc.grants import Grants, Usage
from leadsman_extproc.metrics import Counts, MetricsServer, Page
from leadsman_extproc.outcomes import Outcomes
from leadsman_extproc.rows import Shared, decision_row
from prometheus_client import CollectorRegistry, generate_latest

REQUEST = Request(
    id=RequestId("r"),
    model="m",
    prompt_tokens=40,
    arrived_at=1.0,
    keys={16: np.array([1, 2], np.uint64)},
)


def admitted():
    price = Price(
        worker=WorkerId("a"),
        queue_wait=2.0,
        own_prefill=1.0,
        cached_tokens=16,
        queued_tokens=5,
        queued_requests=1,
    )
    prediction = Prediction(
        price=price,
        confidence=0.9,
        queue_wait_bound=3.0,
        ttft_bound=4.0,
        curve="own",
        trust=Trust.LIVE,
        trust_reason="history is complete",
        state_age=0.1,
    )
    return Admitted(
        request=REQUEST.id,
        worker=WorkerId("a"),
        endpoint="a:1",
        prediction=prediction,
        candidates=(prediction,),
    )


def lines(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def serve(kept, *, first_token=3.5, moved=False):
    grants = Grants(emit=lambda record: None, on_end=kept.ended)
    kept.decided(REQUEST, admitted(), 1.0)
    grant = grants.open(REQUEST, admitted(), 1.0)
    if moved:
        grants.move(grant, (WorkerId("b"), "b:1", 16), 1.5)
    grants.see(grant, 1, 1.0 + first_token)
    grants.end(grant, Outcome.FINISHED, 9.0, Usage(cached_tokens=16, completion_tokens=3))


def test_files_hold_a_line_a_decision_and_a_line_an_outcome(tmp_path):
    with Outcomes(counts=Counts(), folder=tmp_path / "out") as kept:
        serve(kept)

    [decision] = (tmp_path / "out" / "decisions.jsonl").read_bytes().splitlines()
    [outcome] = (tmp_path / "out" / "outcomes.jsonl").read_bytes().splitlines()
    decided, ended = msgspec.json.decode(decision), msgspec.json.decode(outcome)
    assert (decided["kind"], decided["blocks"]) == ("admitted", {"16": 2})
    assert decided["decision"]["candidates"][0]["price"]["queue_wait"] == 2.0
    assert (ended["predicted_ttft"], ended["ttft"]) == (3.0, 3.5)
    assert (ended["predicted_cached"], ended["cached_tokens"]) == (16, 16)


def test_a_decision_is_written_with_what_its_worker_had_told(tmp_path):
    asked = []

    def signals(worker, now):
        asked.append((worker, now))
        return {"waiting": 3.0}

    with Outcomes(counts=Counts(), folder=tmp_path, signals=signals) as kept:
        kept.decided(REQUEST, admitted(), 1.0)
        kept.decided(REQUEST, no_endpoint(REQUEST, Budget(), Random(1)), 2.0)

    rows = map(msgspec.json.decode, (tmp_path / "decisions.jsonl").read_bytes().splitlines())
    assert [row["signals"] for row in rows] == [{"waiting": 3.0}, {}]
    assert asked == [(admitted().worker, 1.0)]


def test_a_refusal_is_written_with_its_reason(tmp_path):
    refused = Refused(
        request=REQUEST.id,
        reason=Reason.WOULD_WAIT_TOO_LONG,
        status=429,
        retry_after=3.0,
        should_retry=True,
    )

    with Outcomes(counts=Counts(), folder=tmp_path) as kept:
        kept.decided(REQUEST, refused, 1.0)

    row = msgspec.json.decode((tmp_path / "decisions.jsonl").read_bytes())
    assert (row["kind"], row["decision"]["reason"]) == ("refused", "would_wait_too_long")


def test_what_to_scale_by_counts_those_sent_on_and_those_refused():
    counts, went = Counts(), admitted()
    refused = Refused(
        request=REQUEST.id,
        reason=Reason.WOULD_WAIT_TOO_LONG,
        status=429,
        retry_after=3.0,
        should_retry=True,
        candidates=went.candidates,
        held_for=4.0,
    )

    counts.admitted(REQUEST, went)
    counts.refused(refused)
    counts.refused(no_endpoint(REQUEST, Budget(), Random(1)))

    assert counts.predicted_queue_wait_seconds.sum == 2.0 + (2.0 + 4.0)
    assert counts.predicted_queue_wait_seconds.buckets()[-1] == ("+Inf", 2.0)


@pytest.mark.parametrize(
    ("first_token", "within"),
    [
        (3.05, {"1s": 1, "10s": 1, "relative": 1}),
        (3.9, {"1s": 1, "10s": 1, "relative": 0}),
        (7.0, {"1s": 0, "10s": 1, "relative": 0}),
        (20.0, {"1s": 0, "10s": 0, "relative": 0}),
    ],
)
def test_a_prediction_is_counted_by_how_far_it_was_off(first_token, within):
    counts = Counts()

    serve(Outcomes(counts=counts), first_token=first_token)

    assert counts.graded == 1
    assert dict(counts.within) == within


def test_a_request_that_another_worker_served_does_not_grade_the_prediction(tmp_path):
    counts = Counts()

    with Outcomes(counts=counts, folder=tmp_path) as kept:
        serve(kept, moved=True)

    [outcome] = lines(tmp_path / "outcomes.jsonl")
    assert counts.graded == 0
    assert (outcome["worker"], outcome["predicted_ttft"]) == ("b", None)


def test_a_full_queue_drops_and_counts_the_drop(tmp_path):
    counts = Counts()
    line = len(encoder().encode(decision_row(REQUEST, admitted(), 1.0, Shared())))
    kept = Outcomes(counts=counts, folder=tmp_path, most_waiting=line + line // 2)

    kept.decided(REQUEST, admitted(), 1.0)
    kept.decided(REQUEST, admitted(), 1.0)

    assert counts.journal_dropped == 1


def test_a_full_disk_drops_records_and_counts_them_and_the_other_file_goes_on(tmp_path):
    (tmp_path / "decisions.jsonl").symlink_to("/dev/full")
    counts = Counts()

    with Outcomes(counts=counts, folder=tmp_path) as kept:
        serve(kept)

    assert counts.journal_dropped == 1
    assert len(lines(tmp_path / "outcomes.jsonl")) == 1


def test_every_count_is_on_the_page():
    counts = Counts()
    counts.fallbacks["deadline"] += 2
    registry = CollectorRegistry()
    registry.register(Page(counts))

    page = generate_latest(registry).decode()

    assert 'leadsman_fallbacks_total{cause="deadline"} 2.0' in page
    assert "leadsman_graded_total 0.0" in page


def test_the_page_says_how_far_each_cache_is_believed_and_why():
    registry = CollectorRegistry()
    registry.register(Page(Counts(trust=lambda: [("w:8000", Trust.SUSPECT, "batch 7 is lost")])))

    page = generate_latest(registry).decode()

    labels = 'reason="batch 7 is lost",trust="suspect",worker="w:8000"'
    assert f"leadsman_trust{{{labels}}} 1.0" in page


def test_what_is_in_flight_is_on_the_page_by_worker():
    registry = CollectorRegistry()
    registry.register(Page(Counts(), {"in_flight": lambda: {"a:1": 2, "b:1": 0}}))

    page = generate_latest(registry).decode()

    assert 'leadsman_in_flight{worker="a:1"} 2.0' in page
    assert 'leadsman_in_flight{worker="b:1"} 0.0' in page


def test_the_page_is_served_until_it_is_closed():
    server = MetricsServer(Counts(), 0)

    server.close()

    assert server.port > 0
