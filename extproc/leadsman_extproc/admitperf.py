"""Runs AdmitPerf's policies as they are, by handing them our signals under vLLM's names.

AdmitPerf has two APIs that share nothing. That of 0.0.2 decides on a mapping of metrics; the one
before, which lives in other packages' entry points, on a request and a state of the system. Both
know one engine, so here they are asked of each worker, routing's choice first. Beside vLLM's names
the mapping has Leadsman's own, `leadsman:...`, among them the predictions; a name is absent where
its value is not known, and is computed only where it is read.

Three things that AdmitPerf lets pass are held to our rules. A policy whose signal is missing is not
asked, since its own would admit. A parameter that it lacks shows at the start, by one decision on
made-up metrics. And `decide` is called by itself: calling the policy would swallow what it raises.

AdmitPerf derives the status from the reason; here the budget does, so that a caller gets the same
for the same reason. AdmitPerf's own word is in the refusal's policy.
Source: admitperf 0.0.2, core/policy.py, core/signals.py, core/reasons.py; before it, core/api.py.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.policy import Fallback, Policy, PolicyError, SignalLostError, first_fitting
from leadsman.prediction import Reason
from leadsman.route import Choice
from leadsman.signals import Signal

RETRY_MS: Final = 2000
"""What AdmitPerf's example gateway tells who was refused without a time."""

REASONS: Final[Mapping[str, Reason]] = {
    "wait_estimate_exceeded": Reason.WOULD_WAIT_TOO_LONG,
    "deadline_infeasible": Reason.WOULD_MISS_TTFT,
    "deadline_unmeetable": Reason.WOULD_MISS_TTFT,
    "predicted_length": Reason.WOULD_MISS_TTFT,
    "tenant_quota": Reason.OVER_SHARE,
    "rate_limit": Reason.OVER_SHARE,
}
"""AdmitPerf's reasons in ours; any other says that the pool is overloaded."""

QUANTITIES: Final[Mapping[str, Signal]] = {
    "kv_pressure": Signal.KV_USAGE,
    "queue_depth": Signal.WAITING,
    "batch_state": Signal.RUNNING,
    "running": Signal.RUNNING,
    "prefix_hit_rate": Signal.HIT_RATE,
}
_TRIAL: Final[Mapping[str, float]] = {
    "vllm:kv_cache_usage_perc": 0.5,
    "vllm:gpu_cache_usage_perc": 0.5,
    "vllm:num_requests_waiting": 1.0,
    "vllm:num_requests_running": 1.0,
    "vllm:prefix_cache_hits_total": 0.5,
    "vllm:prefix_cache_queries_total": 1.0,
}
_SIGNALS: Final[Mapping[str, Signal]] = {
    "vllm:kv_cache_usage_perc": Signal.KV_USAGE,
    "vllm:gpu_cache_usage_perc": Signal.KV_USAGE,
    "vllm:num_requests_waiting": Signal.WAITING,
    "vllm:num_requests_running": Signal.RUNNING,
    "vllm:prefix_cache_hits_total": Signal.HIT_RATE,
    "leadsman:in_flight": Signal.IN_FLIGHT,
    "leadsman:queued_tokens": Signal.QUEUED_TOKENS,
}
_OWN: Final = (
    "vllm:prefix_cache_queries_total",
    "leadsman:predicted_ttft_seconds",
    "leadsman:predicted_queue_wait_seconds",
    "leadsman:queue_wait_bound_seconds",
    "leadsman:cached_tokens",
    "leadsman:prompt_tokens",
    "leadsman:max_queue_wait_seconds",
)


class Metrics(Mapping[str, float]):
    """What is known of one worker and one request, by vLLM's names and ours; read when asked."""

    def __init__(self, soundings: Soundings, index: int, budget: Budget) -> None:
        self._soundings, self._index, self._budget = soundings, index, budget

    def __getitem__(self, name: str) -> float:
        value = self._value(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in (*_SIGNALS, *_OWN) if self._value(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _value(self, name: str) -> float | None:
        soundings = self._soundings
        worker: Candidate = soundings.candidates.workers[self._index]
        if name in _SIGNALS:
            return worker.read(_SIGNALS[name], soundings.now)
        if name == "vllm:prefix_cache_queries_total":  # only its ratio with the hits means anything
            return None if worker.read(Signal.HIT_RATE, soundings.now) is None else 1.0
        if name == "leadsman:prompt_tokens":
            return float(soundings.request.prompt_tokens)
        if name == "leadsman:max_queue_wait_seconds":
            own = soundings.request.max_queue_wait
            return self._budget.max_queue_wait if own is None else own
        if name not in _OWN:
            return None
        prediction = soundings.sound(self._index)
        return {
            "leadsman:predicted_ttft_seconds": prediction.price.ttft,
            "leadsman:predicted_queue_wait_seconds": prediction.price.queue_wait,
            "leadsman:queue_wait_bound_seconds": prediction.queue_wait_bound,
            "leadsman:cached_tokens": float(prediction.price.cached_tokens),
        }[name]


@dataclass(kw_only=True)
class _Adapted(Policy):
    """A policy of AdmitPerf's; `theirs` is an instance of its class."""

    kind: ClassVar[type]
    asks_metrics: ClassVar[bool]
    theirs: Any = field(repr=False)

    @classmethod
    def made(cls, stated: Mapping[str, float]) -> Policy:
        """Make theirs with these parameters, and try it once. Raises PolicyError."""
        try:
            theirs, trial = cls.kind(**stated), cls.kind(**stated)
            if cls.asks_metrics:
                trial.decide(_TRIAL)
        except Exception as error:  # theirs may raise anything
            raise PolicyError(f"cannot decide with parameters {dict(stated)}: {error}") from error
        return cls(theirs=theirs)

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Ask theirs of each worker until one is admitted."""

        def missed(worker: Candidate, index: int) -> Excess | None:
            unknown = {one for one in self.needs if worker.read(one, soundings.now) is None}
            if unknown:
                raise SignalLostError(frozenset(unknown))
            metrics = Metrics(soundings, index, budget)
            if self.asks_metrics:
                decision = self.theirs.decide(metrics)
                verdict = str(decision.verdict)
            else:
                decision = self.theirs.decide(_asked(soundings), _state(metrics, soundings.now))
                verdict = str(getattr(decision.kind, "value", decision.kind)).lower()
            if verdict == "admit":
                return None
            own = float(soundings.candidates.own_floors[index])
            return _excess(decision, verdict, own)

        return first_fitting(soundings, choice, missed)


def is_admitperf(loaded: Any) -> bool:
    """Say whether a class is a policy of AdmitPerf's, of either API; it is not imported for it."""
    own = isinstance(loaded, type) and callable(getattr(loaded, "decide", None))
    return own and isinstance(getattr(loaded, "name", None), str)


def adapted(kind: Any) -> type[Policy]:
    """Make a policy of ours of a class of theirs."""
    asks_metrics = len(inspect.signature(kind.decide).parameters) == 2
    quantity = QUANTITIES.get(
        str(getattr(kind, "signal_quantity", None) or getattr(kind, "signal", None))
    )
    needs = set() if quantity is None else {quantity}
    if getattr(kind, "signal_structure", "") == "dual-gate":
        needs |= {Signal.KV_USAGE, Signal.HIT_RATE}
    on_error = str(getattr(kind, "on_error", "admit"))
    fallback: Fallback = "admit" if on_error == "admit" else "refuse"
    told = {
        "name": f"admitperf.{kind.name}",
        "source": f"{kind.__module__}.{kind.__qualname__}",
        "kind": kind,
        "asks_metrics": asks_metrics,
        "needs": frozenset(needs),
        "fallback": fallback,
        "unit": "session" if "session" in str(getattr(kind, "unit", "")) else "request",
    }
    return type(f"Adapted{kind.__name__}", (_Adapted,), told)


def _excess(decision: Any, verdict: str, own_prefill: float) -> Excess:
    """Say a refusal of theirs in our words; one put off is a burst's."""
    reason = REASONS.get(str(decision.reason), Reason.OVERLOADED)
    retry = decision.retry_after_ms
    return Excess(
        reason=Reason.BURST_DEFERRED if verdict == "defer" else reason,
        own_prefill=own_prefill,
        later=(RETRY_MS if retry is None else retry) / 1000,
    )


def _asked(soundings: Soundings) -> Any:
    request = soundings.request
    bound = request.ttft_objective
    return SimpleNamespace(
        request_id=request.id,
        tenant_id=request.tenant,
        arrival_time=request.arrived_at,
        input_tokens=request.prompt_tokens,
        agent_id=request.session,
        expected_output_tokens=request.max_tokens,
        deadline_ttft_ms=None if bound is None else bound * 1000,
        deadline_tbt_ms=None,
        priority=request.priority,
        slo_class=request.objective,
        metadata={},
    )


def _state(metrics: Metrics, now: float) -> Any:
    return SimpleNamespace(
        now=now,
        kv_used_fraction=metrics.get("vllm:kv_cache_usage_perc"),
        running_requests=metrics.get("vllm:num_requests_running"),
        waiting_requests=metrics.get("vllm:num_requests_waiting"),
        running_agents=None,
        per_tenant_running={},
        per_tenant_admitted_recent={},
        engine_metrics=metrics,
    )
