"""What is kept of decisions and outcomes, how it is written, and what is never written."""

import dataclasses
import time
import zlib
from random import Random

import duckdb
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.candidates import Candidates
from leadsman.decide import decide
from leadsman.prediction import Admitted, Prediction, Price, Reason, Refused
from leadsman.records import Outcome, Trust
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.columns import DECISIONS, OUTCOMES, Decided, Sent, Served, encoder
from leadsman_extproc.grants import Grants, Usage
from leadsman_extproc.journal import FullFiles
from leadsman_extproc.metrics import Counts
from leadsman_extproc.outcomes import LARGE_ERROR, Outcomes
from leadsman_extproc.parquet import as_parquet, columns_of
from leadsman_extproc.rows import MOST_BUDGETS, Hides, Shared, decision_row
from leadsman_extproc.settings import Recording

ONE = dataclasses.make_dataclass("One", ["name", "off", "bound"])
ONES = st.lists(
    st.builds(
        ONE,
        st.text("abcdef", min_size=4, max_size=8),
        st.sampled_from([0.0, 0.3, 1.5]),
        st.sampled_from([None, 2.6, 40.0]),
    ),
    max_size=20,
    unique_by=lambda one: one.name,
)


def request(name="r", **wishes):
    keys = {16: np.arange(4, dtype=np.uint64)}
    return Request(
        id=RequestId(name), model="m", prompt_tokens=70, arrived_at=1.0, keys=keys, **wishes
    )


class Known:
    """A worker on which every request waits 2 s, and takes 1 s."""

    worker, endpoint, ready = WorkerId("a"), "a:1", True

    def price(self, request, now):
        return Price(
            worker=self.worker,
            queue_wait=2.0,
            own_prefill=1.0,
            cached_tokens=32,
            queued_tokens=500,
            queued_requests=1,
        )

    def predict(self, price, confidence, now):
        return Prediction(
            price=price,
            confidence=confidence,
            queue_wait_bound=2.5,
            ttft_bound=3.5,
            curve="own",
            trust=Trust.LIVE,
            trust_reason="history is complete",
            state_age=0.1,
            block_size=16,
        )


def decided(asked, **budget):
    """Decide by the real policy on that one worker."""
    candidates = Candidates(
        workers=[Known()],
        cached=np.array([32]),
        own_floors=np.array([0.9]),
        wait_floors=np.array([1.9]),
        measured=np.array([True]),
        idle_since=np.array([np.inf]),
    )
    return decide(asked, candidates, Budget(**budget), 1.0, Random(3))


def play(kept, asked, decision, *, ttft=3.0, at=1.0):
    """Hand a decision in, and where it was admitted, its end after so long a first token."""
    kept.decided(asked, decision, at)
    if isinstance(decision, Admitted):
        grants = Grants(emit=lambda record: None, on_end=kept.ended)
        grant = grants.open(asked, decision, at)
        grants.see(grant, 1, at + ttft)
        usage = Usage(cached_tokens=32, completion_tokens=3)
        grants.end(grant, Outcome.FINISHED, at + ttft + 1.0, usage)


def lines(folder, kind):
    return read(folder / f"{kind}.jsonl")


def read(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_rows_have_the_columns_that_are_said_of_them():
    assert list(Decided.__struct_fields__) == list(DECISIONS)
    assert list(Served.__struct_fields__) == list(OUTCOMES)


def test_a_decision_is_written_with_all_that_it_was_made_of():
    asked = request(max_queue_wait=30.0, waited=4.0)

    made = decision_row(asked, decided(asked), 1.0, Shared(), epoch=100.0)
    line = encoder().encode(made)

    row = msgspec.json.decode(line)
    [candidate] = row["decision"]["candidates"]
    assert (row["time"], row["allowed_queue_wait"], row["allowed_ttft"]) == (101.0, 26.0, None)
    assert (candidate["price"]["queue_wait"], candidate["queue_wait_bound"]) == (2.0, 2.5)
    assert (candidate["curve"], candidate["trust"], candidate["state_age"]) == ("own", "live", 0.1)
    assert row["decision"]["budget"]["name"] == "default"
    survey = row["decision"]["survey"]
    assert (survey["workers"], survey["cached"], survey["held"]) == (["a"], [32], 32)


@pytest.mark.parametrize("bound", [None, 1.0, 40.0])
@pytest.mark.parametrize("mode", ["enforce", "shadow", "off"])
def test_a_row_says_all_that_the_decision_says(bound, mode):
    shared, encode = Shared(), encoder().encode
    asked = request(max_queue_wait=bound)

    for confidence in (0.9, 0.95, 0.9):
        decision = decided(asked, confidence=confidence, mode=mode)
        row = decision_row(asked, decision, 1.0, shared)

        told = msgspec.json.decode(encode(row.decision))
        if isinstance(decision, Admitted):  # its prediction is a candidate's
            [told["prediction"]] = [
                one for one in told["candidates"] if one["price"]["worker"] == told["worker"]
            ]
        assert told == msgspec.json.decode(encode(decision))


def test_a_decision_is_written_with_every_field_that_it_has_but_no_prediction_twice():
    names = [one.name for one in dataclasses.fields(Admitted)]
    names.remove("prediction")

    assert list(Sent.__struct_fields__) == names


def test_no_budget_is_taken_for_another_that_was_where_it_is():
    shared, encode = Shared(), encoder().encode

    for number in range(3 * MOST_BUDGETS):
        budget = Budget(name=f"b{number % 700}")
        assert encode(shared.budget(budget)) == encode(budget)


@settings(max_examples=40, deadline=None)
@given(ONES, st.sampled_from([0.1, 0.5, 1.0]))
def test_of_ordinary_requests_a_share_is_kept_and_of_telling_ones_all(
    tmp_path_factory, ones, share
):
    folder = tmp_path_factory.mktemp("kept")

    with Outcomes(counts=Counts(), folder=folder, recording=Recording(share=share)) as kept:
        for one in ones:
            asked = request(one.name, max_queue_wait=one.bound)
            play(kept, asked, decided(asked), ttft=3.0 + one.off)

    decisions, outcomes = lines(folder, "decisions"), lines(folder, "outcomes")
    refused = {row["request"] for row in decisions if row["kind"] == "refused"}
    telling = {
        one.name
        for one in ones
        if one.off > LARGE_ERROR or (one.bound == 2.6 and 2.0 + one.off > 2.6)
    }
    sampled = {one.name for one in ones if zlib.crc32(one.name.encode()) < share * 2**32}
    assert not refused
    assert sorted(row["request"] for row in decisions) == sorted(telling | sampled)
    weights = {name: 1.0 if name in telling else 1.0 / share for name in telling | sampled}
    assert {row["request"]: row["weight"] for row in outcomes} == weights


def test_every_refusal_is_kept_and_a_probe_stands_for_those_that_were_not_probed(tmp_path):
    late = request("late", max_queue_wait=1.0)
    probe = request("probe", max_queue_wait=1.0)

    with Outcomes(counts=Counts(), folder=tmp_path, recording=Recording(share=1e-9)) as kept:
        play(kept, late, decided(late))
        play(kept, probe, decided(probe, probes=1.0))

    first, second = lines(tmp_path, "decisions")
    [outcome] = lines(tmp_path, "outcomes")
    assert (first["kind"], first["reason"]) == ("refused", "would_wait_too_long")
    assert (second["kind"], second["because"]) == ("admitted", "probe")
    assert (outcome["set_aside"], outcome["weight"]) == ("would_wait_too_long", 1.0)


@pytest.mark.parametrize(("names", "is_told"), [("hashed", False), ("plain", True)])
def test_who_asked_is_told_only_where_that_is_wanted(tmp_path, names, is_told):
    asked = request(tenant="acme", session="chat-of-jane")
    recording = Recording(names=names)

    with Outcomes(counts=Counts(), folder=tmp_path, recording=recording, key=b"k") as kept:
        play(kept, asked, decided(asked))

    written = (tmp_path / "decisions.jsonl").read_text() + (tmp_path / "outcomes.jsonl").read_text()
    assert ("acme" in written, "jane" in written) == (is_told, is_told)
    assert '"tenant":null' not in written


def test_a_name_has_one_hash_under_a_key_and_another_under_another():
    ours, ours_again, theirs = Hides(key=b"a"), Hides(key=b"a"), Hides(key=b"b")

    assert ours("acme") == ours_again("acme") != theirs("acme")
    assert ours(None) is None


def test_a_full_file_becomes_parquet_that_says_the_same(tmp_path):
    names = [f"r{number}" for number in range(60)]
    recording = Recording(form="parquet", file_bytes=20_000)

    for life in (names[:40], names[40:]):
        with Outcomes(counts=Counts(), folder=tmp_path, recording=recording) as kept:
            for name in life:
                play(kept, request(name), decided(request(name)))

    parquet = sorted(tmp_path.glob("decisions-*.parquet"))
    assert parquet
    rows = duckdb.execute(
        "SELECT request, prompt_tokens, decision->>'$.worker' FROM read_parquet($files)",
        {"files": [str(path) for path in parquet]},
    ).fetchall()
    left = [row["request"] for path in tmp_path.glob("decisions*.jsonl") for row in read(path)]
    assert sorted([name for name, _, _ in rows] + left) == sorted(names)
    assert {(tokens, worker) for _, tokens, worker in rows} == {(70, "a")}


def test_no_full_file_takes_the_name_of_one_of_an_earlier_life(tmp_path):
    names = [f"r{number}" for number in range(5)]

    for name in names:
        with Outcomes(counts=Counts(), folder=tmp_path, recording=Recording(file_bytes=1)) as kept:
            play(kept, request(name), decided(request(name)))

    full = list(tmp_path.glob("decisions-*.jsonl"))
    assert sorted(row["request"] for path in full for row in read(path)) == names


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    path = tmp_path / "outcomes-1.jsonl"
    path.write_text('{"request":"a","ttft":1.5}\n{"request":"b","tt')

    made = as_parquet(path)

    rows = duckdb.execute("SELECT request, ttft FROM read_parquet($f)", {"f": str(made)}).fetchall()
    assert (rows, path.exists()) == ([("a", 1.5)], False)
    assert columns_of(made) is OUTCOMES


def test_what_cannot_be_rewritten_stays_and_is_tried_once(tmp_path):
    lines_, in_the_way = tmp_path / "outcomes-1.jsonl", tmp_path / "outcomes-1.parquet.half"
    lines_.write_text('{"request":"a"}\n')
    in_the_way.mkdir()
    full = FullFiles(tmp_path, "parquet", None)

    for _ in range(2):
        full.tend()
        full.close()

    assert (full.failed, lines_.exists()) == (1, True)


def test_what_cannot_be_rewritten_is_counted_while_records_are_kept(tmp_path):
    (tmp_path / "outcomes-1.jsonl").write_text('{"request":"a"}\n')
    (tmp_path / "outcomes-1.parquet.half").mkdir()
    counts = Counts()

    with Outcomes(counts=counts, folder=tmp_path, recording=Recording(form="parquet")):
        give_up = time.monotonic() + 60
        while not counts.journal_failed and time.monotonic() < give_up:
            time.sleep(0.02)
        counted = counts.journal_failed

    assert (counted, counts.journal_failed) == (1, 1)


def test_of_full_files_the_oldest_go_where_they_are_too_much(tmp_path):
    for number in range(4):
        (tmp_path / f"decisions-{number}.jsonl").write_bytes(b"x" * 100)
    (tmp_path / "decisions.jsonl").write_bytes(b"x" * 1000)

    FullFiles(tmp_path, "jsonl", 250).tend()

    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["decisions-2.jsonl", "decisions-3.jsonl", "decisions.jsonl"]


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"most_bytes": 0}])
def test_what_cannot_be_meant_is_said(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recording(**wrong)


def test_a_refusal_without_a_worker_has_a_row_too():
    refused = Refused(
        request=RequestId("r"),
        reason=Reason.NO_ENDPOINT,
        status=503,
        retry_after=5.0,
        should_retry=True,
        budget=Budget(),
    )

    row = decision_row(request(), refused, 1.0, Shared())

    assert (row.kind, row.worker, row.reason) == ("refused", None, Reason.NO_ENDPOINT)
