"""Recorded decisions, explained and decided again: by those of a run in virtual time."""

from itertools import islice
from random import Random

import msgspec
import pytest
from leadsman.budget import Budget
from leadsman.request import ENDLESS
from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import offers
from leadsman_bench.scenario import workers
from leadsman_bench.seeing import explain, grade_command, replay
from leadsman_bench.seeing.recorded import row_of
from leadsman_bench.seeing.records import open_records
from leadsman_bench.seeing.virtual_records import Recorded
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.virtual import VirtualFleet
from leadsman_extproc import explaining
from leadsman_extproc.decided import Row
from leadsman_extproc.metrics import Counts
from leadsman_extproc.outcomes import Outcomes

COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The records of a burst on three workers, some of which are refused."""
    made, grades = tmp_path_factory.mktemp("records"), Grades()
    specs = workers()[:3]
    traffic = islice(generate(bundled_model(), requests_per_s=4.0, seed=3), COUNT)
    sizes = [spec.settings.block_size for spec in specs]
    with Outcomes(counts=Counts(), folder=made) as outcomes:
        picker = LivePicker(Budget(max_queue_wait=5.0), Random(3))
        recorded = Recorded(picker, grades, outcomes)
        fleet = VirtualFleet(specs, recorded, recorded, seed=3)
        offered = offers(traffic, block_sizes=sizes, rng=Random(3))
        for _ in fleet.run(offered, iter(())):
            pass
    return made


def decided_again(folder, **changes):
    with open_records([folder], threads=1) as database:
        return replay.replay(database, changes)


def read(folder):
    lines = (folder / "decisions.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in lines]


def explained(folder, request, capsys):
    assert explain.main([request, str(folder)]) == 0
    return capsys.readouterr().out


def test_by_the_same_code_and_budget_every_decision_comes_out_as_it_was(folder):
    compared = decided_again(folder)

    assert (compared.decided, compared.same) == (COUNT, COUNT), compared.differences


def test_what_no_bound_keeps_out_is_let_in(folder):
    compared = decided_again(folder, max_queue_wait=None, overload=None)

    refused = [row for row in read(folder) if row["kind"] == "refused"]
    own_bounds = [row for row in refused if row["max_queue_wait"] is not None]
    now_sent = sum(n for (then, now), n in compared.moves.items() if now == "sent" != then)
    assert now_sent == len(refused) - len(own_bounds)


def test_shadow_mode_refuses_nobody_again(folder):
    compared = decided_again(folder, mode="shadow")

    assert not any(now.startswith("refused") for _, now in compared.moves)


def test_every_decision_can_be_explained_in_a_screen(folder, capsys):
    for row in read(folder):
        told = explained(folder, row["request"], capsys)

        lines = told.splitlines()
        assert max(map(len, lines)) <= explain.WIDTH
        assert len(lines) <= 32
        assert row["request"] in lines[0]
        if row["kind"] == "admitted":
            assert f"Sent to {row['worker']}" in told
            assert "chosen" in told
        else:
            assert f"Refused with {row['decision']['status']}" in told


PREDICTION = {
    "confidence": 0.9,
    "queue_wait_bound": 9.0,
    "ttft_bound": 12.0,
    "curve": "own",
    "trust": "live",
    "trust_reason": "history is complete",
    "state_age": 0.2,
    "weights": [0.0, 1e-3, 0.0, 0.0, 0.0, 0.0],
    "block_size": 16,
}


def price(worker, wait):
    return {
        "worker": worker,
        "queue_wait": wait,
        "own_prefill": 2.0,
        "cached_tokens": 512,
        "queued_tokens": 9000,
        "queued_requests": 4,
    }


def refused_row(**more):
    values = dict.fromkeys(Row.__struct_fields__)
    decision = {
        "status": 429,
        "retry_after": 3.0,
        "bound": 6.0,
        "predicted_wait": 9.0,
        "budget": {"name": "b", "max_queue_wait": 6.0},
        "candidates": [
            PREDICTION | {"price": price("a:1", 5.0)},
            PREDICTION | {"price": price("b:1", 8.0), "queue_wait_bound": 11.0},
        ],
    }
    return row_of(
        values
        | {"request": "r", "at": 1.0, "kind": "refused", "reason": "would_wait_too_long"}
        | {"model": "m", "prompt_tokens": 2000, "decision": msgspec.json.encode(decision)}
        | more
    )


def test_a_refusal_says_which_bound_and_which_wait_would_have_let_it_in():
    row = refused_row()

    verdict, reasons = explaining.verdict(row), " ".join(explaining.what_if(row))

    assert "At best 9.00 s, allowed are 6.00 s; come back in 3.00 s" in verdict
    assert "A bound of 9.00 s instead of 6.00 s would have sent it to a:1" in reasons
    assert "so would 3.00 s less ahead" in reasons
    assert "uncertainty" in reasons


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (None, None, ""),
        (0, 9000, ", at most 9,000 of answer"),
        (50, None, ", at least 50 of answer"),
        (50, 9000, ", at least 50 of answer, at most 9,000 of answer"),
        (9000, 9000, ", exactly 9,000 of answer"),
        (ENDLESS, None, ", an answer until its context is full"),
    ],
)
def test_what_was_known_of_the_answer_is_said(least, most, said):
    row = refused_row(min_tokens=least, max_tokens=most)

    assert explaining.explained(row, None).asked == f"m, 2,000 prompt tokens{said}"


def test_what_the_cache_spares_is_its_tokens_at_the_speed_of_the_price():
    [first, _] = refused_row().decision.candidates

    assert explaining.spared(first) == pytest.approx(0.512)


HOSTILE = "[/bold][link=x]\x1b]0;owned\x07\x1b[2J\u202e<script>"
SHOWN = "[/bold][link=x]\ufffd]0;owned\ufffd\ufffd[2J\ufffd<script>"


def test_what_others_wrote_is_printed_as_it_reads(folder, tmp_path, capsys):
    row = next(one for one in read(folder) if one["kind"] == "admitted")
    name = f"q{HOSTILE}"
    (tmp_path / "decisions.jsonl").write_bytes(msgspec.json.encode(row | {"request": name}) + b"\n")
    ends = (folder / "outcomes.jsonl").read_bytes().splitlines()
    end = next(one for one in map(msgspec.json.decode, ends) if one["request"] == row["request"])
    hostile = end | {"request": name, "model": HOSTILE, "engine_said": HOSTILE}
    (tmp_path / "outcomes.jsonl").write_bytes(msgspec.json.encode(hostile) + b"\n")

    told = explained(tmp_path, name, capsys)
    assert grade_command.main([str(tmp_path)]) == 0
    graded = capsys.readouterr().out

    assert told.startswith(f"q{SHOWN}  ")
    assert f"The engine said: {SHOWN}" in told
    assert f"q{SHOWN}"[:27] in graded
    assert not {"\x1b", "\x07", "\u202e"} & set(told + graded)


def test_a_request_that_nobody_decided_on_is_said_to_be_unknown(folder, capsys):
    assert explain.main(["nobody", str(folder)]) == 1
    assert "'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_wait: 3", "no budget has a field max_wait"),
        ("confidence: 7", "confidence"),
        ("- 1", "not the fields of a budget"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_said_with_its_file(
    folder, tmp_path, capsys, text, problem
):
    budget = tmp_path / "budget.yaml"
    budget.write_text(text)

    assert replay.main([str(folder), "--budget", str(budget)]) == 2
    assert problem in capsys.readouterr().err
    assert replay.main([str(tmp_path)]) == 1
