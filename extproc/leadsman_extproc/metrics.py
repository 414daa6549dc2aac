"""What the picker counts, and its page for Prometheus.

The request path adds to plain integers (0.1 us); the page is rendered from them when it is asked
for. A prediction counts as graded once its first token was seen. Every family of ours stands in one
of the tables below, from which the page, the dashboard and docs/reference/metrics.md are made; the
names that other endpoint pickers export as well are `peer_names`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from leadsman.condition import Condition
from leadsman.prediction import Admitted, Prediction, Refused
from leadsman.records import StoreSeen
from leadsman.request import Request
from leadsman.shares import Standing
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman_fleet.page.access import is_allowed
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from leadsman_extproc.grants import Grant
from leadsman_extproc.histogram import TOKENS, WAITS, WORK, Histogram

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Gauges: TypeAlias = Mapping[str, Callable[[], Mapping[WorkerId, int]]]
"""What each gauge of `IN_FLIGHT` stands at, by worker; asked from another thread."""

MOST_MODELS: Final = 100
OTHER: Final = "other"


@dataclass(slots=True)
class OfModel:
    """What is counted of one model's requests. failed: by what they failed of."""

    requests: int = 0
    running: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=lambda: Histogram(WAITS))
    duration: Histogram = field(default_factory=lambda: Histogram(WAITS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    cached_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    completion_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))


@dataclass(slots=True)
class Counts:
    """Plain counts, each by the label that its name says.

    fallbacks: by cause, `deadline` or `error`. policy_faults: by policy/cause.
    within: by limit, of `graded` predictions.
    quantiles: by confidence, of them those that said a quantile, and quantiles_kept: whose TTFT was
    within it; quantiles_missable: how many need not be. parity: comparisons of our tokens with an
    engine's, by verdict. token_parity: by model, whether they were alike when last compared: False,
    and its requests are tokenized by an engine. trust: gives each worker, how far its cache view is
    believed now, and why. conditions: how each stands. stores: how each shared store was last read.
    held: counts the requests that are held now; held_seconds: for how long others were, by what
    became of them. shares: how tenants with a weight of their own stand, by budget.
    """

    decisions: Counter[str] = field(default_factory=Counter)
    tokens_by: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    policy_faults: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    quantiles: Counter[str] = field(default_factory=Counter)
    quantiles_kept: Counter[str] = field(default_factory=Counter)
    quantiles_missable: dict[str, float] = field(default_factory=dict)
    cache_estimates: Counter[str] = field(default_factory=Counter)
    parity: Counter[str] = field(default_factory=Counter)
    token_parity: dict[str, bool] = field(default_factory=dict)
    trust: Callable[[], Iterable[tuple[str, str, str]]] = tuple
    conditions: Callable[[], Iterable[Condition]] = tuple
    stores: Callable[[], Iterable[StoreSeen]] = tuple
    pool: str = ""
    models: dict[str, OfModel] = field(default_factory=dict)
    graded: int = 0
    journal_dropped: int = 0
    journal_failed: int = 0
    ttft_seconds: Histogram = field(default_factory=lambda: Histogram(WAITS))
    predicted_ttft_seconds: Histogram = field(default_factory=lambda: Histogram(WAITS))
    predicted_queue_wait_seconds: Histogram = field(default_factory=lambda: Histogram(WAITS))
    error_seconds: Histogram = field(default_factory=lambda: Histogram(WAITS))
    retry_after_seconds: Histogram = field(default_factory=lambda: Histogram(WAITS))
    read_seconds: Histogram = field(default_factory=lambda: Histogram(WORK))
    decide_seconds: Histogram = field(default_factory=lambda: Histogram(WORK))
    held: Callable[[], int] = int
    shares: Callable[[], Iterable[tuple[str, str, Standing]]] = tuple
    held_seconds: dict[str, Histogram] = field(default_factory=dict)

    def admitted(self, request: Request, admitted: Admitted) -> None:
        """Count a request that is sent on."""
        self.decisions["admitted"] += 1
        if admitted.refusal is not None:
            self.set_aside[admitted.refusal.reason] += 1
        if admitted.prediction is not None:
            price = admitted.prediction.price
            self.predicted_ttft_seconds.observe(price.ttft)
            waits = price.queue_wait + (admitted.held_for or 0.0)
            self.predicted_queue_wait_seconds.observe(waits)
        of = self.of_model(request.model)
        of.requests += 1
        of.running += 1

    def refused(self, refused: Refused) -> None:
        """Count a refusal."""
        self.decisions["refused"] += 1
        self.refusals[refused.reason] += 1
        self.retry_after_seconds.observe(refused.retry_after)
        if refused.candidates:
            waits = min(one.price.queue_wait for one in refused.candidates)
            self.predicted_queue_wait_seconds.observe(waits + (refused.held_for or 0.0))

    def held_for(self, outcome: str, seconds: Seconds) -> None:
        """Count a request that is held no longer."""
        if outcome not in self.held_seconds:
            self.held_seconds[outcome] = Histogram(WAITS)
        self.held_seconds[outcome].observe(seconds)

    def ended(self, grant: Grant) -> None:
        """Count how a granted request ended."""
        assert grant.outcome is not None
        self.outcomes[grant.outcome] += 1
        of, usage = self.of_model(grant.request.model), grant.usage
        of.running -= 1
        if grant.outcome != "finished":
            of.failed[grant.outcome] += 1
        if grant.ended_at is not None:
            of.duration.observe(grant.ended_at - grant.sent_at)
        if grant.ttft is not None:
            of.ttft.observe(grant.ttft)
            self.ttft_seconds.observe(grant.ttft)
        of.prompt_tokens.observe(usage.prompt_tokens or grant.request.prompt_tokens)
        if usage.cached_tokens is not None:
            of.cached_tokens.observe(usage.cached_tokens)
        if usage.completion_tokens is not None:
            of.completion_tokens.observe(usage.completion_tokens)

    def grade(self, prediction: Prediction, actual: Seconds, found: Tokens | None) -> None:
        """Count how good a prediction was; found: cached tokens that the engine reported."""
        off = abs(prediction.price.ttft - actual)
        self.graded += 1
        self.error_seconds.observe(off)
        self.within["1s"] += off <= 1.0
        self.within["10s"] += off <= 10.0
        self.within["relative"] += off <= max(0.1, 0.15 * actual)
        confidence = f"{prediction.confidence:g}"
        self.quantiles[confidence] += 1
        self.quantiles_kept[confidence] += actual <= prediction.ttft_bound
        missable = self.quantiles_missable.get(confidence, 0.0)
        self.quantiles_missable[confidence] = missable + 1.0 - prediction.confidence
        size = prediction.block_size or 1
        if found is not None:
            is_match = found // size == prediction.price.cached_tokens // size
            self.cache_estimates["match" if is_match else "mismatch"] += 1

    def of_model(self, name: str) -> OfModel:
        """Give the counts of a model; what is too many share one."""
        name = name or OTHER
        found = self.models.get(name)
        if found is None:
            name = name if len(self.models) < MOST_MODELS else OTHER
            found = self.models.setdefault(name, OfModel())
        return found


BY_LABEL = (
    ("decisions", "kind", "Requests by what was decided: admitted, refused, passed, rejected."),
    ("tokens_by", "how", "Requests decided on, by how the number of their tokens is known."),
    ("refusals", "reason", "Refused requests by reason."),
    ("set_aside", "reason", "Requests admitted although refused: shadow mode, or a probe."),
    ("rejects", "status", "Requests that could not be read, by status."),
    ("fallbacks", "cause", "Requests sent to the least loaded worker for want of a decision."),
    ("outcomes", "outcome", "Granted requests by how they ended."),
    ("errors", "where", "Errors of our own, by where they were caught."),
    ("policy_faults", "fault", "Decisions that a policy's fallback made, by policy and cause."),
    ("within", "limit", "Graded predictions within a limit of the real time to first token."),
    ("cells", "cell", "Served requests with a bound, by predicted and real side of it."),
    ("quantiles", "confidence", "Graded predictions by the confidence of their quantile."),
    ("quantiles_kept", "confidence", "Of these, those whose time was within the quantile."),
    ("quantiles_missable", "confidence", "Of these, how many may miss: the sum of 1 - confidence."),
    ("cache_estimates", "verdict", "Credited cache beside what the engine reported, in blocks."),
    ("parity", "verdict", "Prompts whose tokens were compared with an engine's, by verdict."),
)
IN_FLIGHT = {
    "grants": "Requests that this picker sent on and that are not over.",
    "in_flight": "The same of all pickers of the pool, as this one knows.",
}
PLAIN = (
    ("graded", "Predictions whose first token was seen."),
    ("journal_dropped", "Records dropped because the disk was too slow, or full."),
    ("journal_failed", "Full files of records that could not be written as Parquet."),
)
HISTOGRAMS = (
    ("ttft_seconds", "Real time to first token."),
    ("predicted_ttft_seconds", "Predicted time to first token, of requests that were sent on."),
    (
        "predicted_queue_wait_seconds",
        "Predicted wait behind other work, of requests that were sent on or refused.",
    ),
    ("error_seconds", "Predicted less real time to first token, without its sign."),
    ("retry_after_seconds", "What refused callers were told."),
    ("read_seconds", "From a request's last byte until it was tokenized and keyed."),
    ("decide_seconds", "Match, price, route, admit and reserve."),
)
OF_WORKERS: Final[Mapping[str, tuple[str, Callable[[Condition, Seconds], float | None]]]] = {
    "state_age_seconds": (
        "Since anything was last heard of the worker's cache or load.",
        lambda one, now: None if one.heard_at is None else max(0.0, now - one.heard_at),
    ),
    "event_lag_seconds": (
        "How much longer its last batch of KV events was under way than its quickest.",
        lambda one, _: one.event_lag,
    ),
    "missed_event_batches": (
        "Batches of its KV events that never came, by their numbers: gaps, after any replay.",
        lambda one, _: one.missed_batches,
    ),
    "ready": ("1 while the worker takes requests.", lambda one, _: one.ready),
    "measured": (
        "1 where its speed is its own or that of one like it, 0 where it is a default.",
        lambda one, _: one.provenance != "unmeasured",
    ),
    "curve_samples": ("Isolated requests that its curve rests on.", lambda one, _: one.samples),
    "curve_overhead_seconds": ("C(0) of its curve.", lambda one, _: one.curve.overhead),
    "curve_seconds_per_token": ("a of C(N) = overhead + aN + bN².", lambda one, _: one.curve.a),
    "curve_seconds_per_square_token": ("b of the same.", lambda one, _: one.curve.b),
    "engine_running": (
        "Requests that run, by the engine's own word; beside leadsman_in_flight, the ledger's.",
        lambda one, _: None if one.load is None else one.load.running,
    ),
    "engine_waiting": (
        "Requests that wait, by the engine's own word.",
        lambda one, _: None if one.load is None else one.load.waiting,
    ),
}
"""Gauges with the label `worker`: what they say, and how they are read; None: not known."""

STORE_READABLE: Final = "1 while the directory of a store that engines share can be read."
STORE_CHUNKS: Final = "Chunks of a shared store: those that are used, and others by why not."
SHARE: Final = "A tenant's share among those who ask, of tenants that a budget gives a weight."
USED: Final = "The share that such a tenant has had of the work of the last minute or so."
HELD: Final = "Requests that are held now, until a worker is nearly free."
HELD_SECONDS: Final = "How long requests were held, by what became of them."
PARITY: Final = "1 while our tokens of a model are its engines', 0 while an engine tokenizes."
TRUST = "How far each worker's cache view is believed, and why: always 1."


class Page(Collector):
    """Renders the counts when Prometheus asks, and such gauges as are given."""

    def __init__(
        self,
        counts: Counts,
        gauges: Gauges | None = None,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._gauges = gauges or {}
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield every count as a counter or histogram family, and what is so now as gauges."""
        yield from self._counted()
        yield from self._held()
        yield from self._shares()
        yield from self._of_workers()
        yield from self._of_stores()
        for name, counted in self._gauges.items():
            gauge = GaugeMetricFamily(f"leadsman_{name}", IN_FLIGHT[name], labels=["worker"])
            for worker, requests in counted().items():
                gauge.add_metric([worker], requests)
            yield gauge
        from leadsman_extproc.peer_names import families  # noqa: PLC0415  # it reads Counts

        yield from families(self._counts)

    def _counted(self) -> Iterator[Metric]:
        for name, label, text in BY_LABEL:
            family = CounterMetricFamily(f"leadsman_{name}", text, labels=[label])
            by_label: Mapping[str, float] = getattr(self._counts, name)
            for value, count in list(by_label.items()):
                family.add_metric([value], count)
            yield family
        for name, text in PLAIN:
            yield CounterMetricFamily(f"leadsman_{name}", text, value=getattr(self._counts, name))
        for name, text in HISTOGRAMS:
            seen: Histogram = getattr(self._counts, name)
            yield HistogramMetricFamily(
                f"leadsman_{name}", text, buckets=seen.buckets(), sum_value=seen.sum
            )

    def _held(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("leadsman_held", HELD, value=self._counts.held())
        family = HistogramMetricFamily("leadsman_held_seconds", HELD_SECONDS, labels=["outcome"])
        for outcome, seen in list(self._counts.held_seconds.items()):
            family.add_metric([outcome], buckets=seen.buckets(), sum_value=seen.sum)
        yield family

    def _shares(self) -> Iterator[Metric]:
        labels, told = ["budget", "tenant"], list(self._counts.shares())
        share = GaugeMetricFamily("leadsman_tenant_share", SHARE, labels=labels)
        used = GaugeMetricFamily("leadsman_tenant_used", USED, labels=labels)
        for budget, tenant, standing in told:
            share.add_metric([budget, tenant], standing.share)
            used.add_metric([budget, tenant], standing.used)
        yield from (share, used)

    def _of_workers(self) -> Iterator[Metric]:
        parity = GaugeMetricFamily("leadsman_token_parity", PARITY, labels=["model"])
        for model, holds in list(self._counts.token_parity.items()):
            parity.add_metric([model], holds)
        yield parity
        trust = GaugeMetricFamily("leadsman_trust", TRUST, labels=["worker", "trust", "reason"])
        for told in self._counts.trust():
            trust.add_metric(told, 1)
        yield trust
        now, conditions = self._clock(), list(self._counts.conditions())
        for name, (text, read) in OF_WORKERS.items():
            gauge = GaugeMetricFamily(f"leadsman_{name}", text, labels=["worker"])
            for one in conditions:
                if (value := read(one, now)) is not None:
                    gauge.add_metric([one.worker], value)
            yield gauge

    def _of_stores(self) -> Iterator[Metric]:
        readable = GaugeMetricFamily("leadsman_store_readable", STORE_READABLE, labels=["store"])
        chunks = GaugeMetricFamily("leadsman_store_chunks", STORE_CHUNKS, labels=["store", "state"])
        for one in self._counts.stores():
            readable.add_metric([one.worker], one.problem is None)
            for state, count in {"used": one.chunks, **one.unused}.items():
                chunks.add_metric([one.worker, state], count)
        yield readable
        yield chunks


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no requests."""


class MetricsServer:
    """Serves the page until closed; `port` is the one it got. token: a file, see `access`."""

    def __init__(
        self, counts: Counts, port: int, gauges: Gauges | None = None, token: Path | None = None
    ) -> None:
        registry = CollectorRegistry()
        registry.register(Page(counts, gauges))
        page: WSGIApplication = make_wsgi_app(registry)

        def guarded(asked: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
            if is_allowed(asked.get("HTTP_AUTHORIZATION"), token):
                return page(asked, start)
            start("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="Leadsman"')])
            return [b"a token is needed\n"]

        self._server = make_server("0.0.0.0", port, guarded, _Server, _Silent)  # noqa: S104
        self.port = int(self._server.server_port)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
