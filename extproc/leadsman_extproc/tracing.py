"""Spans of a decision, in the gateway's own trace; needs the extra `otel`.

Traced is what the gateway samples, and nothing else: the parent is the span that it tells on its
ext_proc call, or else the request's own `traceparent`; where neither says sampled, nothing is
measured. A picker begins no traces: one that begins here would show a decision about nothing.

    leadsman.decide   from the whole request to the decision
      leadsman.read     parsing, tokens, keys; what an engine's tokenizer takes too
      leadsman.match    what each worker's cache holds of the prompt, and the floors
      leadsman.price    replays, until routing has chosen
      leadsman.admit    its rule, and the reservation
      leadsman.hold     in the lobby, until its turn
    leadsman.answer   from the decision to the end, with the first token as an event

Times are noted on the path; spans are made of them after the answer has left. What is exported
where is said by OpenTelemetry's own environment variables. No span has anything of a prompt, nor
who sent it.

Source: W3C Trace Context, level 1; OpenTelemetry's SDK specification, environment variables.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from leadsman.prediction import Admitted, Decision, Prediction
from leadsman.request import Request
from leadsman.units import RequestId, Seconds
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from leadsman_extproc.grants import Grant

_W3C: Final = TraceContextTextMapPropagator()
_FIELDS: Final = ("traceparent", "tracestate")
_FLAGS_END: Final = 55
"""Bytes of version 00; what a later version puts behind them is not ours to read."""

Attributes = dict[str, AttributeValue]


@dataclass(slots=True)
class OneTrace:
    """What is measured of one request: each phase, and when it was over.

    told: the headers that name the parent.
    """

    traces: "Traces"
    told: Mapping[str, str]
    at: Seconds
    phases: list[tuple[str, Seconds]] = field(default_factory=list)

    def passed(self, phase: str) -> None:
        """Note that a phase is over now; the next begins."""
        self.phases.append((phase, self.traces.clock()))

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Make the spans of a decision, once what is under way is done."""
        if isinstance(decision, Admitted):
            self.traces.sent[request.id] = self
        asyncio.get_running_loop().call_soon(self.traces.write, self, request, decision, now)

    def parent(self) -> Context | None:
        """Read who the parent is; None where it is written wrong."""
        context = _W3C.extract(self.told)
        return context if get_current_span(context).get_span_context().is_valid else None


@dataclass(slots=True)
class Traces:
    """Makes the spans of one picker. clock: its own. sent: those whose answers are to come."""

    provider: TracerProvider
    clock: Callable[[], Seconds] = time.monotonic
    sent: dict[RequestId, OneTrace] = field(default_factory=dict)

    def begin(
        self, call: Mapping[bytes, bytes], headers: Mapping[str, str], at: Seconds
    ) -> OneTrace | None:
        """Begin to measure a request that came at `at`; None where its trace is not sampled.

        call: the headers of the gateway's call; headers: those of the request.
        """
        if b"traceparent" in call:
            headers = {name: call.get(name.encode(), b"").decode("latin-1") for name in _FIELDS}
        if not _is_sampled(headers.get("traceparent", "")):
            return None
        return OneTrace(self, {name: headers[name] for name in _FIELDS if headers.get(name)}, at)

    def write(self, trace: OneTrace, request: Request, decision: Decision, now: Seconds) -> None:
        """Make the spans of a decision that was made at `now`."""
        parent = trace.parent()
        if parent is None:
            return
        at = self._wall_clock()
        tracer = self.provider.get_tracer("leadsman")
        said = _of_decision(request, decision)
        whole = tracer.start_span(
            "leadsman.decide", parent, attributes=said, start_time=at(trace.at)
        )
        inside, begun = set_span_in_context(whole), trace.at
        for phase, over in trace.phases:
            part = tracer.start_span(f"leadsman.{phase}", inside, start_time=at(begun))
            part.end(at(over))
            begun = over
        if decision.held_for is not None:
            began = at(now - decision.held_for)
            tracer.start_span("leadsman.hold", inside, start_time=began).end(at(now))
        whole.end(at(now))

    def ended(self, grant: Grant) -> None:
        """Make the span of an answer that is over."""
        trace = self.sent.pop(grant.request.id, None)
        if trace is not None:
            asyncio.get_running_loop().call_soon(self._write_answer, trace, grant)

    def _write_answer(self, trace: OneTrace, grant: Grant) -> None:
        parent = trace.parent()
        if parent is None or grant.ended_at is None:
            return
        at = self._wall_clock()
        span = self.provider.get_tracer("leadsman").start_span(
            "leadsman.answer",
            parent,
            attributes=_of_answer(grant),
            start_time=at(grant.sent_at),
        )
        if grant.first_token_at is not None:
            span.add_event("first token", timestamp=at(grant.first_token_at))
        span.end(at(grant.ended_at))

    def close(self) -> None:
        """Export what is left; takes as long as an export may, where nobody takes it."""
        self.provider.shutdown()

    def _wall_clock(self) -> Callable[[Seconds], int]:
        """Give what turns the picker's times into nanoseconds since 1970."""
        zero = time.time_ns() - round(self.clock() * 1e9)
        return lambda at: zero + round(at * 1e9)


def exporting(clock: Callable[[], Seconds]) -> Traces:
    """Make spans, and export them as the OTEL_* variables of the environment say."""
    resource = Resource.create({"service.name": "leadsman"})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider, clock)


def _is_sampled(traceparent: str) -> bool:
    """Whether the flags say so; cheap, as it is asked of each request."""
    return len(traceparent) >= _FLAGS_END and traceparent[_FLAGS_END - 1] in "13579bdf"


def _of_decision(request: Request, decision: Decision) -> Attributes:
    said: Attributes = {
        "leadsman.request": request.id,
        "gen_ai.request.model": request.model,
        "leadsman.prompt_tokens": request.prompt_tokens,
        "leadsman.tokens_are_exact": request.tokens_are_exact,
        "leadsman.candidates": len(decision.candidates),
    }
    if decision.budget is not None:
        said["leadsman.policy"] = decision.budget.policy
        said["leadsman.mode"] = decision.budget.mode
    if isinstance(decision, Admitted):
        said["leadsman.because"] = decision.because
        return said | _of_worker(decision.worker, decision.prediction)
    said["leadsman.reason"] = decision.reason
    said["leadsman.policy"] = decision.policy
    said["leadsman.retry_after_s"] = decision.retry_after
    if decision.predicted_wait is not None:
        said["leadsman.predicted_queue_wait_s"] = decision.predicted_wait
    return said


def _of_worker(worker: str, prediction: Prediction | None) -> Attributes:
    if prediction is None:
        return {"leadsman.worker": worker}
    return {
        "leadsman.worker": worker,
        "leadsman.trust": prediction.trust,
        "leadsman.cached_tokens": prediction.price.cached_tokens,
        "leadsman.predicted_queue_wait_s": prediction.price.queue_wait,
        "leadsman.predicted_ttft_s": prediction.price.ttft,
    }


def _of_answer(grant: Grant) -> Attributes:
    known = {
        "leadsman.request": grant.request.id,
        "leadsman.outcome": grant.outcome,
        "leadsman.ttft_s": grant.ttft,
        "gen_ai.usage.input_tokens": grant.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": grant.usage.completion_tokens,
        "leadsman.cached_tokens_found": grant.usage.cached_tokens,
    }
    said = _of_worker(grant.worker, grant.admitted.prediction)
    return said | {name: value for name, value in known.items() if value is not None}
