import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc import wire
from leadsman_extproc.events import BodyMode, Profile, RequestBody, ResponseHeaders


def first_message(**fields):
    message = pb.ProcessingRequest(**fields)
    headers = message.request_headers.headers.headers
    headers.add(key=":path", raw_value=b"/v1/models")
    headers.add(key="x-old", value="text")
    return message


def with_metadata(message, namespace, **values):
    space = Struct()
    space.update(values)
    message.metadata_context.filter_metadata[namespace].CopyFrom(space)
    return message


def test_the_body_modes_are_read_from_the_first_message():
    message = first_message(protocol_config={"request_body_mode": 2, "response_body_mode": 1})

    event = wire.read(message.SerializeToString())

    assert event.profile == Profile(request=BodyMode.BUFFERED, response=BodyMode.STREAMED)
    assert event.headers == {":path": "/v1/models", "x-old": "text"}


def test_a_proxy_that_names_no_modes_is_taken_for_full_duplex():
    event = wire.read(first_message().SerializeToString())

    assert event.profile.request is BodyMode.FULL_DUPLEX_STREAMED


@pytest.mark.parametrize("hint", [["10.0.0.1:80", "[::1]:81"], "10.0.0.1:80, [::1]:81,"])
def test_a_subset_hint_is_read_as_a_list_and_as_a_string(hint):
    message = with_metadata(first_message(), "envoy.lb.subset_hint", **{wire.SUBSET: hint})

    assert wire.read(message.SerializeToString()).subset == {"10.0.0.1:80", "[::1]:81"}


def test_an_empty_subset_hint_is_not_the_same_as_none():
    message = with_metadata(first_message(), "envoy.lb.subset_hint", **{wire.SUBSET: []})

    assert wire.read(message.SerializeToString()).subset == frozenset()
    assert wire.read(first_message().SerializeToString()).subset is None


def test_the_served_endpoint_is_read_with_the_response():
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    with_metadata(message, "envoy.lb", **{wire.SERVED: "10.0.0.1:80"})

    event = wire.read(message.SerializeToString())

    assert event == ResponseHeaders(200, "", False, "10.0.0.1:80", False)


def test_an_end_without_a_message_is_an_end():
    message = pb.ProcessingRequest()
    message.request_body.end_of_stream_without_message = True

    assert wire.read(message.SerializeToString()) == RequestBody(b"", True)


def test_a_message_of_no_kind_is_nothing_and_bytes_that_are_no_message_are_an_error():
    assert wire.read(b"") is None

    with pytest.raises(DecodeError):
        wire.read(b"\xff\xff\xff")


ENDPOINTS = st.sampled_from(["10.0.0.1:8000", "[fd00::1]:80", "10.0.0.1:8000,10.0.0.2:8000"])
HEADERS = st.dictionaries(st.sampled_from(["x-session-id", "x-a", "b"]), st.text(max_size=300))


@given(st.lists(st.tuples(ENDPOINTS, HEADERS, st.sampled_from(["headers", "body"])), max_size=6))
def test_every_request_is_routed_by_its_own_endpoint_and_headers(requests):
    for endpoint, headers, part in requests:
        told = pb.ProcessingResponse.FromString(wire.routed(endpoint, headers, answers=part))

        response = getattr(told, f"request_{part}").response
        options = response.header_mutation.set_headers
        found = {option.header.key: option.header.raw_value.decode() for option in options}
        space = told.dynamic_metadata["envoy.lb"]
        assert found == {wire.DESTINATION: endpoint, **headers}
        assert {option.append_action for option in options} == {2}
        assert response.clear_route_cache
        assert space[wire.DESTINATION] == endpoint
