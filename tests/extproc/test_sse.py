"""Reading responses: the same result however the network cuts them."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.sse import MOST_SAID, ResponseScan


def data(event: object, end: str = "\n\n") -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}{end}"


def chat(delta: dict[str, object] | None, **more: object) -> str:
    return data({"choices": [] if delta is None else [{"delta": delta}], **more})


def named(kind: str, end: str = "\n\n", **more: object) -> str:
    return f"event: {kind}{end[: len(end) // 2]}" + data({"type": kind, **more}, end)


CHAT_STREAM = (
    chat({"role": "assistant", "content": ""}, usage=None)
    + chat({"content": "Grüße\n"})
    + ": keep alive\n\n"
    + chat({"reasoning": "…"})
    + chat({"tool_calls": [{"index": 0}]})
    + chat({"content": ""}, finish_reason="stop")
    + chat(
        None,
        usage={
            "prompt_tokens": 90,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 64},
        },
    )
    + "data: [DONE]\n\n"
)
MESSAGES_STREAM = (
    named("message_start", message={"usage": {"input_tokens": 26, "cache_read_input_tokens": 64}})
    + named("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + named("ping")
    + named("content_block_delta", delta={"type": "text_delta", "text": "Hé"}, end="\r\n\r\n")
    + named("content_block_delta", delta={"type": "thinking_delta", "thinking": "a"})
    + named("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"})
    + named("content_block_stop", index=0)
    + named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
    + named("message_stop")
)
COMPLETION_STREAM = (
    data({"choices": [{"text": ""}]})
    + data({"choices": [{"text": "a"}, {"text": "b"}], "usage": {"completion_tokens": 3}})
    + data({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}})
    + "data: [DONE]"
)


def responds(kind: str, **more: object) -> str:
    return named(f"response.{kind}", **more)


RESPONSES_USAGE = {
    "input_tokens": 90,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 5,
    "total_tokens": 95,
}
RESPONSES_STREAM = (
    responds("created", response={"status": "in_progress", "usage": None})
    + responds("output_item.added", item={"type": "reasoning"})
    + responds("reasoning_text.delta", delta="hm")
    + responds("content_part.added", part={"type": "output_text", "text": ""})
    + responds("output_text.delta", delta="")
    + responds("output_text.delta", delta="Hé", logprobs=[])
    + responds("function_call_arguments.delta", delta="{}")
    + responds("output_text.done", text="Hé")
    + responds("completed", response={"status": "completed", "usage": RESPONSES_USAGE})
)
TOKENS_STREAM = (
    data({"request_id": "r", "choices": [{"index": 0, "token_ids": []}]})
    + data({"request_id": "r", "choices": [{"index": 0, "token_ids": [7]}]})
    + data({"request_id": "r", "choices": [], "usage": {"prompt_tokens": 9}})
    + "data: [DONE]\n\n"
)


def native(text: str, index: int | None = None, **meta: object) -> str:
    place = {} if index is None else {"index": index}
    return data({"text": text, "output_ids": [], "meta_info": meta, **place})


NATIVE_STREAM = (
    native("", prompt_tokens=9, completion_tokens=0, cached_tokens=4, finish_reason=None)
    + native("a", prompt_tokens=9, completion_tokens=1, cached_tokens=4, finish_reason=None)
    + native("ab", prompt_tokens=9, completion_tokens=2, cached_tokens=4, finish_reason={})
    + "data: [DONE]\n\n"
)
NATIVE_BATCH = (
    native("a", 0, prompt_tokens=9, completion_tokens=1, cached_tokens=4)
    + native("b", 1, prompt_tokens=5, completion_tokens=1, cached_tokens=0)
    + native("bc", 1, prompt_tokens=5, completion_tokens=2, cached_tokens=0)
    + "data: [DONE]\n\n"
)
STREAMS = [
    CHAT_STREAM,
    MESSAGES_STREAM,
    COMPLETION_STREAM,
    RESPONSES_STREAM,
    TOKENS_STREAM,
    NATIVE_STREAM,
    NATIVE_BATCH,
]


STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


def scanned(chunks: Sequence[bytes], content_type: str = STREAM) -> ResponseScan:
    scan = ResponseScan(content_type)
    for chunk in chunks:
        scan.feed(chunk)
    scan.finish()
    return scan


def seen(scan: ResponseScan) -> tuple[object, ...]:
    return (
        scan.has_content,
        scan.content_events,
        scan.usage.prompt_tokens,
        scan.usage.cached_tokens,
        scan.usage.completion_tokens,
        scan.is_done,
        scan.error,
        scan.unread_events,
    )


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[bytes]:
    raw = text.encode()
    ends = sorted({0, len(raw), *draw(st.lists(st.integers(0, len(raw)), max_size=9))})
    return [raw[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("text", STREAMS)
@given(draw=st.data())
def test_where_the_network_cuts_a_stream_changes_nothing(text, draw):
    whole = scanned([text.encode()])

    pieces = scanned(draw.draw(cut(text)))

    assert seen(pieces) == seen(whole)


@pytest.mark.parametrize("text", STREAMS)
def test_a_stream_byte_by_byte_reads_the_same(text):
    pieces = scanned([bytes([byte]) for byte in text.encode()])

    assert seen(pieces) == seen(scanned([text.encode()]))


def test_a_chat_stream_is_read_to_its_usage():
    scan = scanned([CHAT_STREAM.encode()])

    assert seen(scan) == (True, 3, 90, 64, 5, True, None, 0)


def test_an_anthropic_stream_counts_cached_tokens_into_the_prompt():
    scan = scanned([MESSAGES_STREAM.encode()])

    assert seen(scan) == (True, 3, 90, 64, 5, True, None, 0)


def test_a_completion_stream_without_a_last_blank_line_is_read_to_its_end():
    scan = scanned([COMPLETION_STREAM.encode()])

    assert seen(scan) == (True, 1, 7, None, 4, True, None, 0)


def test_a_responses_stream_counts_deltas_alone_and_is_read_to_its_usage():
    scan = scanned([RESPONSES_STREAM.encode()])

    assert seen(scan) == (True, 3, 90, 64, 5, True, None, 0)


def test_tokens_out_are_content_without_text():
    scan = scanned([TOKENS_STREAM.encode()])

    assert seen(scan)[:4] == (True, 1, 9, None)


def test_sglangs_own_stream_says_all_so_far_with_each_piece():
    scan = scanned([NATIVE_STREAM.encode()])

    assert seen(scan) == (True, 2, 9, 4, 2, True, None, 0)


def test_sglangs_own_stream_of_several_prompts_is_added_up():
    scan = scanned([NATIVE_BATCH.encode()])

    assert seen(scan)[2:5] == (14, 4, 3)


def test_usage_of_sglangs_own_answer_is_read_and_of_several_is_not_guessed():
    meta = {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4}
    answer = {"text": 'so "usage": {}', "meta_info": {"id": "x", **meta}, "output_ids": [1]}

    one = scanned([json.dumps(answer).encode()], JSON)
    two = scanned([json.dumps([answer, answer]).encode()], JSON)

    assert seen(one)[2:5] == (9, 4, 2)
    assert seen(two)[2:5] == (None, None, None)


def test_usage_of_a_whole_response_counts_what_was_cached_once():
    answer = {"object": "response", "tools": [], "usage": RESPONSES_USAGE, "user": None}

    scan = scanned([json.dumps(answer).encode()], JSON)

    assert seen(scan)[2:5] == (90, 64, 5)


@pytest.mark.parametrize(("text", "name"), [(RESPONSES_STREAM, None), (CHAT_STREAM, None)])
def test_only_a_response_that_says_its_name_has_one(text, name):
    assert scanned([text.encode()]).response == name


@given(draw=st.data())
def test_a_response_says_how_it_is_gone_on_from_however_it_comes(draw):
    answer = {"id": "resp_a1", "object": "response", "output": [], "usage": RESPONSES_USAGE}
    stream = responds("created", response={"id": "resp_a1"}) + RESPONSES_STREAM

    whole = scanned(draw.draw(cut(json.dumps(answer))), JSON)
    events = scanned(draw.draw(cut(stream)))

    assert (whole.response, events.response) == ("resp_a1", "resp_a1")


def test_an_answer_of_another_api_has_no_name_to_go_on_from():
    answer = {"id": "chatcmpl-1", "choices": [{"text": '{"id":"resp_a1"}'}]}

    assert scanned([json.dumps(answer).encode()], JSON).response is None


def test_usage_in_an_event_whose_beginning_was_not_kept_is_read():
    last = responds("completed", response={"output": "x" * 9000, "usage": RESPONSES_USAGE})
    scan = ResponseScan(STREAM)
    scan.feed(responds("output_text.delta", delta="a").encode())

    scan.resume(last.encode()[-3000:])
    scan.finish()

    assert seen(scan)[2:5] == (90, 64, 5)
    assert scan.unread_events == 0


def content_by_event(text: str) -> Iterator[int]:
    scan = ResponseScan(STREAM)
    for event in text.split("\n\n"):
        yield scan.feed(event.encode() + b"\n\n")


def test_a_role_an_empty_text_and_usage_are_no_content():
    brought = list(content_by_event(CHAT_STREAM))

    assert brought == [0, 1, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        (named("error", error={"type": "overloaded_error", "message": "full"}), True),
        (data({"error": {"message": "full", "type": "x", "code": 503}}), True),
        (data({"object": "error", "message": "full", "code": 429}), True),
        (data({"error": {"message": "full", "type": "BadRequestError", "code": 400}}), False),
        (data({"error": "full"}), False),
        (
            responds("failed", response={"error": {"code": "server_error", "message": "full"}}),
            False,
        ),
        (responds("failed", response={"error": {"code": 503, "message": "full"}}), True),
        (named("error", code="rate_limit_exceeded", message="full"), True),
        (
            native("", finish_reason={"type": "abort", "status_code": 503, "message": "full"}),
            True,
        ),
        (data({"error": {"message": "full", "code": [1]}}), False),
    ],
)
def test_an_error_told_inside_a_stream_is_seen_and_an_overload_is_a_refusal(text, refuses):
    scan = scanned([text.encode()])

    assert (scan.error, scan.refuses) == ("full", refuses)
    assert not scan.has_content


def test_the_usage_of_an_answer_that_is_no_stream_is_read_from_its_end():
    text = 'a text that says "usage": {"prompt_tokens": 1}' * 9000
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}
    answer = {"choices": [{"message": {"content": text}}], "usage": usage, "metrics": None}

    scan = scanned([json.dumps(answer).encode()], JSON)

    assert seen(scan)[1:6] == (0, 9, None, 2, False)


def test_an_answer_of_anthropics_that_is_no_stream_is_read():
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 8}

    scan = scanned([json.dumps({"type": "message", "usage": usage}).encode()], JSON)

    assert seen(scan)[2:5] == (11, 8, 2)


@pytest.mark.parametrize("content_type", [STREAM, JSON])
@given(raw=st.binary() | st.binary().map(lambda b: b'data: "usage":' + b + b"\n\n"))
def test_no_bytes_break_the_scan(raw, content_type):
    scan = scanned([raw], content_type)

    assert scan.usage.prompt_tokens is None


def test_of_an_error_no_more_is_kept_than_a_screen_shows():
    scan = scanned([data({"error": {"message": "full" * MOST_SAID, "code": 503}}).encode()])

    assert (scan.error, scan.refuses) == (("full" * MOST_SAID)[:MOST_SAID], True)
