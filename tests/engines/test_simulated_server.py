import asyncio
import contextlib
import json
from dataclasses import replace
from random import Random

import anthropic
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio
from aiohttp import ClientSession, web
from leadsman_engines.engine_pages import connects_to
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.generation import FrontEnd
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.server import EngineServer
from leadsman_engines.simulated.text import ByteTokenizer

SMALL = presets()["qwen2.5-0.5b-a10g"]
MODEL = SMALL.settings.model
SPEED = 40.0


class Served:
    """One engine behind a real port, and a client of it."""

    def __init__(self, live, publisher, runner, client):
        self.live = live
        self.publisher = publisher
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = client

    async def post(self, path, body, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | headers
        async with self.client.post(self.url + path, data=raw, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path):
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def stream(self, path, body, **headers):
        async with self.client.post(self.url + path, json=body, headers=headers) as response:
            text = await response.text()
        return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


@contextlib.asynccontextmanager
async def serving(*, front=None, arrays=False, max_queued=None, speed=SPEED, **overrides):
    limits = replace(SMALL.settings, **overrides)
    async with contextlib.AsyncExitStack() as stack:
        publisher = EventPublisher("127.0.0.1", as_arrays=arrays)
        stack.push_async_callback(publisher.close)
        engine = SimulatedEngine(limits, SMALL.hardware, Random(1))
        live = LiveEngine(engine, ByteTokenizer(), publisher, speed=speed, max_queued=max_queued)
        stack.callback(live.close)
        app = EngineServer(live, publisher, front or FrontEnd(), Random(2)).app()
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = await stack.enter_async_context(ClientSession())
        yield Served(live, publisher, runner, client)


def chat(text="hello", output=5, **more):
    said = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": said, "vllm_xargs": {"output_tokens": output}} | more


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def subscribed(served):
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.subscribe(b"")
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(served.publisher.endpoint)
    await monitor.recv_multipart()
    await asyncio.wait_for(until_subscribed(served, socket), 5)
    try:
        yield socket
    finally:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(0)
        context.term()


async def until_subscribed(served, socket):
    number = 0
    while not await socket.poll(20):
        number += 1
        await served.post("/v1/completions", {"prompt": [number] * 16, "max_tokens": 1})
    while await socket.poll(50):
        await socket.recv_multipart()


async def test_a_chat_stream_has_role_tokens_reason_usage_and_end():
    async with serving() as served:
        body = chat(output=4, stream=True, stream_options={"include_usage": True})

        *chunks, done = await served.stream("/v1/chat/completions", body)

        chunks = [json.loads(chunk) for chunk in chunks]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert done == "[DONE]"
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert [len(delta["content"]) for delta in deltas[1:]] == [1, 1, 1, 0]
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["usage"]["completion_tokens"] == 4
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ({"min_tokens": 400, "max_tokens": 500}, 400, 500),
        ({"min_tokens": 400, "max_tokens": 400}, 400, 400),
        ({"ignore_eos": True, "max_tokens": 300}, 300, 300),
    ],
)
async def test_an_answer_does_not_end_before_it_may(asked, least, most):
    async with serving(front=FrontEnd(mean_output=2), speed=1e6) as served:
        _, answer = await served.post("/v1/completions", {"prompt": [1, 2, 3]} | asked)

        told = answer["usage"]["completion_tokens"]
        assert least <= told <= most


async def test_no_usage_is_streamed_unless_asked_for_or_forced():
    async with serving() as served, serving(front=FrontEnd(force_include_usage=True)) as forced:
        body = chat(stream=True)

        silent = await served.stream("/v1/chat/completions", body)
        told = await forced.stream("/v1/chat/completions", body)

        assert "usage" not in "".join(silent)
        assert "usage" in told[-2]


async def test_the_second_request_of_a_prefix_reports_what_it_reused():
    async with serving() as served:
        ids = list(range(640))
        for _ in range(2):
            _, answer = await served.post("/v1/completions", {"prompt": ids, "max_tokens": 1})

        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 624


async def test_a_cache_salt_keeps_prefixes_apart():
    async with serving() as served:
        for salt in ("a", "b"):
            body = {"prompt": list(range(640)), "max_tokens": 1, "cache_salt": salt}
            _, answer = await served.post("/v1/completions", body)

        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_next_turn_reuses_the_reply_too():
    async with serving() as served:
        question = [{"role": "user", "content": "x" * 100}]
        body = chat(output=100, max_tokens=100) | {"messages": question}
        _, first = await served.post("/v1/chat/completions", body)
        turn = [*question, first["choices"][0]["message"], {"role": "user", "content": "more"}]

        _, second = await served.post("/v1/chat/completions", body | {"messages": turn})

        used = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert used > first["usage"]["prompt_tokens"] + 64


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [
        ("abc", 1, 3),
        ([1, 2], 1, 2),
        (["abc", "de"], 2, 5),
        ([[1, 2, 3], [4]], 2, 4),
    ],
)
async def test_a_completion_takes_text_ids_and_lists(prompt, choices, tokens):
    async with serving() as served:
        body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True}

        status, answer = await served.post("/v1/completions", body)

        assert status == 200
        assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
        assert all(len(choice["text"]) == 3 for choice in answer["choices"])
        assert answer["usage"]["prompt_tokens"] == tokens


async def test_the_openai_sdk_reads_whole_answers_and_streams():
    async with serving() as served:
        base = served.url + "/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            extra = {"vllm_xargs": {"output_tokens": 6}}
            said = [{"role": "user", "content": "hi"}]

            whole = await client.chat.completions.create(
                model=MODEL, messages=said, extra_body=extra
            )
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=said,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=extra,
            )
            chunks = [chunk async for chunk in stream]
            models = await client.models.list()

    assert whole.usage.completion_tokens == 6
    assert whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 6
    assert len("".join(one.choices[0].delta.content for one in chunks[:-1])) == 5
    assert models.data[0].id == MODEL


async def test_the_anthropic_sdk_reads_whole_messages_and_streams():
    async with serving() as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0)
        async with client:
            asked = {
                "model": MODEL,
                "max_tokens": 7,
                "system": "be short",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "z" * 90}]}],
                "extra_body": {"vllm_xargs": {"output_tokens": 50}},
            }

            whole = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                kinds = [event.type async for event in stream]
                streamed = await stream.get_final_message()

    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert whole.content[0].type == "text"
    assert len(streamed.content[0].text) == 7
    assert streamed.usage.output_tokens == 7
    assert streamed.usage.cache_read_input_tokens > 64
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


async def test_tool_use_comes_back_as_a_tools_message():
    async with serving() as served:
        turns = [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "see", "input": {"x": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a dog"}],
            },
        ]
        tools = [{"name": "see", "description": "looks", "input_schema": {"type": "object"}}]
        body = {"model": MODEL, "max_tokens": 2, "messages": turns, "tools": tools}

        status, answer = await served.post("/v1/messages", body)

        assert status == 200
        assert answer["usage"]["input_tokens"] > len("a dog")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", b"{", 400, "body"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "body"),
        ("/v1/chat/completions", b"[1]", 400, "body"),
        ("/v1/chat/completions", b"[" * 100_000, 400, "body"),
        ("/v1/chat/completions", {"model": MODEL}, 400, "body.messages"),
        ("/v1/chat/completions", chat(model="other"), 404, "model"),
        ("/v1/chat/completions", chat(model=3), 400, "body.model"),
        ("/v1/chat/completions", chat(max_tokens=0), 400, "max_tokens"),
        ("/v1/chat/completions", chat(max_tokens="x"), 400, "body.max_tokens"),
        (
            "/v1/chat/completions",
            chat(stream_options={"include_usage": True}),
            400,
            "stream_options",
        ),
        ("/v1/chat/completions", {"messages": [3]}, 400, "body.messages.0"),
        ("/v1/chat/completions", {"messages": [{"role": "u", "content": 3}]}, 400, None),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "body.prompt"),
        ("/v1/completions", {"prompt": [-1]}, 400, "body.prompt"),
        ("/v1/completions", {"prompt": [1] * 32768}, 400, "input_tokens"),
        ("/tokenize", {}, 400, "prompt"),
    ],
)
async def test_bad_input_is_refused_in_the_apis_shape(path, body, status, param):
    async with serving() as served:
        code, answer = await served.post(path, body)

        assert code == answer["error"]["code"] == status
        assert answer["error"]["message"]
        assert param is None or answer["error"]["param"] == param


async def test_a_bad_message_request_is_refused_in_anthropics_shape():
    async with serving() as served:
        status, answer = await served.post("/v1/messages", {"model": MODEL, "messages": []})

        assert status == 400
        assert answer["type"] == "error"


async def test_a_full_queue_is_refused_with_503():
    async with serving(max_queued=1, speed=0.01) as served:
        first = asyncio.create_task(served.post("/v1/chat/completions", chat()))
        await until(lambda: served.live.engine.queued)

        status, answer = await served.post("/v1/chat/completions", chat())
        first.cancel()

        assert status == 503
        assert answer["error"]["type"] == "ServiceUnavailableError"


async def test_a_client_that_goes_away_aborts_its_request():
    async with serving(speed=1.0) as served:
        body = chat(output=4000, stream=True)
        async with served.client.post(served.url + "/v1/chat/completions", json=body) as response:
            await response.content.readany()
            assert served.live.engine.running == 1

        await until(lambda: not served.live.engine.running)

        assert served.live.counters.aborted == 1
        assert served.live.engine.kv_usage == 0


async def test_a_restart_breaks_streams_off_and_counts_events_from_zero():
    async with serving(speed=1.0) as served:
        body = chat(output=4000, stream=True)
        async with served.client.post(served.url + "/v1/chat/completions", json=body) as response:
            await response.content.readany()
            served.live.restart()
            with pytest.raises(Exception, match=r"payload|closed|reset"):
                await response.read()

        status, _ = await served.post("/v1/chat/completions", chat("y" * 40, output=1))

        assert status == 200
        assert served.publisher._kept[0][0] == bytes(8)


async def test_events_say_what_was_stored_and_by_whom():
    async with serving() as served, subscribed(served) as socket:
        ids = list(range(1000, 1040))
        body = {"prompt": ids, "max_tokens": 1}
        await served.post("/v1/completions", body, **{"x-session-id": "me"})

        topic, _, payload = await asyncio.wait_for(socket.recv_multipart(), 5)

        moment, events, rank = msgspec.msgpack.decode(payload)
        assert topic == b""
        assert rank == 0
        assert moment > 1.7e9
        assert events == [
            {
                "type": "BlockStored",
                "block_hashes": events[0]["block_hashes"],
                "parent_block_hash": None,
                "token_ids": ids[:32],
                "block_size": 16,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None, None],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
                "session_id": "me",
            }
        ]
        assert len(events[0]["block_hashes"]) == 2


async def test_sequence_numbers_have_no_gap():
    async with serving() as served, subscribed(served) as socket:
        for start in (0, 100, 200):
            body = {"prompt": list(range(start, start + 20)), "max_tokens": 1}
            await served.post("/v1/completions", body)

        frames = [await asyncio.wait_for(socket.recv_multipart(), 5) for _ in range(3)]

        numbers = [int.from_bytes(frame[1], "big") for frame in frames]
        assert numbers == list(range(numbers[0], numbers[0] + 3))


async def test_older_engines_events_are_arrays():
    async with serving(arrays=True) as served, subscribed(served) as socket:
        await served.post("/v1/completions", {"prompt": list(range(99, 120)), "max_tokens": 1})

        _, _, payload = await asyncio.wait_for(socket.recv_multipart(), 5)

        _, [event], _ = msgspec.msgpack.decode(payload)
        assert event[0] == "BlockStored"
        assert event[2:8] == [None, list(range(99, 115)), 16, None, "GPU", None]


async def test_each_removed_copy_is_an_event_of_its_own():
    async with (
        serving(num_blocks=32, max_model_len=512) as served,
        subscribed(served) as socket,
    ):
        for start in (0, 1000):
            body = {"prompt": list(range(start, start + 480)), "max_tokens": 1}
            await served.post("/v1/completions", body)

        events = []
        while sum(event["type"] == "BlockStored" for event in events) < 2:
            _, _, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
            events += msgspec.msgpack.decode(payload)[1]

        removed = [event for event in events if event["type"] == "BlockRemoved"]
        assert all(len(event["block_hashes"]) == 1 for event in removed)
        assert len(removed) >= 28


async def test_missed_batches_are_replayed_up_to_an_end_mark():
    async with serving() as served:
        for start in (0, 100, 200):
            body = {"prompt": list(range(start, start + 20)), "max_tokens": 1}
            await served.post("/v1/completions", body)
        context = zmq.asyncio.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(served.publisher.replay_endpoint)

        await dealer.send_multipart([b"", (1).to_bytes(8, "big")])
        answers = [await asyncio.wait_for(dealer.recv_multipart(), 5) for _ in range(3)]
        dealer.close(0)
        context.term()

        assert [int.from_bytes(frames[2], "big", signed=True) for frames in answers] == [1, 2, -1]
        assert answers[0][:2] == [b"", b""]
        assert answers[2][3] == b""


async def test_metrics_tell_load_cache_and_blocks():
    async with serving() as served:
        for _ in range(2):
            await served.post("/v1/completions", {"prompt": list(range(64)), "max_tokens": 1})

        _, page = await served.get("/metrics")

        label = f'{{engine="0",model_name="{MODEL}"}}'
        assert f"vllm:num_requests_running{label} 0.0" in page
        assert f"vllm:prefix_cache_queries_total{label} 128.0" in page
        assert f"vllm:prefix_cache_hits_total{label} 48.0" in page
        assert 'num_gpu_blocks="6401"' in page
        assert 'block_size="16"' in page
        assert f"vllm:time_to_first_token_seconds_count{label} 2" in page


async def test_server_info_has_the_schedulers_settings_in_development_mode_only():
    hidden_front = FrontEnd(dev_mode=False)
    async with serving() as served, serving(front=hidden_front) as hidden:
        status, text = await served.get("/server_info?config_format=json")
        absent, _ = await hidden.get("/server_info?config_format=json")

        scheduler = json.loads(text)["vllm_config"]["scheduler_config"]
        assert status == 200
        assert absent == 404
        assert scheduler["max_num_batched_tokens"] == 512
        assert scheduler["long_prefill_token_threshold"] == 0


async def test_small_endpoints_answer():
    async with serving() as served:
        _, sources = await served.get("/kv_event_sources")

        assert await served.get("/health") == (200, "")
        assert json.loads((await served.get("/version"))[1]) == {"version": "0.33.0"}
        assert json.loads(sources)["0"]["endpoint"] == served.publisher.endpoint
        assert await served.post("/reset_prefix_cache", {}) == (200, {"success": True})


async def test_it_says_that_its_events_are_listened_for_at_every_address():
    async with serving() as served:
        _, info = await served.get("/server_info?config_format=json")

        told = json.loads(info)
        port = served.publisher.endpoint.rpartition(":")[2]
        assert told["vllm_config"]["kv_events_config"]["endpoint"] == f"tcp://*:{port}"
        assert connects_to(told) is None


async def test_tokenize_counts_prompts_and_conversations():
    async with serving() as served:
        _, plain = await served.post("/tokenize", {"prompt": "abc", "return_token_strs": True})
        _, said = await served.post("/tokenize", chat("abc"))

        assert plain == {
            "count": 3,
            "max_model_len": 32768,
            "tokens": [97, 98, 99],
            "token_strs": ["a", "b", "c"],
        }
        assert said["count"] == len("<user>abc\n<assistant>")
