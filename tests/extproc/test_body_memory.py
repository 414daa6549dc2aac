"""A body decoded from where it differs is decoded as a whole, whatever stands in it."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.body_memory import LONG, BodyMemory

WHOLE = msgspec.json.Decoder(dict)
TEXTS = st.sampled_from(["", "a", '{"role": "user"}', "]}", '","messages":[', "ü\n\\", '{"role"'])
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"])},
    optional={"content": TEXTS | st.lists(st.fixed_dictionaries({"text": TEXTS}), max_size=2)},
)
FIELDS = st.dictionaries(
    st.sampled_from(["model", "max_tokens", "stop", "messages", "", "tools"]),
    TEXTS | st.integers() | st.lists(MESSAGES, max_size=2),
    max_size=3,
)
LAYOUTS = st.sampled_from([None, (",", ":"), (" , ", ":\n")])


def body(before, messages, after, layout):
    """Write a body whose fields may be given twice, in the order given."""
    fields = [*before.items(), ("messages", messages), *after.items()]
    comma, colon = layout or (", ", ": ")
    said = (f"{json.dumps(k)}{colon}{json.dumps(v, separators=layout)}" for k, v in fields)
    return ("{" + comma.join(said) + "}").encode()


@given(
    FIELDS,
    LAYOUTS,
    st.booleans(),
    st.lists(st.tuples(st.lists(MESSAGES, max_size=4), FIELDS, st.booleans()), max_size=8),
)
def test_whatever_was_decoded_before_a_body_is_decoded_as_a_whole(before, layout, content, turns):
    memory = BodyMemory()
    long = {"content": "x" * LONG, "role": "user"} if content else {"role": "x" * LONG}
    talk = [long]
    for said, after, stays in turns:
        raw = body(before, [*talk, *said], after, layout)
        assert memory.decode(raw) == WHOLE.decode(raw)
        assert list(memory.decode(raw)) == list(WHOLE.decode(raw))
        talk = [*talk, *said] if stays else talk
        memory.check()


@given(st.integers(0, 3), st.integers(1, 40))
def test_a_body_that_breaks_off_is_refused_as_a_whole_is(turn, missing):
    memory = BodyMemory()
    talk = [{"role": "user", "content": "x" * LONG}, *[{"role": "user", "content": "y"}] * turn]
    whole = body({}, talk, {}, None)
    memory.decode(whole)
    broken = whole[:-missing]

    with pytest.raises(msgspec.DecodeError) as ours:
        memory.decode(broken)
    with pytest.raises(msgspec.DecodeError) as theirs:
        WHOLE.decode(broken)

    assert str(ours.value) == str(theirs.value)


def test_of_a_next_turn_only_what_is_new_is_decoded():
    memory = BodyMemory()
    talk = [{"role": "user", "content": "x" * LONG}, {"role": "assistant", "content": "y"}]
    first = memory.decode(body({"model": "m"}, talk, {}, None))

    talk = [*talk, {"role": "user", "content": "z"}]
    second = memory.decode(body({"model": "m"}, talk, {"n": 1}, None))

    assert second == {"model": "m", "messages": talk, "n": 1}
    assert second["messages"][0] is first["messages"][0]


def test_what_is_remembered_is_bounded():
    memory = BodyMemory(max_bytes=3 * LONG)

    for letter in "abcdef":
        talk = [{"role": "user", "content": letter * LONG}, {"role": "user", "content": "z"}]
        memory.decode(body({}, talk, {}, None))
        memory.check()

    assert memory.bytes_held > 0
