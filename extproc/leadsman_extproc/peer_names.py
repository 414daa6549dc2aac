"""Names that dashboards and autoscalers of other endpoint pickers read, where they mean the same.

`llm_d_epp_*` is the family that is current there, `inference_pool_*` and `inference_objective_*`
the one before, which is still read. Left out are what means something else here (a score of a
prefix, a plugin's time) and the labels `fairness_id` and `priority`, whose values callers choose.
`target_model_name` is the model's own name: nothing is rewritten here.

Source: the llm-d router's docs/metrics.md of August 2026, and its deprecated twins.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from leadsman.condition import Condition
from leadsman.records import LoadSample
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from leadsman_extproc.histogram import Histogram

if TYPE_CHECKING:
    from leadsman_extproc.metrics import Counts, OfModel

OF_MODEL: Final = ["model_name", "target_model_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauge:
    """One figure of a whole pool, by its names. read: None where no engine has said."""

    names: tuple[str, ...]
    text: str
    read: Callable[[Sequence[Condition]], float | None]


def _mean_of(read: Callable[[LoadSample], float | None]) -> Callable[..., float | None]:
    def mean(conditions: Sequence[Condition]) -> float | None:
        loads = [one.load for one in conditions if one.ready and one.load is not None]
        told = [value for load in loads if (value := read(load)) is not None]
        return fmean(told) if told else None

    return mean


OF_POOL: Final = (
    PoolGauge(
        names=(
            "llm_d_epp_average_kv_cache_utilization",
            "inference_pool_average_kv_cache_utilization",
        ),
        text="Share of KV blocks in use, mean over the ready workers.",
        read=_mean_of(lambda load: load.kv_usage),
    ),
    PoolGauge(
        names=("llm_d_epp_average_queue_size", "inference_pool_average_queue_size"),
        text="Requests that wait in an engine, mean over the ready workers.",
        read=_mean_of(lambda load: load.waiting),
    ),
    PoolGauge(
        names=("llm_d_epp_average_running_requests", "inference_pool_average_running_requests"),
        text="Requests that run in an engine, mean over the ready workers.",
        read=_mean_of(lambda load: load.running),
    ),
    PoolGauge(
        names=("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"),
        text="Workers that take requests.",
        read=lambda conditions: sum(one.ready for one in conditions),
    ),
)
OF_ENDPOINT: Final = (
    ("llm_d_epp_per_endpoint_queue_size", "endpoint"),
    ("inference_pool_per_pod_queue_size", "model_server_pod"),
)
OF_ENDPOINT_TEXT: Final = "Requests that wait in an engine, by worker."

REQUESTS: Final = (("llm_d_epp_request", "inference_objective_request"), "Requests sent on.")
ERRORS: Final = (
    ("llm_d_epp_request_error", "inference_objective_request_error"),
    "Requests sent on that did not finish, by how they ended.",
)
RUNNING: Final = (
    ("llm_d_epp_request_running", "inference_objective_running_requests"),
    "Requests sent on that are not over.",
)
HISTOGRAMS: Final[tuple[tuple[tuple[str, ...], str, Callable[["OfModel"], Histogram]], ...]] = (
    (
        ("llm_d_epp_request_duration_seconds", "inference_objective_request_duration_seconds"),
        "From the pick to a request's last byte.",
        lambda of: of.duration,
    ),
    (
        ("llm_d_epp_request_ttft_seconds",),
        "From the pick to a request's first token.",
        lambda of: of.ttft,
    ),
    (
        ("llm_d_epp_request_input_tokens", "inference_objective_input_tokens"),
        "Prompt tokens of a request that is over.",
        lambda of: of.prompt_tokens,
    ),
    (
        ("llm_d_epp_request_cached_tokens", "inference_objective_prompt_cached_tokens"),
        "Prompt tokens that the engine found cached, where it says so.",
        lambda of: of.cached_tokens,
    ),
    (
        ("llm_d_epp_request_output_tokens", "inference_objective_output_tokens"),
        "Tokens of an answer, where the engine says how many.",
        lambda of: of.completion_tokens,
    ),
)
SCHEDULER: Final = "llm_d_epp_scheduler_e2e_duration_seconds"
SCHEDULER_TEXT: Final = "Match, price, route, admit and reserve: leadsman_decide_seconds."


def families(counts: "Counts") -> Iterator[Metric]:
    """Yield every family under each of its names."""
    conditions, models = list(counts.conditions()), list(counts.models.items())
    yield from _of_pool(counts.pool, conditions)
    yield from _counted(models)
    for names, text, seen_of in HISTOGRAMS:
        for name in names:
            histogram = HistogramMetricFamily(name, text, labels=OF_MODEL)
            for model, of in models:
                seen = seen_of(of)
                histogram.add_metric([model, model], buckets=seen.buckets(), sum_value=seen.sum)
            yield histogram
    decided = counts.decide_seconds
    yield HistogramMetricFamily(
        SCHEDULER, SCHEDULER_TEXT, buckets=decided.buckets(), sum_value=decided.sum
    )


def _counted(models: Sequence[tuple[str, "OfModel"]]) -> Iterator[Metric]:
    for name in REQUESTS[0]:
        counter = CounterMetricFamily(name, REQUESTS[1], labels=OF_MODEL)
        for model, of in models:
            counter.add_metric([model, model], of.requests)
        yield counter
    for name in ERRORS[0]:
        failed = CounterMetricFamily(name, ERRORS[1], labels=[*OF_MODEL, "error_code"])
        for model, of in models:
            for cause, count in list(of.failed.items()):
                failed.add_metric([model, model, cause], count)
        yield failed
    for name in RUNNING[0]:
        gauge = GaugeMetricFamily(name, RUNNING[1], labels=["model_name"])
        for model, of in models:
            gauge.add_metric([model], of.running)
        yield gauge


def _of_pool(pool: str, conditions: Sequence[Condition]) -> Iterator[Metric]:
    for one in OF_POOL:
        value = one.read(conditions)
        for name in one.names:
            gauge = GaugeMetricFamily(name, one.text, labels=["name"])
            if value is not None:
                gauge.add_metric([pool], value)
            yield gauge
    for name, label in OF_ENDPOINT:
        gauge = GaugeMetricFamily(name, OF_ENDPOINT_TEXT, labels=["name", label])
        for condition in conditions:
            if condition.load is not None:
                gauge.add_metric([pool, condition.worker], condition.load.waiting)
        yield gauge
