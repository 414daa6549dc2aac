import pytest
from envoy.service.accesslog.v3 import als_pb2
from leadsman.prediction import Admitted
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.access_log import AccessLog
from leadsman_extproc.grants import Grants, Usage

SENT = 100.0


@pytest.fixture
def over():
    return []


@pytest.fixture
def grants(over):
    grants = Grants(emit=lambda record: None, on_end=over.append)
    request = Request(id=RequestId("r"), model="m", prompt_tokens=3, arrived_at=SENT)
    admitted = Admitted(request=request.id, worker=WorkerId("a"), endpoint="a", prediction=None)
    grants.open(request, admitted, SENT)
    return grants


def log(grants):
    return AccessLog(grants, lambda: 200.0)


def message(request="r", *, flags=(), status=200, kind="text/event-stream", **usage):
    whole = als_pb2.StreamAccessLogsMessage()
    entry = whole.http_logs.log_entry.add()
    entry.request.request_id = request
    entry.response.response_code.value = status
    entry.response.response_headers["content-type"] = kind
    common = entry.common_properties
    common.duration.FromMilliseconds(9000)
    common.time_to_first_upstream_tx_byte.FromMilliseconds(1000)
    common.custom_tags["ttft_us"] = "2500000"
    common.metadata.filter_metadata["epp.usage"].update(usage)
    for flag in flags:
        setattr(common.response_flags, flag, True)
    return whole


def test_the_log_ends_a_grant_at_the_time_that_its_own_durations_say(grants, over):
    entry = message(prompt_tokens=9, completion_tokens=4, cached_tokens=2)

    log(grants).take(entry.SerializeToString())

    [grant] = over
    assert (grant.outcome, grant.ended_at, grant.ttft) == (Outcome.FINISHED, SENT + 8.0, 2.5)
    assert grant.usage == Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=2)
    assert len(grants) == 0


def test_a_first_token_that_was_seen_stands(grants, over):
    grants.see(grants.of("r"), 1, SENT + 3.0)

    log(grants).take(message().SerializeToString())

    assert over[0].ttft == 3.0


def test_the_first_byte_of_an_answer_in_one_piece_is_no_first_token(grants, over):
    log(grants).take(message(kind="application/json").SerializeToString())

    assert over[0].ttft is None
    assert over[0].usage == Usage()


@pytest.mark.parametrize(
    ("flags", "status", "outcome"),
    [
        (["downstream_connection_termination"], 0, Outcome.CLIENT_GONE),
        (["upstream_connection_failure"], 503, Outcome.ENGINE_GONE),
        (["upstream_connection_termination"], 200, Outcome.ENGINE_GONE),
        ([], 429, Outcome.ENGINE_REFUSED),
    ],
)
def test_the_flags_say_who_left(grants, over, flags, status, outcome):
    log(grants).take(message(flags=flags, status=status).SerializeToString())

    assert [grant.outcome for grant in over] == [outcome]


def test_an_entry_of_another_request_or_of_one_that_goes_on_ends_nothing(grants, over):
    still_going = message()
    still_going.http_logs.log_entry[0].common_properties.intermediate_log_entry = True

    log(grants).take(message("other").SerializeToString())
    log(grants).take(still_going.SerializeToString())

    assert over == []


def test_a_second_entry_of_a_request_changes_nothing(grants, over):
    for _ in range(2):
        log(grants).take(message().SerializeToString())

    assert len(over) == 1
