import itertools
from dataclasses import dataclass, field

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.prediction import Admitted
from leadsman.records import Ended, Granted, Outcome, TokensSeen, WorkerSeen
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc import wire
from leadsman_extproc.events import (
    BodyMode,
    Profile,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from leadsman_extproc.grants import Grants
from leadsman_extproc.refusals import Reply
from leadsman_extproc.session import Session, State
from leadsman_extproc.watch import Watching
from leadsman_extproc.workers import Workers

DUPLEX = Profile()
BUFFERED = Profile(request=BodyMode.BUFFERED, response=BodyMode.STREAMED)
NO_BODY_BACK = Profile(request=BodyMode.BUFFERED, response=BodyMode.NONE)
HEADERS = {":method": "POST", ":path": "/v1/chat/completions"}
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Bench:
    """A session with what it tells, and two workers that it may be served by."""

    ends_early: bool = True
    witness: bool = False
    max_body: int = 1000
    records: list = field(default_factory=list)
    over: list = field(default_factory=list)

    def __post_init__(self):
        self.grants = Grants(emit=self.records.append, on_end=self.over.append)
        workers = Workers()
        for name in ("a:1", "b:1"):
            workers.apply(
                WorkerSeen(worker=WorkerId(name), endpoint=name, settings=engine_settings())
            )
        watching = Watching(
            grants=self.grants, workers=workers, wants_witness=lambda worker: self.witness
        )
        self.session = Session(
            max_body=self.max_body, ends_early=self.ends_early, watching=watching
        )

    def hears(self, *events, at=1.0):
        return [answer for event in events for answer in self.session.receive(event, at)]

    def sends_on(self, at=1.0, fallbacks=()):
        self.session.asked()
        request = Request(id=RequestId("r"), model="m", prompt_tokens=3, arrived_at=at)
        admitted = Admitted(
            request=request.id, worker=WorkerId("a:1"), endpoint="a:1", prediction=None
        )
        grant = self.grants.open(request, admitted, at)
        return self.session.send_on(grant, {"x-session-id": "r"}, fallbacks)

    def has_sent(self, profile):
        self.hears(headers(profile), RequestBody(b"{}", end_of_stream=True))
        self.sends_on()
        return self


def engine_settings():
    return EngineSettings(
        model="m",
        version="0",
        max_num_batched_tokens=8192,
        max_num_seqs=8,
        max_model_len=8192,
        block_size=16,
        num_blocks=100,
    )


def headers(profile, *, end_of_stream=False, subset=None):
    return RequestHeaders(HEADERS, end_of_stream, profile, subset)


def response(status=200, *, kind="text/event-stream", upstream=True, served=None, end=False):
    return ResponseHeaders(status, kind, upstream, served, end)


def parts(answers):
    return [pb.ProcessingResponse.FromString(answer) for answer in answers]


def names(answers):
    return [part.WhichOneof("response") for part in parts(answers)]


def given_back(answers, side="request_body"):
    pieces = [
        getattr(part, side).response.body_mutation.streamed_response
        for part in parts(answers)
        if part.WhichOneof("response") == side
    ]
    return b"".join(piece.body for piece in pieces), [piece.end_of_stream for piece in pieces]


def test_full_duplex_answers_nothing_until_the_request_is_whole():
    bench = Bench()

    early = bench.hears(headers(DUPLEX), RequestBody(b"ab", end_of_stream=False))
    bench.hears(RequestBody(b"c", end_of_stream=True))

    assert early == []
    assert bench.session.is_asking
    assert bench.session.asked().body == b"abc"


@given(st.binary(max_size=400_000), st.lists(st.integers(0, 400_000), max_size=4), st.booleans())
def test_full_duplex_gives_back_what_came_however_it_was_cut(body, cuts, trailers):
    bench = Bench(max_body=1 << 20)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    events = [RequestBody(piece, end_of_stream=False) for piece in pieces]
    end = RequestTrailers() if trailers else RequestBody(b"", end_of_stream=True)

    bench.hears(headers(DUPLEX), *events, end)
    answers = bench.sends_on()

    back, ends = given_back(answers)
    assert back == body
    assert ends.count(True) == (0 if trailers else 1)
    assert trailers or ends[-1]
    assert names(answers)[0] == "request_headers"
    assert (names(answers)[-1] == "request_trailers") is trailers
    assert all(len(answer) < 65_536 for answer in answers)


def test_the_endpoint_is_told_by_header_and_by_metadata_alike():
    bench = Bench()
    bench.hears(headers(DUPLEX), RequestBody(b"{}", end_of_stream=True))

    first = parts(bench.sends_on())[0]

    common = first.request_headers.response
    told = {o.header.key: o.header.raw_value for o in common.header_mutation.set_headers}
    assert told == {wire.DESTINATION: b"a:1", "x-session-id": b"r"}
    assert first.dynamic_metadata["envoy.lb"][wire.DESTINATION] == "a:1"
    assert common.clear_route_cache


def test_a_buffered_request_goes_on_with_the_answer_to_its_body():
    bench = Bench()

    answered = bench.hears(headers(BUFFERED), RequestBody(b"{}", end_of_stream=True))
    answers = bench.sends_on()

    assert names(answered) == ["request_headers"]
    assert names(answers) == ["request_body"]
    assert not parts(answers)[0].request_body.response.HasField("body_mutation")


@pytest.mark.parametrize("profile", [DUPLEX, BUFFERED])
def test_a_request_that_is_headers_only_asks_at_once(profile):
    bench = Bench()

    bench.hears(headers(profile, end_of_stream=True))

    assert bench.session.asked().body == b""
    assert names(bench.sends_on()) == ["request_headers"]


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED_PARTIAL])
def test_a_body_that_is_not_shown_whole_is_routed_at_its_headers(mode):
    bench = Bench()

    bench.hears(headers(Profile(request=mode, response=BodyMode.NONE)))

    assert bench.session.is_asking
    assert names(bench.sends_on()) == ["request_headers"]
    assert names(bench.hears(RequestBody(b"x", end_of_stream=True))) == ["request_body"]


@pytest.mark.parametrize("profile", [DUPLEX, BUFFERED])
def test_what_follows_the_first_end_of_the_request_is_ignored(profile):
    bench = Bench().has_sent(profile)

    late = bench.hears(RequestBody(b"", end_of_stream=True), RequestBody(b"x", end_of_stream=True))

    assert late == []
    assert bench.session.state is State.SENT


def test_too_big_a_body_is_known_only_once_it_is_whole():
    bench = Bench(max_body=4)

    bench.hears(headers(DUPLEX), RequestBody(b"abcde", end_of_stream=False))
    asked_early = bench.session.is_asking
    bench.hears(RequestBody(b"f", end_of_stream=True))

    assert not asked_early
    assert bench.session.asked().body is None


def test_a_refusal_ends_the_stream_with_its_status_even_one_that_envoy_cannot_name():
    bench = Bench()
    bench.hears(headers(DUPLEX), RequestBody(b"{}", end_of_stream=True))

    reply = Reply(status=529, headers={"retry-after": "3"}, body=b"{}", details="why")
    [answer] = parts(bench.session.refuse(reply))

    assert answer.immediate_response.status.code == 529
    assert answer.immediate_response.details == "why"
    assert answer.immediate_response.headers.set_headers[0].header.raw_value == b"3"
    assert bench.session.is_over


def test_the_first_token_is_the_first_content_not_the_role():
    bench = Bench(witness=True).has_sent(BUFFERED)

    bench.hears(response(), ResponseBody(ROLE, end_of_stream=False), at=2.0)
    bench.hears(ResponseBody(WORD, end_of_stream=False), at=3.0)

    assert bench.records == [
        TokensSeen(worker=WorkerId("a:1"), request=RequestId("r"), at=3.0, tokens=1)
    ]


def test_a_stream_that_is_no_witness_ends_after_its_first_content_and_keeps_its_grant():
    bench = Bench().has_sent(BUFFERED)

    bench.hears(response(), ResponseBody(ROLE, end_of_stream=False))
    too_early = bench.session.is_over
    answers = bench.hears(ResponseBody(WORD, end_of_stream=False))
    bench.session.leave(9.0)

    assert not too_early
    assert names(answers) == ["response_body"]
    assert bench.session.is_over
    assert len(bench.grants) == 1


def test_a_witness_is_read_to_its_end():
    bench = Bench(witness=True).has_sent(BUFFERED)

    bench.hears(response(), ResponseBody(WORD, end_of_stream=False))
    bench.hears(ResponseBody(WORD + WORD, end_of_stream=False))
    bench.hears(ResponseBody(USAGE + DONE, end_of_stream=True), at=5.0)

    assert [r.tokens for r in bench.records if isinstance(r, TokensSeen)] == [1, 3]
    assert bench.records[-1] == Ended(
        worker=WorkerId("a:1"),
        request=RequestId("r"),
        at=5.0,
        outcome=Outcome.FINISHED,
        completion_tokens=2,
    )


def test_without_an_access_log_no_stream_is_ended_early():
    bench = Bench(ends_early=False).has_sent(BUFFERED)

    bench.hears(response(), ResponseBody(WORD, end_of_stream=False))

    assert not bench.session.is_over


def test_where_no_body_comes_back_the_stream_ends_after_the_headers():
    bench = Bench().has_sent(NO_BODY_BACK)

    answers = bench.hears(response())

    assert names(answers) == ["response_headers"]
    assert bench.session.is_over


@given(st.lists(st.binary(max_size=200_000), max_size=5))
def test_full_duplex_echoes_every_chunk_and_never_ends_the_stream(pieces):
    bench = Bench().has_sent(DUPLEX)
    bench.hears(response())

    for piece in pieces:
        answers = bench.hears(ResponseBody(piece, end_of_stream=False))
        back, ends = given_back(answers, "response_body")
        assert back == piece
        assert not any(ends)
    last = bench.hears(ResponseBody(b"", end_of_stream=True))

    assert given_back(last, "response_body") == (b"", [True])
    assert not bench.session.is_over


def test_usage_is_read_from_the_end_of_a_stream_that_was_not_scanned():
    bench = Bench().has_sent(DUPLEX)

    bench.hears(response(), *[ResponseBody(WORD, end_of_stream=False)] * 1000)
    bench.hears(ResponseBody(USAGE[:30], end_of_stream=False))
    bench.hears(ResponseBody(USAGE[30:] + DONE, end_of_stream=True))

    assert [r.tokens for r in bench.records if isinstance(r, TokensSeen)] == [1]
    assert bench.records[-1].completion_tokens == 2


@pytest.mark.parametrize(
    ("status", "upstream", "outcome"),
    [
        (503, False, Outcome.ENGINE_GONE),
        (503, True, Outcome.ENGINE_REFUSED),
        (429, True, Outcome.ENGINE_REFUSED),
    ],
)
def test_an_error_status_ends_the_grant(status, upstream, outcome):
    bench = Bench().has_sent(DUPLEX)

    bench.hears(response(status, kind="text/plain", upstream=upstream))

    assert [grant.outcome for grant in bench.over] == [outcome]


def test_an_overload_that_is_told_inside_a_stream_is_the_engines_refusal():
    bench = Bench().has_sent(DUPLEX)
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'

    bench.hears(response(), ResponseBody(error, end_of_stream=True))

    assert [grant.outcome for grant in bench.over] == [Outcome.ENGINE_REFUSED]
    assert bench.over[0].engine_said


def test_the_grant_moves_to_where_the_request_was_served():
    bench = Bench().has_sent(DUPLEX)

    bench.hears(response(served="b:1"))

    ended, granted = bench.records
    assert (ended.worker, ended.outcome) == ("a:1", Outcome.ENGINE_GONE)
    assert isinstance(granted, Granted)
    assert granted.worker == "b:1"
    assert bench.grants.in_flight == {"b:1": 1}


def test_a_grant_that_another_pool_served_ends_and_is_no_longer_charged_here():
    bench = Bench().has_sent(DUPLEX)

    answers = bench.hears(response(served="elsewhere:1"), ResponseBody(WORD, end_of_stream=False))

    assert [grant.outcome for grant in bench.over] == [Outcome.SERVED_ELSEWHERE]
    assert bench.grants.in_flight == {}
    assert given_back(answers, "response_body")[0] == WORD


def test_fallbacks_follow_the_pick_in_one_list():
    bench = Bench()
    bench.hears(headers(DUPLEX), RequestBody(b"{}", end_of_stream=True))

    [answer, *_] = parts(bench.sends_on(fallbacks=("b:1", "c:1")))

    space = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    assert space.fields[wire.DESTINATION].string_value == "a:1,b:1,c:1"
    [header, *_] = answer.request_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == (wire.DESTINATION, b"a:1,b:1,c:1")


def test_a_grant_whose_stream_is_gone_before_the_response_was_left_by_its_client():
    bench = Bench().has_sent(DUPLEX)

    bench.session.leave(2.0)
    bench.session.leave(3.0)

    assert [(grant.outcome, grant.ended_at) for grant in bench.over] == [(Outcome.CLIENT_GONE, 2.0)]


def test_a_response_that_ends_in_trailers_is_whole():
    bench = Bench().has_sent(DUPLEX)
    bench.hears(response(), ResponseBody(WORD, end_of_stream=False))

    answers = bench.hears(ResponseTrailers())

    assert names(answers) == ["response_trailers"]
    assert [grant.outcome for grant in bench.over] == [Outcome.FINISHED]


def test_envoys_own_reply_to_a_request_that_is_not_whole_is_let_through():
    bench = Bench()
    bench.hears(headers(BUFFERED))

    answers = bench.hears(
        response(413, kind="text/plain", upstream=False),
        ResponseBody(b"Payload Too Large", end_of_stream=True),
    )

    assert names(answers) == ["response_headers", "response_body"]
    assert bench.records == []


EVENTS = st.one_of(
    st.builds(headers, st.sampled_from([DUPLEX, BUFFERED, NO_BODY_BACK])),
    st.builds(RequestBody, st.binary(max_size=9), st.booleans()),
    st.builds(RequestTrailers),
    st.builds(response, st.sampled_from([200, 503]), served=st.sampled_from([None, "b:1", "c:1"])),
    st.builds(ResponseBody, st.sampled_from([b"", ROLE, WORD, DONE]), st.booleans()),
    st.builds(ResponseTrailers),
)


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_whatever_envoy_sends_a_grant_ends_at_most_once_and_none_is_lost(events, witness):
    bench = Bench(witness=witness)

    for event in events:
        bench.hears(event)
        if bench.session.is_asking:
            bench.sends_on()
        bench.grants.check()
        if bench.session.is_over:
            break
    left_to_the_log = bench.session.is_over
    bench.session.leave(9.0)

    assert len(bench.over) <= 1
    assert left_to_the_log or not len(bench.grants)
