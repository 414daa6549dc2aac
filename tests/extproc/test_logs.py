"""Every log line about a request has its id, whoever writes it."""

import ast
import asyncio
import io
import json
import logging
import time
from pathlib import Path

import aiohttp
import leadsman_extproc
import pytest
import tokenizers
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from leadsman.budget import Budget
from leadsman.records import WorkerSeen
from leadsman.units import WorkerId
from leadsman_cli.logs import JsonLines
from leadsman_cli.tokenize import EngineTokenizer
from leadsman_extproc.exchange import Processor
from leadsman_extproc.grants import Grants
from leadsman_extproc.http2.calls import Status
from leadsman_extproc.models import ServedModel, load_model
from leadsman_extproc.picking import Picking
from leadsman_extproc.reading import Reader
from leadsman_extproc.settings import Settings
from leadsman_extproc.watch import Watching
from leadsman_extproc.workers import Workers

from .conftest import SETTINGS, KeepsAll, PicksInTurn

MODULES = sorted(Path(leadsman_extproc.__file__).parent.glob("*.py"))
KNOWS_THE_REQUEST = ["exchange.py", "picking.py"]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def lines():
    """What is logged from here on, as the lines that serve writes."""
    out = io.StringIO()
    handler, root = logging.StreamHandler(out), logging.getLogger()
    handler.setFormatter(JsonLines())
    before = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(before)


class Call:
    """A gateway's call, and how it was ended."""

    def __init__(self):
        self.fields, self.sent, self.status = {}, [], None
        self.ended = asyncio.Event()

    def send(self, messages):
        self.sent += messages
        if messages:
            self.ended.set()

    def finish(self, status=Status.OK, why=""):
        self.status = status
        self.ended.set()


def processor(reads, picker=None):
    picker, workers = picker or PicksInTurn(), Workers()
    seen = WorkerSeen(worker=WorkerId("a"), endpoint="10.0.0.1:80", settings=SETTINGS)
    workers.apply(seen)
    picker.apply(seen, 0.0)
    grants = Grants(emit=lambda record: None, on_end=lambda grant: None)
    picking = Picking(
        reads=reads,
        picker=picker,
        budget_for=lambda request, headers: Budget(),
        keeps=KeepsAll(),
        report=lambda record: None,
        grants=grants,
        workers=workers,
        settings=Settings(),
        clock=time.monotonic,
    )
    watching = Watching(grants=grants, workers=workers, wants_witness=lambda worker: False)
    return Processor(picking=picking, watching=watching)


async def exchange(subject, request_id="r-1"):
    """Send one chat through a call, and wait until it is answered or over."""
    call = Call()
    receiver = subject.process(call)
    headers = {":path": "/v1/chat/completions", "x-request-id": request_id}
    first = pb.ProcessingRequest()
    for name, value in headers.items():
        first.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    receiver.message(first.SerializeToString())
    body = pb.ProcessingRequest()
    body.request_body.body = json.dumps(CHAT).encode()
    body.request_body.end_of_stream = True
    receiver.message(body.SerializeToString())
    async with asyncio.timeout(10):
        await call.ended.wait()
    receiver.gone()
    return call


def reader(text=None, tokenize=None):
    return Reader(
        models=[ServedModel(name="m", text=text)],
        block_sizes=lambda model: (16,),
        tokenize=tokenize,
    )


class Fails:
    """Fails in whatever it is asked."""

    def __getattr__(self, name):
        raise RuntimeError(f"{name} fails")


class FailsLater:
    async def read(self, arrival):
        await asyncio.sleep(0)
        raise RuntimeError("this reading fails")


class DecidesNothing(PicksInTurn):
    def decide(self, request, budget, now, rng):
        raise RuntimeError("this decision fails")


CASES = [
    ("reading a request failed", lambda: processor(Fails())),
    ("reading a request failed", lambda: processor(FailsLater())),
    ("deciding on a request failed", lambda: processor(reader(), DecidesNothing())),
]


@pytest.mark.parametrize(("message", "make"), CASES)
async def test_what_goes_wrong_with_a_request_is_logged_with_its_id(lines, message, make):
    await exchange(make(), "r-1")

    assert [(line["message"], line["request"]) for line in lines()] == [(message, "r-1")]


async def test_a_template_that_gives_no_text_is_logged_with_the_requests_id(lines, tmp_path):
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    text = load_model(tmp_path, chat_template="{{ raise_exception('not like this') }}")

    await exchange(processor(reader(text)), "r-1")

    last = lines()[-1]
    assert (last["message"], last["request"]) == ("no text by the template", "r-1")


@pytest.mark.parametrize("is_later", [False, True])
async def test_an_exchange_that_fails_is_logged_with_its_id_and_ends(lines, is_later):
    subject = processor(FailsLater() if is_later else reader())
    subject.picking.keeps = Fails()

    call = await exchange(subject, "r-2")

    assert call.status is Status.UNKNOWN
    assert (lines()[-1]["message"], lines()[-1]["request"]) == ("an exchange failed", "r-2")


async def test_an_engine_that_does_not_tokenize_is_logged_with_the_requests_id(lines):
    async with aiohttp.ClientSession() as http:
        engines = EngineTokenizer(http=http, ready=lambda model: ["127.0.0.1:9"])
        subject = processor(reader(tokenize=engines))

        await asyncio.gather(*(exchange(subject, f"r-{n}") for n in range(3)))

    told = [(line["message"], line["request"]) for line in lines()]
    assert sorted(told) == [("engine did not tokenize", f"r-{n}") for n in range(3)]


async def test_after_a_request_lines_are_about_none(lines):
    await exchange(processor(reader()))

    logging.getLogger("any").warning("about no request")

    assert "request" not in lines()[-1]


@pytest.mark.parametrize("name", KNOWS_THE_REQUEST)
def test_who_knows_the_request_says_which(name):
    [path] = [path for path in MODULES if path.name == name]
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("LOG.")
    ]

    fields = [ast.unparse(k.value) for call in calls for k in call.keywords if k.arg == "extra"]

    assert calls
    assert ["'request'" in one for one in fields] == [True] * len(calls)
