from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_bench.conversation import bundled_model, draw, generate, warped
from leadsman_bench.fit import measure, turns_of
from leadsman_bench.traces import (
    TraceError,
    TraceRequest,
    bundled,
    dump,
    families,
    parse,
    sample_families,
    scaled,
    spread,
)


def row(at, *pieces, tokens=None):
    return TraceRequest(
        at=at,
        input_tokens=tokens or 512 * len(pieces),
        output_tokens=10,
        pieces=pieces,
    )


def test_the_bundled_rows_are_whole_and_in_order():
    rows = bundled()

    earlier_never_later = all(a.at <= b.at for a, b in pairwise(rows))

    assert 900 <= len(rows) <= 1100
    assert earlier_never_later
    assert all(r.pieces[0] == 0 for r in rows)


def test_the_bundled_rows_keep_families_of_turns():
    statistics = measure(turns_of(bundled()))

    assert statistics.follow_up_share > 0.25
    assert statistics.reused_share > 0.2


def test_written_rows_read_back_the_same():
    rows = bundled()[:50]

    again = parse(dump(rows), source="test")

    assert again == rows


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param(b"{", "truncated", id="malformed"),
        pytest.param(
            b'{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[0]}',
            "600 tokens are 2 pieces of 512, but hash_ids has 1",
            id="ids-do-not-fit",
        ),
        pytest.param(
            b'{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}',
            "at least 1",
            id="empty",
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line(line, problem):
    good = b'{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[0]}\n'

    with pytest.raises(TraceError, match=r"trace\.jsonl, line 2: .*") as error:
        parse(good + line, source="trace.jsonl")

    assert problem in str(error.value)


@given(st.sampled_from([16, 32, 64, 96, 512]))
def test_scaling_keeps_which_pieces_a_prompt_has(piece_tokens):
    rows = bundled()[:100]

    shorter = scaled(rows, piece_tokens=piece_tokens, time=0.1)

    for before, after in zip(rows, shorter, strict=True):
        assert after.pieces == before.pieces
        assert -(-after.input_tokens // piece_tokens) == len(after.pieces)
        assert len(after.full_pieces) >= len(before.full_pieces)
        assert after.at == pytest.approx(before.at * 0.1)


def test_spreading_moves_no_request_out_of_its_tick():
    rows = [row(3.0 * tick, tick, 100 + n) for tick in range(20) for n in range(5)]

    moved = spread(rows, rng=Random(1))

    ticks = {r.pieces: r.at for r in rows}
    assert all(0 <= r.at - ticks[r.pieces] < 3 for r in moved)
    assert [r.at for r in moved] == sorted(r.at for r in moved)


def test_a_family_is_what_shares_more_than_the_common_start():
    rows = [row(0, 0, 1), row(1, 0, 2), row(2, 0, 1, 3), row(3, 0), row(4, 0, 2, 4)]

    found = list(families(rows))

    assert found == [0, 1, 0, 3, 1]


def test_a_sample_holds_whole_families_that_start_in_the_window():
    rows = [row(0, 0, 1), row(5, 0, 1, 2), row(6, 0, 3), row(7, 0, 4), row(8, 0, 3, 5)]

    kept = sample_families(rows, start=5, end=10, every=1)

    assert [(r.at, r.pieces) for r in kept] == [(1, (0, 1)), (2, (0, 2)), (3, (0, 1, 3))]


def test_generated_conversations_have_the_traces_statistics():
    model = bundled_model()

    found = measure(turns_of(list(islice(generate(model, requests_per_s=3.4, seed=3), 24_000))))

    real = model.statistics
    assert found.requests_per_s == pytest.approx(real.requests_per_s, rel=0.07)
    assert found.mean_input_tokens == pytest.approx(real.mean_input_tokens, rel=0.1)
    assert found.mean_output_tokens == pytest.approx(real.mean_output_tokens, rel=0.05)
    assert found.reused_share == pytest.approx(real.reused_share, abs=0.05)
    assert found.follow_up_share == pytest.approx(real.follow_up_share, abs=0.03)


def test_generated_conversations_depend_on_the_seed_alone():
    model = bundled_model()

    first, second, other = (
        list(islice(generate(model, requests_per_s=10, seed=seed), 200)) for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


@given(st.integers(0, 2**32))
def test_generated_requests_come_in_order_and_fit_their_pieces(seed):
    model = bundled_model()

    found = list(islice(generate(model, requests_per_s=5, seed=seed), 60))

    assert all(a.at <= b.at for a, b in pairwise(found))
    assert all(len(r.pieces) == -(-r.input_tokens // 512) for r in found)
    assert all(1 <= r.input_tokens <= model.longest_input for r in found)


def test_warping_moves_arrivals_and_nothing_else():
    model = bundled_model()
    plain = list(islice(generate(model, requests_per_s=5, seed=1), 20))

    moved = list(warped(iter(plain), lambda at: at * 2))

    assert [r.at for r in moved] == [r.at * 2 for r in plain]
    assert [r.pieces for r in moved] == [r.pieces for r in plain]


def test_a_quantile_between_two_is_linear():
    assert draw([0.0, 10.0, 30.0], 0.75) == 20.0
    assert draw([0.0, 10.0, 30.0], 1.0) == 30.0
    assert draw([0.0, 10.0, 30.0], 0.0) == 0.0
