"""Spans of decisions: which are made, what they hang on, and that nothing is where nobody looks."""

import asyncio
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import pytest
from leadsman.budget import Budget
from leadsman.fleet import Fleet
from leadsman.records import Outcome, WorkerSeen
from leadsman.request import Request
from leadsman.units import WorkerId
from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_extproc.grants import Grants
from leadsman_extproc.picking import Picking
from leadsman_extproc.ports import ReadRequest
from leadsman_extproc.settings import Settings
from leadsman_extproc.shapes import Asked
from leadsman_extproc.tracing import Traces, exporting
from leadsman_extproc.verdict import Answer, SendOn
from leadsman_extproc.workers import Workers
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from .conftest import SETTINGS, Behind, KeepsAll, PicksInTurn

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
SECRET = "what the prompt says"
PROMPT = SECRET.encode()
WORKER = WorkerSeen(worker=WorkerId("a"), endpoint="10.0.0.1:80", settings=SETTINGS)


class Reads:
    """Reads nothing of a body but its `max_queue_wait_s`."""

    def read(self, arrival):
        request = Request(
            id=arrival.id,
            model="hold-9" if b"hold" in arrival.body else SETTINGS.model,
            prompt_tokens=1000,
            arrived_at=arrival.at,
            tenant="the tenant",
        )
        return ReadRequest(request=request, api="openai")

    def learn(self, grant):
        pass


@dataclass
class Seen:
    """A picking, and what it made spans of."""

    picking: Picking
    exporter: InMemorySpanExporter

    async def spans(self):
        """What was made once the loop has come round."""
        await asyncio.sleep(0)
        return {span.name: span for span in self.exporter.get_finished_spans()}


def picker_of(fleet, *, budget=None):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider)
    workers = Workers()
    for taker in (workers.apply, lambda seen: fleet.apply(seen, time.monotonic())):
        taker(WORKER)
    picking = Picking(
        reads=Reads(),
        picker=fleet,
        budget_for=lambda request, headers: budget or Budget(),
        keeps=KeepsAll(),
        report=lambda record: None,
        grants=Grants(emit=lambda record: None, on_end=traces.ended),
        workers=workers,
        settings=Settings(),
        clock=time.monotonic,
        traces=traces,
    )
    return Seen(picking, exporter)


def asked(traceparent=None, body=PROMPT, **headers):
    given = {} if traceparent is None else {"traceparent": traceparent}
    return Asked(
        headers={":path": "/v1/completions", "x-request-id": "r-1", **given, **headers},
        body=body,
        subset=None,
    )


async def test_the_phases_of_a_decision_follow_each_other_within_it():
    seen = picker_of(Fleet())

    verdict = seen.picking.verdict(asked(SAMPLED))

    assert isinstance(verdict, SendOn)
    spans = await seen.spans()
    whole = spans["leadsman.decide"]
    phases = [spans[f"leadsman.{name}"] for name in ("read", "match", "price", "admit")]
    assert len(spans) == 1 + len(phases)
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert all(phase.parent.span_id == whole.context.span_id for phase in phases)
    begins, ends = [p.start_time for p in phases], [p.end_time for p in phases]
    assert begins == [whole.start_time, *ends[:-1]]
    assert sorted(ends) == ends
    assert begins[0] <= ends[0] < ends[-1] <= whole.end_time
    assert abs(time.time_ns() - whole.end_time) < 60e9


async def test_a_span_says_what_was_decided_and_why():
    seen = picker_of(Fleet())

    verdict = seen.picking.verdict(asked(SAMPLED))

    said = (await seen.spans())["leadsman.decide"].attributes
    price = verdict.grant.admitted.prediction.price
    assert said["leadsman.request"] == "r-1"
    assert said["gen_ai.request.model"] == SETTINGS.model
    assert said["leadsman.worker"] == "a"
    assert said["leadsman.because"] == verdict.grant.admitted.because
    assert said["leadsman.predicted_ttft_s"] == price.ttft
    assert said["leadsman.predicted_queue_wait_s"] == price.queue_wait
    assert said["leadsman.cached_tokens"] == price.cached_tokens
    assert said["leadsman.policy"] == Budget().policy


async def test_a_budget_that_asks_nobody_admits_by_nothing():
    seen = picker_of(Fleet(), budget=Budget(mode="off"))

    seen.picking.verdict(asked(SAMPLED))

    assert set(await seen.spans()) == {
        f"leadsman.{n}" for n in ("decide", "read", "match", "price")
    }


async def test_a_refusal_is_traced_with_its_reason():
    seen = picker_of(PicksInTurn())
    seen.picking.reads = ReadsARefusal()

    verdict = seen.picking.verdict(asked(SAMPLED))

    assert isinstance(verdict, Answer)
    said = (await seen.spans())["leadsman.decide"].attributes
    assert (said["leadsman.reason"], said["leadsman.policy"]) == (
        "would_wait_too_long",
        "predicted_wait",
    )
    assert (said["leadsman.retry_after_s"], said["leadsman.predicted_queue_wait_s"]) == (1.25, 9.5)
    assert "leadsman.worker" not in said


class ReadsARefusal(Reads):
    def read(self, arrival):
        request = Request(id=arrival.id, model="refuse-429", prompt_tokens=1, arrived_at=arrival.at)
        return ReadRequest(request=request, api="openai")


async def test_what_was_held_has_a_span_of_its_hold():
    fleet = PicksInTurn(wait=5.0, longest=0.05)
    seen = picker_of(fleet)

    verdict = await seen.picking.verdict(asked(SAMPLED, b"hold"))

    assert isinstance(verdict, SendOn)
    spans = await seen.spans()
    hold, whole = spans["leadsman.hold"], spans["leadsman.decide"]
    assert hold.parent.span_id == whole.context.span_id
    assert hold.end_time - hold.start_time >= 0.04e9
    assert whole.start_time <= hold.start_time


async def test_an_answers_span_hangs_on_the_same_parent_and_tells_its_first_token():
    seen = picker_of(Fleet())
    grants, grant = seen.picking.grants, seen.picking.verdict(asked(SAMPLED)).grant

    grants.see(grant, 1, grant.sent_at + 0.25)
    grants.end(grant, Outcome.FINISHED, grant.sent_at + 1.0)

    answer = (await seen.spans())["leadsman.answer"]
    [first] = answer.events
    assert f"{answer.parent.span_id:016x}" == PARENT
    assert first.name == "first token"
    assert abs(first.timestamp - answer.start_time - 0.25e9) < 1e6
    assert answer.attributes["leadsman.outcome"] == "finished"
    assert answer.attributes["leadsman.ttft_s"] == pytest.approx(0.25)
    assert "leadsman.cached_tokens_found" not in answer.attributes
    assert seen.picking.traces.sent == {}


async def test_a_decision_that_failed_is_traced_as_the_fallback_that_it_was():
    seen = picker_of(PicksInTurn())
    seen.picking.reads = FailsToRead()

    seen.picking.verdict(asked(SAMPLED))

    spans = await seen.spans()
    assert set(spans) == {"leadsman.decide"}
    assert spans["leadsman.decide"].attributes["leadsman.because"] == "least_loaded"


class FailsToRead(Reads):
    def read(self, arrival):
        raise RuntimeError("this reading fails")


@pytest.mark.parametrize("traceparent", [None, "", UNSAMPLED, "garbage"])
async def test_what_is_not_sampled_is_not_measured(traceparent):
    fleet = Fleet()
    seen = picker_of(fleet)

    grant = seen.picking.verdict(asked(traceparent)).grant
    seen.picking.grants.end(grant, Outcome.FINISHED, grant.sent_at)

    assert await seen.spans() == {}
    assert fleet.passed is None


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
    ],
)
async def test_a_parent_that_is_written_wrong_has_no_children(traceparent):
    seen = picker_of(Fleet())

    grant = seen.picking.verdict(asked(traceparent)).grant
    seen.picking.grants.end(grant, Outcome.FINISHED, grant.sent_at)

    assert await seen.spans() == {}
    assert seen.picking.traces.sent == {}


async def test_one_that_is_sampled_leaves_the_next_unmeasured():
    fleet = Fleet()
    seen = picker_of(fleet)

    seen.picking.verdict(asked(SAMPLED))
    seen.picking.verdict(asked(UNSAMPLED))

    assert fleet.passed is None


async def test_the_gateways_own_span_goes_before_the_requests_header():
    seen = picker_of(Fleet())
    own = f"00-{TRACE}-{'a' * 16}-01".encode()

    seen.picking.verdict(asked(SAMPLED), {b"traceparent": own})
    seen.picking.verdict(asked(SAMPLED), {b"traceparent": own[:-1] + b"0"})

    await seen.spans()
    wholes = [s for s in seen.exporter.get_finished_spans() if s.name == "leadsman.decide"]
    assert [f"{span.parent.span_id:016x}" for span in wholes] == ["a" * 16]


async def test_no_span_holds_the_prompt_or_who_sent_it():
    seen = picker_of(Fleet())

    grant = seen.picking.verdict(asked(SAMPLED, authorization=SECRET)).grant
    seen.picking.grants.end(grant, Outcome.FINISHED, grant.sent_at)

    spans = (await seen.spans()).values()
    assert len(spans) == 6
    told = " ".join(span.to_json() for span in spans)
    assert SECRET not in told
    assert "the tenant" not in told


def test_without_the_extra_tracing_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.setattr("leadsman_extproc.settings.find_spec", lambda name: None)

    with pytest.raises(ValueError, match=r"pip install 'leadsman\[otel\]'"):
        Settings(tracing=True)


# -- through a real Envoy, to a real receiver ------------------------------------------------------


class Collector:
    """Takes OTLP over HTTP, as a collector does: JSON of ours, protobuf of the gateway."""

    def __init__(self):
        self.told, self.changed = [], threading.Condition()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever).start()

    def _handler(self):
        collector = self

        class Takes(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = body_of(self)
                is_json = self.headers["content-type"] == "application/json"
                with collector.changed:
                    collector.told += from_json(raw) if is_json else from_protobuf(raw)
                    collector.changed.notify_all()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Takes

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def spans(self, service):
        return [span for span in self.told if span.resource["service.name"] == service]

    def waits_for(self, *wanted):
        """Wait until spans of these (service, name) are there; give the last of each."""

        def found():
            have = {(who, span.name): span for who, _ in wanted for span in self.spans(who)}
            return [have[one] for one in wanted] if all(one in have for one in wanted) else None

        with self.changed:
            assert self.changed.wait_for(found, timeout=15), self.told
            return found()


def body_of(request):
    if "content-length" in request.headers:
        return request.rfile.read(int(request.headers["content-length"]))
    pieces = []
    while size := int(request.rfile.readline(), 16):
        pieces.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(pieces)


@dataclass(frozen=True)
class Told:
    """A span that a collector was told."""

    resource: dict
    name: str
    trace: str
    span: str
    parent: str
    begins: int
    ends: int
    attributes: dict
    events: dict


def from_json(raw):
    for resource in json.loads(raw)["resourceSpans"]:
        of = attributes_of(resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Told(
                    resource=of,
                    name=span["name"],
                    trace=span["traceId"],
                    span=span["spanId"],
                    parent=span.get("parentSpanId", ""),
                    begins=int(span["startTimeUnixNano"]),
                    ends=int(span["endTimeUnixNano"]),
                    attributes=attributes_of(span.get("attributes", [])),
                    events={
                        one["name"]: int(one["timeUnixNano"]) for one in span.get("events", [])
                    },
                )


def attributes_of(listed):
    return {one["key"]: next(iter(one["value"].values())) for one in listed}


def from_protobuf(raw):
    """Read what Envoy exports; scopes were once called instrumentation libraries."""
    for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
        of = {one.key: one.value.string_value for one in resource.resource.attributes}
        for scope in resource.instrumentation_library_spans:
            for span in scope.spans:
                yield Told(
                    resource=of,
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    begins=span.start_time_unix_nano,
                    ends=span.end_time_unix_nano,
                    attributes={},
                    events={},
                )


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    yield collector
    collector.close()


@dataclass(frozen=True)
class TracingEnvoy:
    """An Envoy that has traces of its own, in the same collector."""

    config: EnvoyConfig
    collector: str

    def bootstrap(self):
        made = self.config.bootstrap()
        [listener] = made["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        uri = {"uri": f"http://{self.collector}/v1/traces", "cluster": "collector"}
        manager["tracing"] = {
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "http_service": {"http_uri": {**uri, "timeout": "1s"}},
                    "service_name": "gateway",
                },
            }
        }
        host, _, port = self.collector.partition(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        cluster = {
            "name": "collector",
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": "collector",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
            },
        }
        made["static_resources"]["clusters"].append(cluster)
        return {**made, **FLUSHES_AT_ONCE}


FLUSHES_AT_ONCE = {
    "layered_runtime": {
        "layers": [
            {
                "name": "at once",
                "static_layer": {
                    "tracing.opentelemetry.flush_interval_ms": 50,
                    "tracing.opentelemetry.min_flush_spans": 1,
                },
            }
        ]
    }
}


@pytest.fixture(params=["buffered", "duplex"])
def traced(request, collector, monkeypatch):
    """A stack whose picker exports to the collector; gives it and a maker of its Envoy."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    collector.told.clear()
    behind = Behind(request.param, engines=1)
    with behind as stack:
        traces = exporting(time.monotonic)
        stack.picking.traces = traces
        stack.picking.grants.on_end = lambda grant: (stack.keeps.ended(grant), traces.ended(grant))
        yield (
            stack,
            EnvoyConfig(
                engines=behind.endpoints,
                picker=f"127.0.0.1:{stack.server.port}",
                profile=request.param,
                logs_access=request.param == "buffered",
            ),
        )
    traces.close()


async def ask(url, **headers):
    chat = {"model": "any", "stream": True, "messages": [{"role": "user", "content": SECRET}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/v1/chat/completions", json=chat, headers=headers) as answer,
    ):
        assert answer.status == 200
        await answer.read()


@pytest.mark.envoy
async def test_spans_reach_a_collector_as_children_of_the_gateways(traced, collector):
    stack, config = traced

    with running_envoy(TracingEnvoy(config, collector.address)) as envoy:
        await ask(envoy.url, traceparent=SAMPLED)
        wanted = [("leadsman", "leadsman.decide"), ("leadsman", "leadsman.answer")]
        decide, answer = await asyncio.to_thread(collector.waits_for, *wanted)
        assert await asyncio.to_thread(stack.comes, lambda: len(collector.spans("gateway")) >= 2)

    gateways = {span.span: span for span in collector.spans("gateway")}
    assert "ext_proc" in gateways[decide.parent].name
    assert answer.parent == decide.parent
    assert {span.trace for span in [decide, answer, *gateways.values()]} == {TRACE}
    [grant] = stack.keeps.grants
    assert decide.attributes["leadsman.request"] == grant.request.id
    assert answer.attributes["leadsman.outcome"] == "finished"


@pytest.mark.envoy
async def test_without_a_tracer_in_the_gateway_the_clients_trace_is_joined(traced, collector):
    _, config = traced

    with running_envoy(config) as envoy:
        await ask(envoy.url, traceparent=UNSAMPLED)
        await ask(envoy.url, traceparent=SAMPLED)
        [answer] = await asyncio.to_thread(collector.waits_for, ("leadsman", "leadsman.answer"))

    [decide] = [one for one in collector.spans("leadsman") if one.name == "leadsman.decide"]
    assert decide.parent == answer.parent == PARENT
    assert decide.trace == TRACE
    assert decide.begins < answer.events["first token"] <= answer.ends
    assert answer.resource["deployment.environment.name"] == "test"
    assert SECRET not in str(collector.told)
