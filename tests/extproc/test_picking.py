"""Which endpoints are named for a request, and by whose wish."""

import pytest
from leadsman.budget import Budget
from leadsman.prediction import Admitted
from leadsman.records import WorkerSeen
from leadsman.request import Request
from leadsman.units import WorkerId
from leadsman_extproc import wire
from leadsman_extproc.conformance import ECHO, REPORT, SELECTION, report
from leadsman_extproc.events import ResponseHeaders
from leadsman_extproc.grants import Grants
from leadsman_extproc.picking import Picking
from leadsman_extproc.ports import ReadRequest
from leadsman_extproc.settings import Settings
from leadsman_extproc.shapes import Asked
from leadsman_extproc.verdict import Answer, PassOn, SendOn
from leadsman_extproc.workers import Workers

from .conftest import SETTINGS, KeepsAll, PicksInTurn

ENDPOINTS = ("10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80", "[::1]:80")
OTHERS = ENDPOINTS[1:]


class ReadsAtOnce:
    def read(self, arrival):
        request = Request(
            id=arrival.id,
            model="m",
            prompt_tokens=1,
            arrived_at=arrival.at,
            endpoints=arrival.subset,
        )
        return ReadRequest(request=request, api="openai")


class TakesTheFirst(PicksInTurn):
    """Admits on the first endpoint, with all others as fallbacks."""

    def decide(self, request, budget, now, rng):
        return Admitted(
            request=request.id,
            worker=WorkerId(ENDPOINTS[0]),
            endpoint=ENDPOINTS[0],
            prediction=None,
            fallbacks=OTHERS,
        )


def picking(rank=None, **settings):
    workers = Workers()
    for endpoint in ENDPOINTS:
        workers.apply(
            WorkerSeen(
                worker=WorkerId(endpoint), endpoint=endpoint, settings=SETTINGS, dp_rank=rank
            )
        )
    return Picking(
        reads=ReadsAtOnce(),
        picker=TakesTheFirst(),
        budget_for=lambda request, headers: Budget(),
        keeps=KeepsAll(),
        report=lambda record: None,
        grants=Grants(emit=lambda record: None, on_end=lambda grant: None),
        workers=workers,
        settings=Settings(**settings),
        clock=lambda: 1.0,
    )


def asked(body=b"{}", subset=None, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asked(headers={":path": "/v1/completions", **named}, body=body, subset=subset)


@pytest.mark.parametrize("most", [0, 1, 9])
def test_as_many_fallbacks_are_named_as_the_setting_says(most):
    verdict = picking(fallbacks=most).verdict(asked())

    assert isinstance(verdict, SendOn)
    assert verdict.fallbacks == OTHERS[:most]


def test_a_request_that_names_a_rank_goes_to_nobody_else():
    verdict = picking(rank=1, fallbacks=2).verdict(asked())

    assert verdict.headers["x-data-parallel-rank"] == "1"
    assert verdict.fallbacks == ()


@pytest.mark.parametrize(
    ("named", "eligible"),
    [
        ("10.0.0.2:80", {"10.0.0.2:80"}),
        ("10.0.0.1", {"10.0.0.1:80", "10.0.0.1:81"}),
        ("10.0.0.2, 10.0.0.1:81", {"10.0.0.2:80", "10.0.0.1:81"}),
        ("::1", {"[::1]:80"}),
    ],
)
def test_under_test_a_client_may_say_where_to_and_goes_before_the_subset(named, eligible):
    subject = picking(conformance=True)
    request = asked(b"", frozenset(OTHERS[-1:]), **{SELECTION: named})

    verdicts = [subject.verdict(request) for _ in range(60)]

    assert {verdict.endpoint for verdict in verdicts} == eligible
    assert all(verdict.headers[ECHO] == f"{REPORT}:{verdict.endpoint}" for verdict in verdicts)


def test_under_test_an_endpoint_that_is_not_there_is_no_endpoint():
    verdict = picking(conformance=True).verdict(asked(b"", **{SELECTION: "256.256.256.256"}))

    assert isinstance(verdict, Answer)
    assert verdict.reply.status == 503


def test_in_service_no_client_may_say_where_to():
    verdict = picking().verdict(asked(b"", frozenset(OTHERS[-1:]), **{SELECTION: ENDPOINTS[0]}))

    assert isinstance(verdict, PassOn)
    assert verdict.endpoint == OTHERS[-1]
    assert ECHO not in verdict.headers


@pytest.mark.parametrize("served", ["10.0.0.1:80", None])
def test_what_the_gateway_says_it_used_is_told_to_the_client_or_that_it_says_nothing(served):
    head = ResponseHeaders(200, "", from_upstream=True, served=served, end_of_stream=True)

    answer = wire.pb.ProcessingResponse.FromString(report(head))

    [header] = answer.response_headers.response.header_mutation.set_headers
    said = header.header.raw_value.decode()
    assert (header.header.key, said if served else said[:5]) == (REPORT, served or "fail:")
