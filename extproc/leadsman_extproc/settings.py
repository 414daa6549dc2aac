"""What a picker's operator sets; every default is what its comment measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from leadsman.units import Seconds

from leadsman_extproc.certificates import TlsSource
from leadsman_extproc.journal import Form, can_write_parquet
from leadsman_extproc.rows import Names

FILE_BYTES = 256 * 1024 * 1024
"""Of lines, some 100,000 decisions; 25 MB as Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How decisions and their outcomes are written. Raises ValueError.

    share: of ordinary requests that are kept; refusals, large errors and broken bounds all are.
    form: of files that are full. file_bytes: at which one is full; None: never, but for Parquet,
    where it is FILE_BYTES. most_bytes: of all full files, of which the oldest go; None: no limit.
    names: how tenants and sessions are written.
    """

    share: float = 1.0
    form: Form = "jsonl"
    file_bytes: int | None = None
    most_bytes: int | None = None
    names: Names = "hashed"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: {self.share} is not above 0 and at most 1")
        for name in ("file_bytes", "most_bytes"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise ValueError(f"{name}: {number} is not a number of bytes")
        if self.form == "parquet" and not can_write_parquet():
            raise ValueError("form: parquet needs DuckDB: pip install 'leadsman[grade]'")

    @property
    def full_at(self) -> int | None:
        """Bytes at which a file is full; None: never."""
        if self.form == "parquet" and self.file_bytes is None:
            return FILE_BYTES
        return self.file_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the picker serves. Raises ValueError.

    listen: `host:port` of ext_proc, access log and health; port 0 takes a free one.
    health: `host:port` of health alone, in plain text: a kubelet probes without TLS.
    tls: files, or `self-signed`; None: plain text.
    max_body: bytes of a request body above which it is refused with 413.
    decision_deadline: for reading; deciding does not wait. Must stay below Envoy's message_timeout.
    longest_hold: for which a request may be held, whatever its budget says. With decision_deadline
        it must stay below Envoy's message_timeout, or Envoy gives up.
    ends_early: end streams after the first token where that is safe; needs the access log.
        False on agentgateway, which answers 500 (agentgateway#3436).
    page: `host:port` of the live page; None: there is none.
    token: a file with what whoever asks for the metrics or the page has to know; None: nothing.
    journal: folder of decisions.jsonl and outcomes.jsonl; recording: what goes there, and how.
    fallbacks: endpoints named after the pick, for the gateway to try in order where it cannot reach
        it. 0: only the pick, as gateways need that take the header for one address (ORIGINAL_DST).
    notice: for which new calls are still taken once readiness is lost: as long as it takes until no
        gateway sends any. Before that ends, a call refused is a request failed.
    conformance: heed what only the upstream conformance suite sends; lets any client choose.
    importance: of objectives, by name; the more important go first where requests are held. What an
        InferenceObjective says goes before.
    policies: classes of further admission policies, as MODULE:CLASS; those of installed packages
        that declare them are found without.
    tracing: make spans of requests whose gateway samples them, and export them as the environment's
        OTEL_* say.
    parity_every: between two requests of a model whose tokens an engine is asked for, to compare
        them with ours; null: none are, and engines are asked for those of probes alone.
    """

    listen: str = "0.0.0.0:9002"
    health: str | None = None
    tls: TlsSource | None = None
    max_body: int = 32 * 1024 * 1024
    decision_deadline: Seconds = 1.0
    longest_hold: Seconds = 3.5
    ends_early: bool = True
    fallbacks: int = 0
    notice: Seconds = 0.0
    conformance: bool = False
    drain: Seconds = 30.0
    metrics_port: int | None = None
    page: str | None = None
    token: Path | None = None
    journal: Path | None = None
    recording: Recording = field(default_factory=Recording)
    importance: Mapping[str, int] = field(default_factory=dict)
    policies: tuple[str, ...] = ()
    tracing: bool = False
    parity_every: Seconds | None = 30.0

    def __post_init__(self) -> None:
        if self.tracing and find_spec("opentelemetry.sdk") is None:
            raise ValueError("tracing: true needs OpenTelemetry: pip install 'leadsman[otel]'")
