"""The page's server: what it tells whom, and what it keeps."""

import asyncio
import base64
import contextlib
import json
import socket
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.records import (
    GPU,
    Ended,
    Granted,
    KvEvents,
    LoadSample,
    Outcome,
    Stored,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman.units import RequestId, WorkerId
from leadsman_fleet.page import history, server
from leadsman_fleet.page.access import is_allowed
from leadsman_fleet.page.history import History
from leadsman_fleet.page.overheard import Overheard
from leadsman_fleet.page.shown import Found, Point

A = WorkerId("a:8000")


def point(request="r", at=1.0, **more):
    return Point(request=request, at=at, worker=A, predicted=1.0, actual=1.1, **more)


def fleet():
    settings = EngineSettings(
        model="m",
        version="0.33.0",
        max_num_batched_tokens=2048,
        max_num_seqs=8,
        max_model_len=1 << 20,
        block_size=16,
        num_blocks=100,
    )
    made = Fleet()
    for record in (
        WorkerSeen(worker=A, endpoint=A, settings=settings),
        TrustChanged(worker=A, trust=Trust.LIVE, reason="history is complete"),
        KvEvents(
            worker=A,
            sequence=0,
            engine_time=1.0,
            received_at=1.0,
            events=(
                Stored(keys=np.arange(1, 8, dtype=np.uint64), tier=GPU),
                Stored(keys=np.arange(1, 4, dtype=np.uint64), tier="CPU"),
            ),
        ),
        LoadSample(worker=A, at=1.0, running=2, waiting=3),
    ):
        made.apply(record, 1.0)
    return made


@asynccontextmanager
async def looked_at(*, token=None, **more):
    site = server.Site(fleet=more.pop("fleet", None) or fleet(), clock=lambda: 2.0, **more)
    page = server.Page(lambda: {"ns/pool": site}, token)
    async with (
        server.serving(page, "127.0.0.1:0") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield site, session


async def events(answer, number):
    found = []
    kind = None
    async for line in answer.content:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            found.append((kind, json.loads(line[6:])))
            if len(found) == number:
                break
    return found


async def test_who_connects_is_told_the_state_and_then_what_is_new():
    site_history = History()
    site_history.served(point("before"))
    site_history.decided(100.0, "would_wait_too_long")

    async with looked_at(history=site_history) as (_, session), session.get("/events") as answer:
        [(first, state), (second, tick)] = await events(answer, 2)
        site_history.served(point("after"))
        [(third, later)] = await events(answer, 1)

    assert (first, second, third) == ("state", "tick", "tick")
    assert [p[0] for p in state["points"]] == ["before"]
    assert state["buckets"] == [{"at": 100.0, "admitted": 0, "refused": {"would_wait_too_long": 1}}]
    assert (tick["points"], [p[0] for p in later["points"]]) == ([], ["after"])
    [worker] = tick["workers"]
    assert (worker["trust"], worker["running"], worker["waiting"]) == ("live", 2, 3)
    assert worker["cache"] == [
        {"tier": "GPU", "tokens": 112, "room": 1600},
        {"tier": "CPU", "tokens": 48, "room": None},
    ]
    assert tick["speeds"][A]["curve_from"] == "unmeasured"
    assert later["speeds"] == {}


async def test_a_point_is_told_once_to_whoever_comes_between_two_ticks():
    site_history = History()

    async with looked_at(history=site_history) as (_, session), session.get("/events") as one:
        await events(one, 2)
        site_history.served(point("p"))
        async with session.get("/events") as two:
            [(_, state), (_, tick)] = await events(two, 2)

    told = [p[0] for p in state["points"]] + [p[0] for p in tick["points"]]
    assert told == ["p"]


async def test_nothing_is_computed_while_nobody_looks():
    asked = []

    class Watched:
        def conditions(self):
            asked.append(1)
            return []

        def trust(self):
            return []

    async with looked_at(fleet=Watched()) as (_, session):
        await asyncio.sleep(0.05)
        before = len(asked)
        async with session.get("/events") as answer:
            await events(answer, 2)

    assert (before, bool(asked)) == (0, True)


async def test_who_reads_too_slowly_is_cut_off_and_others_are_not(monkeypatch):
    monkeypatch.setattr(server, "EVERY", 0.05)
    monkeypatch.setattr(server, "PATIENCE", 2.0)
    many = History()
    for i in range(history.MOST_POINTS):
        many.served(point(f"{i:0800d}"))

    loop = asyncio.get_running_loop()
    async with looked_at(history=many) as (_, session):
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", session._base_url.port))
            slow.setblocking(False)
            await loop.sock_sendall(slow, b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
            async with session.get("/events", read_bufsize=1 << 26) as quick:
                [*_, (kind, _)] = await events(quick, 5)
            await asyncio.sleep(1.5 * server.PATIENCE)
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    while await loop.sock_recv(slow, 1 << 20):
                        pass

    assert kind == "tick"


async def test_readers_are_bounded(monkeypatch):
    monkeypatch.setattr(server, "MOST_READERS", 1)

    async with (
        looked_at() as (_, session),
        session.get("/events") as first,
        session.get("/events") as second,
    ):
        statuses = first.status, second.status

    assert statuses == (200, 503)


async def test_a_request_is_found_and_explained_and_one_that_is_unknown_is_not():
    found = Found(request="r1", at=1.0, model="m", is_refused=True, became="overloaded")

    async with looked_at(
        explain={"r1": b'{"verdict": "no"}'}.get, find=lambda like: (found,) if like else ()
    ) as (_, session):
        async with session.get("/requests", params={"like": "r"}) as answer:
            listed = await answer.json()
        async with session.get("/explain", params={"request": "r1"}) as answer:
            explained = await answer.json()
        async with session.get("/explain", params={"request": "r2"}) as answer:
            unknown = answer.status

    assert [one["request"] for one in listed] == ["r1"]
    assert (explained, unknown) == ({"verdict": "no"}, 404)


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/uPlot.LICENSE", "/nothing"])
async def test_only_what_a_browser_needs_is_served(path):
    async with looked_at() as (_, session), session.get(path) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
async def test_nothing_can_be_changed(method):
    async with looked_at() as (_, session), getattr(session, method)("/explain") as answer:
        assert answer.status == 405


async def test_every_file_that_the_page_names_is_there_and_from_here_alone():
    async with looked_at() as (_, session):
        async with session.get("/") as answer:
            text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        names = [part.split('"')[0] for part in text.split('"static/')[1:]]
        for name in names:
            async with session.get(f"/static/{name}") as answer:
                assert answer.status == 200, name

    assert "page.js" in names
    assert "default-src 'none'" in policy
    assert "http" not in text


async def test_a_token_is_asked_of_everything(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    bearer = {"Authorization": "Bearer secret"}

    async with looked_at(token=token) as (_, session):
        refused = [(await session.get(path)).status for path in ("/", "/events", "/requests")]
        allowed = (await session.get("/", headers=bearer)).status

    assert (refused, allowed) == ([401, 401, 401], 200)


def basic(password):
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ("Bearer secret", True),
        ("bearer secret", True),
        (basic("secret"), True),
        (basic("secre"), False),
        ("Basic !", False),
        ("Bearer ", False),
        ("secret", False),
        (None, False),
    ],
)
def test_a_token_is_a_bearers_or_a_password(tmp_path, given, holds):
    token = tmp_path / "token"
    token.write_text("secret\n")

    assert is_allowed(given, token) is holds


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_token_that_is_not_there_lets_nobody_in(tmp_path, content):
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)

    assert not is_allowed("Bearer ", token)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from([None, "a", "b"])), max_size=50))
def test_what_was_decided_in_an_hour_is_counted_in_full(decided):
    decided.sort(key=lambda one: one[0])
    kept = History()

    for at, reason in decided:
        kept.decided(at, reason)

    recent = {b.at for b in kept.buckets()}
    expected = [reason for at, reason in decided if at - at % history.WIDTH in recent]
    assert sum(b.admitted for b in kept.buckets()) == expected.count(None)
    assert sum(sum(b.refused.values()) for b in kept.buckets()) == len(expected) - expected.count(
        None
    )


def test_a_history_is_bounded_whatever_comes():
    kept = History()

    for i in range(history.MOST_POINTS + 500):
        kept.served(point(f"r{i}"))
        kept.decided(i * history.WIDTH, None)

    assert (len(kept.news()), len(kept.told())) == (history.MOST_NEW, history.MOST_POINTS)
    assert len(kept.buckets()) == history.MOST_BUCKETS


def test_whoever_hears_grants_and_first_tokens_sees_how_predictions_did():
    kept = History()
    heard = Overheard(kept, epoch=lambda: 100.0)
    granted = Granted(
        worker=A,
        request=RequestId("r"),
        at=1.0,
        prompt_tokens=10,
        keys=np.empty(0, np.uint64),
        max_tokens=None,
        priority=0,
        predicted_ttft=0.5,
    )
    seen = TokensSeen(worker=A, request=RequestId("r"), at=1.75, tokens=1)

    for record in (granted, seen, granted, seen):
        heard.take(record)

    [point] = kept.news()
    assert (point.at, point.predicted, point.actual, point.matched) == (101.75, 0.5, 0.75, None)
    assert [b.admitted for b in kept.buckets()] == [1]
    heard.take(Ended(worker=A, request=RequestId("r"), at=2.0, outcome=Outcome.FINISHED))
    assert len(heard) == 0


def test_grants_at_a_worker_that_left_are_forgotten():
    heard = Overheard(History(), epoch=lambda: 0.0)
    for name in "ab":
        heard.take(
            Granted(
                worker=A,
                request=RequestId(name),
                at=1.0,
                prompt_tokens=10,
                keys=np.empty(0, np.uint64),
                max_tokens=None,
                priority=0,
                predicted_ttft=None,
            )
        )
    heard.take(TokensSeen(worker=A, request=RequestId("a"), at=1.5, tokens=1))

    heard.take(WorkerGone(worker=A))

    assert len(heard) == 0
