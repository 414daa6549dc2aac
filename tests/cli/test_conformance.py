"""Our picker passes every check; pickers with one fault each fail the checks that name it."""

import asyncio
import re

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from leadsman.budget import Budget
from leadsman_bench.conformance.checks import CHECKS
from leadsman_bench.conformance.command import main, put_to
from leadsman_bench.conformance.exchange import BUFFERED, PROCESS
from leadsman_bench.conformance.script import Target
from leadsman_extproc import wire
from leadsman_extproc.http2.server import listening

PICK = "10.0.0.1:8000"
OTHER = "10.0.0.2:8000"
ALL_ON = {
    "budget": Budget(name="held", max_queue_wait=30.0, hold=3.0),
    "page": "127.0.0.1:0",
    "tracing": True,
}


def failed(verdicts):
    return {one.check for one in verdicts if one.problem is not None}


def named(pattern):
    return {one.sentence for one in CHECKS if re.search(pattern, one.sentence)}


async def put(port, patience=2.0):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        return await put_to(Target(channel=channel, model="m", patience=patience))


@pytest.mark.parametrize("served", [{}, ALL_ON], indirect=True, ids=["plain", "all on"])
async def test_our_picker_passes_every_check(served):
    verdicts = await put(served, patience=20.0)

    assert {one.check: one.problem for one in verdicts if one.problem} == {}
    assert len(verdicts) == len(CHECKS)


@pytest.mark.parametrize(
    ("served", "trust"), [({}, []), ({"tls": "self-signed"}, ["--insecure"])], indirect=["served"]
)
async def test_the_command_says_what_passed(served, trust, capsys, tmp_path):
    out = tmp_path / "verdicts.json"

    options = ["--target", f"127.0.0.1:{served}", "--model", "m", "--patience", "20"]
    rc = await asyncio.to_thread(main, [*options, *trust, "--json", str(out)])

    said = capsys.readouterr().out
    assert (rc, "FAIL" in said) == (0, False), said
    assert re.search(r"(\d+) of \1 required checks passed, (\d+) of \2 optional ones", said)
    assert out.read_text().count('"problem": null') == len(CHECKS)


def test_where_nobody_answers_the_command_fails_and_says_why(capsys):
    rc = main(["--target", "127.0.0.1:9", "--model", "m", "--patience", "0.2"])

    said = capsys.readouterr().out
    assert rc == 1
    assert "0 of" in said
    assert "UNAVAILABLE" in said


class Faulty:
    """A picker that gives every body back and names PICK, with faults by name."""

    def __init__(self, call, fault):
        self.call, self.fault, self.body, self.has_head = call, fault, b"", False

    def message(self, raw):
        message = pb.ProcessingRequest.FromString(raw)
        getattr(self, message.WhichOneof("request"))(message)

    def request_headers(self, message):
        if message.protocol_config.request_body_mode == BUFFERED.request.value:
            self.call.finish()
            return
        if self.fault == "answers at once" or message.request_headers.end_of_stream:
            self.head()

    def request_body(self, message):
        self.body += message.request_body.body
        if message.request_body.end_of_stream:
            self.request_is_whole(end=True)

    def request_trailers(self, _):
        self.request_is_whole(end=False)
        self.call.send([wire.GO_ON_REQUEST_TRAILERS])

    def request_is_whole(self, *, end):
        if self.has_head and self.fault != "answers twice":
            return
        self.head()
        body = self.body[:-1] if self.fault == "loses a byte" else self.body
        self.call.send(wire.streamed("request", body, end_of_stream=end))

    def head(self):
        self.has_head = True
        pick = f"{PICK},{OTHER}" if self.fault == "names a fallback always" else PICK
        raw = wire.routed(pick, {}, answers="headers")
        if self.fault == "no metadata":
            answer = pb.ProcessingResponse.FromString(raw)
            answer.ClearField("dynamic_metadata")
            raw = answer.SerializeToString()
        self.call.send([raw])

    def response_headers(self, _):
        self.call.send([wire.GO_ON_RESPONSE_HEADERS])

    def response_body(self, message):
        piece = message.response_body
        data = b"" if self.fault == "swallows responses" else piece.body
        self.call.send(wire.streamed("response", data, end_of_stream=piece.end_of_stream))

    def response_trailers(self, _):
        self.call.send([wire.GO_ON_RESPONSE_TRAILERS])

    def whole(self):
        self.call.finish()

    def gone(self):
        pass


SUBSETS = r"compared by|empty subset|without a ready|obeys the subset|is the last"
ALWAYS = named(f"^buffered|^health|{SUBSETS}")
"""What Faulty lacks, whatever its fault: it has one endpoint, no health, and no other mode."""
BODIES = r"one piece|many pieces|8 MB|trailers|second end|passes|echoed|megabyte|own error|served"


@pytest.mark.parametrize(
    ("fault", "also"),
    [
        ("none", set()),
        ("answers at once", named("nothing is answered before|trailers end a request")),
        ("answers twice", named("second end")),
        ("names a fallback always", named("fall back to")),
        ("loses a byte", named(BODIES)),
        ("no metadata", {one.sentence for one in CHECKS}),
        ("swallows responses", named("echoed|ended by trailers|megabyte that|served feedback")),
    ],
)
async def test_a_faulty_picker_fails_the_checks_that_name_its_fault(fault, also):
    async with listening("127.0.0.1:0", {PROCESS: lambda call: Faulty(call, fault)}) as port:
        verdicts = await put(port)

    assert failed(verdicts) >= ALWAYS | also - named("^buffered")
    if fault == "none":
        assert failed(verdicts) == ALWAYS
