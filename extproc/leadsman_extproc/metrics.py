"""What the picker counts, and its page for Prometheus.

The request path adds to plain integers (0.1 us); the page is rendered from them when it is asked
for. A prediction counts as graded once its first token was seen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from leadsman.units import Seconds, WorkerId
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

Gauges: TypeAlias = Mapping[str, Callable[[], Mapping[WorkerId, int]]]
"""What each gauge of `IN_FLIGHT` stands at, by worker; asked from another thread."""


@dataclass(slots=True)
class Counts:
    """Plain counts, each by the label that its name says.

    fallbacks: by cause, `deadline` or `error`. within: by limit, of `graded` predictions.
    parity: comparisons of our tokens with an engine's, by verdict. token_parity: by model, whether
    they were alike when last compared: False, and its requests are tokenized by an engine. trust:
    gives each worker, how far its cache view is believed now, and why.
    """

    decisions: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)
    parity: Counter[str] = field(default_factory=Counter)
    token_parity: dict[str, bool] = field(default_factory=dict)
    trust: Callable[[], Iterable[tuple[str, str, str]]] = tuple
    graded: int = 0
    journal_dropped: int = 0

    def grade(self, predicted: Seconds, actual: Seconds) -> None:
        """Count how far a predicted TTFT was from the real one."""
        off = abs(predicted - actual)
        self.graded += 1
        self.within["1s"] += off <= 1.0
        self.within["10s"] += off <= 10.0
        self.within["relative"] += off <= max(0.1, 0.15 * actual)


BY_LABEL = (
    ("decisions", "kind", "Requests by what was decided: admitted, refused, passed, rejected."),
    ("refusals", "reason", "Refused requests by reason."),
    ("rejects", "status", "Requests that could not be read, by status."),
    ("fallbacks", "cause", "Requests sent to the least loaded worker for want of a decision."),
    ("outcomes", "outcome", "Granted requests by how they ended."),
    ("errors", "where", "Errors of our own, by where they were caught."),
    ("within", "limit", "Graded predictions within a limit of the real time to first token."),
    ("parity", "verdict", "Prompts whose tokens were compared with an engine's, by verdict."),
)
IN_FLIGHT = {
    "grants": "Requests that this picker sent on and that are not over.",
    "in_flight": "The same of all pickers of the pool, as this one knows.",
}
PLAIN = (
    ("graded", "Predictions whose first token was seen."),
    ("journal_dropped", "Journal lines dropped because the disk was too slow."),
)


class Page(Collector):
    """Renders the counts when Prometheus asks, and such gauges as are given."""

    def __init__(self, counts: Counts, gauges: Gauges | None = None) -> None:
        self._counts = counts
        self._gauges = gauges or {}

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Yield every count as a counter family, and what is so now as gauges."""
        for name, label, text in BY_LABEL:
            family = CounterMetricFamily(f"leadsman_{name}", text, labels=[label])
            by_label: Counter[str] = getattr(self._counts, name)
            for value, count in by_label.items():
                family.add_metric([value], count)
            yield family
        for name, text in PLAIN:
            yield CounterMetricFamily(f"leadsman_{name}", text, value=getattr(self._counts, name))
        text = "1 while our tokens of a model are its engines', 0 while an engine tokenizes."
        parity = GaugeMetricFamily("leadsman_token_parity", text, labels=["model"])
        for model, holds in self._counts.token_parity.items():
            parity.add_metric([model], holds)
        yield parity
        text = "How far each worker's cache view is believed, and why: always 1."
        trust = GaugeMetricFamily("leadsman_trust", text, labels=["worker", "trust", "reason"])
        for told in self._counts.trust():
            trust.add_metric(told, 1)
        yield trust
        for name, counted in self._gauges.items():
            gauge = GaugeMetricFamily(f"leadsman_{name}", IN_FLIGHT[name], labels=["worker"])
            for worker, requests in counted().items():
                gauge.add_metric([worker], requests)
            yield gauge


class MetricsServer:
    """Serves the page until closed; `port` is the one it got."""

    def __init__(self, counts: Counts, port: int, gauges: Gauges | None = None) -> None:
        registry = CollectorRegistry()
        registry.register(Page(counts, gauges))
        self._server, self._thread = start_http_server(port, registry=registry)
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
