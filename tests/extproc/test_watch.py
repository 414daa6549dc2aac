"""Watching responses: what is seen of one does not hang on how the network cuts it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.prediction import Admitted
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.events import ResponseHeaders
from leadsman_extproc.grants import Grant, Grants
from leadsman_extproc.watch import TAIL, Watch, Watching
from leadsman_extproc.workers import Workers

from .test_sse import CHAT_STREAM, JSON, RESPONSES_STREAM, STREAM, STREAMS, cut, data, responds

ERROR = data({"error": {"message": "full", "code": 503}}) + "data: [DONE]\n\n"


def opened(*, max_tokens: int | None = None) -> tuple[Grants, Grant]:
    grants = Grants(emit=lambda record: None, on_end=lambda grant: None)
    request = Request(
        id=RequestId("r"), model="m", prompt_tokens=9, arrived_at=0.0, max_tokens=max_tokens
    )
    admitted = Admitted(request=request.id, worker=WorkerId("w"), endpoint="h:1", prediction=None)
    return grants, grants.open(request, admitted, 0.0)


def watch(
    grants: Grants, grant: Grant, kind: str, *, witness: bool = False, status: int = 200
) -> Watch:
    head = ResponseHeaders(status, kind, from_upstream=True, served=None, end_of_stream=False)
    watching = Watching(grants=grants, workers=Workers(), wants_witness=lambda worker: witness)
    return watching(grant, head, 1.0)


def seen(pieces: Sequence[bytes], *, witness: bool) -> tuple[object, ...]:
    grants, grant = opened()
    watching = watch(grants, grant, STREAM, witness=witness)
    for piece in pieces:
        watching.feed(piece, 2.0)
    watching.end(3.0)
    return grant.outcome, grant.usage, grant.engine_said, grant.first_token_at


@pytest.mark.parametrize("witness", [True, False])
@pytest.mark.parametrize("text", [*STREAMS, ERROR])
@given(draw=st.data())
def test_where_the_network_cuts_a_response_changes_nothing_of_its_end(text, witness, draw):
    whole = seen([text.encode()], witness=witness)

    pieces = seen(draw.draw(cut(text)), witness=witness)

    assert pieces == whole


def test_of_a_long_stream_that_nobody_scans_the_end_is_kept():
    text = CHAT_STREAM.encode()
    at = text.index(b": keep alive")
    middle = b": still there\n\n" * TAIL

    _, usage, *_ = seen([text[:at], middle, text[at:]], witness=False)

    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (90, 64, 5)


def test_an_error_in_a_stream_of_status_200_is_the_engines_refusal():
    outcome, _, said, first = seen([ERROR.encode()], witness=False)

    assert (outcome, said, first) == (Outcome.ENGINE_REFUSED, "full", None)


@pytest.mark.parametrize(
    ("max_tokens", "kind", "status", "first"),
    [
        pytest.param(1, JSON, 200, 1.0, id="all that there is"),
        pytest.param(2, JSON, 200, None, id="the last of more"),
        pytest.param(None, JSON, 200, None, id="the last of any number"),
        pytest.param(1, STREAM, 200, None, id="its first chunk is to come"),
        pytest.param(1, JSON, 400, None, id="an error"),
    ],
)
def test_the_answer_of_one_token_is_its_first_token(max_tokens, kind, status, first):
    grants, grant = opened(max_tokens=max_tokens)

    watch(grants, grant, kind, status=status)

    assert grant.first_token_at == first


def test_a_stream_that_never_answered_had_no_first_token():
    grants, grant = opened(max_tokens=1)

    watch(grants, grant, "", status=0).gone(2.0, response_was_unseen=False)

    assert (grant.first_token_at, grant.outcome) == (None, Outcome.CLIENT_GONE)


@pytest.mark.parametrize("witness", [True, False])
def test_a_grant_knows_how_its_response_is_gone_on_from(witness):
    grants, grant = opened()
    watching = watch(grants, grant, STREAM, witness=witness)
    watching.feed(responds("created", response={"id": "resp_a1"}).encode(), 2.0)

    watching.feed(RESPONSES_STREAM.encode(), 2.5)
    watching.end(3.0)

    assert (grant.response, grant.usage.prompt_tokens) == ("resp_a1", 90)
