import asyncio
import json
import socket
import threading

import pytest
from engine.cells import graded, measured, recovered
from engine.curve import fit
from engine.forced_end import END_TOKEN, ForcedEnd
from engine.plan import Plans, at_once, parted, wanted
from engine.relay import Relay
from engine.vllm import fast_type
from leadsman_bench.demo_results import Outcome
from leadsman_bench.player import Played
from leadsman_bench.processes import free_ports
from leadsman_extproc.bodies import read_body


def outcome(name, *, sent=0.0, predicted=1.0, ttft=1.0, cached=(128, 128), bound=2.0):
    return Outcome(
        request=name,
        worker="w",
        prompt_tokens=1000,
        outcome="finished",
        curve="own",
        max_queue_wait=None,
        predicted_ttft=predicted,
        predicted_queue_wait=0.0,
        ttft=ttft,
        predicted_cached=cached[0],
        cached_tokens=cached[1],
        sent_at=sent,
        ttft_bound=bound,
    )


def played(row, *, status=200, reason=None):
    (planned,) = at_once("x", [row])
    return Played(planned=planned, sent_at=0.0, status=status, reason=reason, first_at=1.25)


def rows():
    return Plans(seed=1).slice(40)


def after_fault(told, since):
    return recovered(graded(told), {one.request for one in told}, since=since)


def test_all_is_right_again_when_no_two_of_the_next_ten_are_wrong():
    wrong = {3, 5, 6}
    told = [outcome(f"r{n}", sent=100.0 + n, ttft=5.0 if n in wrong else 1.0) for n in range(30)]

    assert after_fault(told, since=102.0) == 3.0


def test_what_is_wrong_now_and_then_is_not_the_faults():
    told = [outcome(f"r{n}", sent=1.0 + n, ttft=1.0 if n % 10 else 5.0) for n in range(30)]

    assert after_fault(told, since=0.0) == 0.0


def test_one_wrong_cache_estimate_is_not_right():
    told = [outcome(f"r{n}", sent=float(n)) for n in range(1, 99)]
    told.append(outcome("last", sent=99.0, cached=(256, 0)))

    assert after_fault(told, since=0.0) is None


def test_where_nothing_goes_wrong_all_was_right_at_once():
    told = [outcome(f"r{n}", sent=10.0 + n) for n in range(11)]

    assert after_fault(told, since=10.0) == 0.0


def test_fewer_than_ten_after_a_fault_show_nothing():
    told = [outcome(f"r{n}", sent=10.0 + n) for n in range(9)]

    assert after_fault(told, since=9.0) is None


def test_nothing_played_after_a_fault_shows_nothing():
    assert recovered(graded([outcome("before", sent=1.0)]), {"before"}, since=2.0) is None


def test_a_play_is_summed_up_from_the_pickers_lines_and_the_clients():
    row = rows()[0]
    refused = played(row, status=429, reason="would_wait_too_long")
    told = [outcome("x-0000", predicted=1.2, ttft=1.0, cached=(0, 128), bound=0.9)]

    found = measured(
        [played(row), refused], told, name="c", slots=4, load=1.0, around=0.0, told=False
    )

    assert (found.requests, found.graded, found.broken) == (2, 1, 0)
    assert (found.within_relative, found.cache_mismatch, found.covered) == (0.0, 1.0, 0.0)
    assert found.refused == {"would_wait_too_long": 1}
    assert found.apart == pytest.approx(0.25)


def test_most_rows_of_a_slice_belong_to_conversations_of_several_turns():
    pieces = [set(row.pieces[1:]) for row in Plans(seed=1).slice(100)]

    shared = [any(own & other for other in pieces if other is not own) for own in pieces]

    assert 0.5 <= sum(shared) / len(shared) <= 0.6


def least_and_most(raw):
    """What our picker knows of how long an answer will be."""
    body = read_body("/v1/chat/completions", raw)
    return body.min_tokens, body.max_tokens, body.ignores_eos


def test_the_engine_alone_knows_how_long_an_answer_will_be():
    for one in wanted("name", rows(), seconds=10.0):
        least, most, ignores = least_and_most(one.body())

        assert (least, ignores) == (0, False)
        assert most is None or most > one.row.output_tokens


def test_a_length_that_is_told_is_told():
    for one in wanted("name", rows(), seconds=10.0, told=True):
        assert least_and_most(one.body()) == (0, one.row.output_tokens, True)


def through_the_middleware(raw, pieces=3):
    """What the application behind it is given, and the length that its headers name."""
    given = []

    async def app(scope, receive, send):
        given.append((await receive(), dict(scope["headers"]), await receive()))

    async def play():
        size = max(1, -(-len(raw) // pieces))
        parts = [raw[at : at + size] for at in range(0, len(raw), size)] or [b""]
        messages = [
            {"type": "http.request", "body": part, "more_body": number < len(parts)}
            for number, part in enumerate(parts, start=1)
        ]
        messages.append({"type": "http.disconnect"})

        async def receive():
            return messages.pop(0)

        headers = [(b"content-length", b"0"), (b"x", b"y")]
        await ForcedEnd(app)({"type": "http", "method": "POST", "headers": headers}, receive, None)

    asyncio.run(play())
    ((whole, headers, after),) = given
    assert after == {"type": "http.disconnect"}
    assert headers == {b"content-length": str(len(whole["body"])).encode(), b"x": b"y"}
    return whole["body"]


def test_what_is_told_to_the_simulated_engine_is_forced_on_a_real_one():
    (one,) = wanted("name", rows()[:1], seconds=10.0)

    body = json.loads(through_the_middleware(one.body()))

    assert body["min_tokens"] == one.row.output_tokens - 1
    assert body["logit_bias"] == {str(END_TOKEN): 100}
    assert "vllm_xargs" not in body


@pytest.mark.parametrize("raw", [b"", b"no json", b"[1]", b'{"model":"m"}', b'{"vllm_xargs":5}'])
def test_any_other_body_passes_as_it_is(raw):
    assert through_the_middleware(raw) == raw


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("fpu avx2 fma", "float32"),
        ("fpu avx2 avx512f avx512_bf16", "bfloat16"),
        ("amx_bf16 avx2", "bfloat16"),
        ("avx512f not_avx512_bf16", "float32"),
    ],
)
def test_the_engine_computes_in_what_its_cpu_has_instructions_for(flags, chosen):
    assert fast_type(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx512_bf16\n") == chosen


def test_slices_share_no_text_with_each_other():
    plans = Plans(seed=1)

    first, second = ({p for row in plans.slice(40) for p in row.pieces} for _ in range(2))

    assert not first & second


def test_every_request_goes_one_way():
    planned = wanted("name", rows(), seconds=10.0)

    through, around = parted(planned, 0.3, seed=1)

    assert sorted(one.id for one in (*through, *around)) == [one.id for one in planned]
    assert 0 < len(around) < len(through)


def test_a_curve_is_found_from_its_own_samples():
    lengths = (64, 100, 300, 700, 1500, 3000, 6000, 8000)
    samples = [(n, 0.01 + 5e-5 * n + 2e-8 * n * n) for n in (64, *lengths)]

    found = fit(samples)

    assert found.b == pytest.approx(2e-8, rel=0.01)
    assert found.largest_residual < 0.01


def test_a_relay_that_is_cut_drops_who_is_connected_and_mended_takes_them_again():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server, 2), daemon=True).start()
        relay = Relay(server.getsockname()[1])
        relay.start()
        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            relay.cut()
            assert gone(client)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", relay.port))

        relay.mend()

        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            client.sendall(b"b")
            assert client.recv(1) == b"b"
        relay.stop()


def test_a_free_port_is_free():
    with socket.create_server(("127.0.0.1", free_ports(1)[0])):
        pass


def echo(server, times):
    for _ in range(times):
        connection, _ = server.accept()
        with connection:
            connection.sendall(connection.recv(1))
            connection.recv(1)


def gone(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
