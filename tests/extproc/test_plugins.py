"""Admission policies from elsewhere, AdmitPerf's own among them."""

import logging
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Candidates, Soundings
from leadsman.gate import Fault, Gates
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.prediction import Prediction, Price, Reason
from leadsman.records import Trust
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.signals import Signal
from leadsman.units import RequestId
from leadsman_extproc import plugins
from leadsman_extproc.metrics import Counts
from leadsman_extproc.plugins import Faults, kinds

GATE = {"threshold": 0.9, "min_hit_rate": 0.5}
CHEAPEST = Choice(index=0, because="cheapest")


@dataclass
class Worker:
    signals: dict
    wait: float = 3.0
    worker: str = "w"
    endpoint: str = "w:8000"
    ready: bool = True
    weights: None = None

    def read(self, signal, now):
        return self.signals.get(signal)

    def price(self, request, now):
        return Price(
            worker=self.worker,
            queue_wait=self.wait,
            own_prefill=1.0,
            cached_tokens=0,
            queued_tokens=100,
            queued_requests=1,
        )

    def predict(self, price, confidence, now):
        return Prediction(
            price=price,
            confidence=confidence,
            queue_wait_bound=price.queue_wait,
            ttft_bound=price.ttft,
            curve="own",
            trust=Trust.LIVE,
            trust_reason="told",
            state_age=0.1,
        )


def soundings(**signals):
    worker = Worker({Signal(name): value for name, value in signals.items()})
    asked = Request(
        id=RequestId("r"), model="m", prompt_tokens=10, arrived_at=0.0, tenant="t", session="s"
    )
    found = Candidates(
        workers=[worker],
        cached=np.zeros(1, np.int64),
        own_floors=np.ones(1),
        wait_floors=np.zeros(1),
        measured=np.ones(1, np.bool_),
        idle_since=np.full(1, np.inf),
    )
    return Soundings(asked, found, 0.9, 0.0)


def gate_of(policy, faults=(), **parameters):
    gates = Gates(kinds([policy]), faults.append if isinstance(faults, list) else print)
    name = next(name for name in kinds([policy]) if name not in BUILT_IN)
    budget = Budget(policy=name, parameters=parameters)
    gates.policy(budget)
    return lambda asked: gates.of(budget).admit(None, asked, CHEAPEST, budget)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("policies_of_a_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@dataclass(kw_only=True)
class Never(Policy):
    name: ClassVar[str] = "never"
    source: ClassVar[str] = "a test"

    def admit(self, soundings, choice, budget):
        return Excess(reason=Reason.OVERLOADED, own_prefill=1.0, later=1.0)


class Earlier:
    """A policy of AdmitPerf's earlier API: it sees the request, and the state."""

    name = "earlier"
    signal = "queue_depth"

    def decide(self, req, state):
        kind = "reject" if state.waiting_requests > 2 and req.tenant_id == "t" else "admit"
        return SimpleNamespace(kind=kind, reason="deadline_unmeetable", retry_after_ms=1500)


def test_a_package_is_found_by_its_entry_point(monkeypatch):
    entry = SimpleNamespace(value="never:Never", load=lambda: Never)
    found = {"leadsman.policies": [entry]}
    monkeypatch.setattr(plugins, "entry_points", lambda group: found.get(group, []))

    known = kinds()

    assert known["never"] is Never
    assert known.keys() - {"never"} == BUILT_IN.keys()


def test_a_class_is_found_by_its_name(module):
    module.Never = Never

    verdict = gate_of("policies_of_a_test:Never")(soundings())

    assert (verdict.reason, verdict.by) == (Reason.OVERLOADED, "never")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Policy", "no_such_module:Policy: cannot be loaded: ModuleNotFoundError"),
        ("policies_of_a_test:Absent", "cannot be loaded: AttributeError"),
        ("policies_of_a_test:number", "neither a leadsman.policy.Policy nor one of AdmitPerf's"),
        ("policies_of_a_test:Taken", "there is a policy 'queue_cap' already"),
    ],
)
def test_what_cannot_be_loaded_is_told_with_whose_it_was(module, name, words):
    module.number = 7
    module.Taken = type("Taken", (Never,), {"name": "queue_cap"})

    with pytest.raises(PolicyError) as caught:
        kinds([name])

    assert words in str(caught.value)


def test_an_earlier_policy_of_admitperf_sees_request_and_state(module):
    module.Earlier = Earlier
    judge = gate_of("policies_of_a_test:Earlier")

    short, long = judge(soundings(waiting=1.0)), judge(soundings(waiting=3.0))

    assert short == CHEAPEST
    assert (long.reason, long.seconds) == (Reason.WOULD_MISS_TTFT, 1.5)
    assert long.by == "admitperf.earlier"


admitperf = pytest.importorskip("admitperf", reason="admitperf 0.0.2 is not installed")


@pytest.mark.parametrize(
    ("policy", "parameters", "signals", "is_refused"),
    [
        ("KvThreshold", {"threshold": 0.9}, {"kv_usage": 0.95}, True),
        ("KvThreshold", {"threshold": 0.9}, {"kv_usage": 0.5}, False),
        ("QueueDepth", {"max_waiting": 2}, {"waiting": 3.0}, True),
        ("QueueDepth", {"max_waiting": 2}, {"waiting": 2.0}, False),
        ("DualGate", GATE, {"kv_usage": 1, "hit_rate": 0}, True),
        (
            "DualGate",
            GATE,
            {"kv_usage": 1, "hit_rate": 1},
            False,
        ),
        ("NoAdmission", {}, {}, False),
    ],
)
def test_admitperfs_own_policies_decide_as_they_do_there(policy, parameters, signals, is_refused):
    verdict = gate_of(f"admitperf.policies:{policy}", **parameters)(soundings(**signals))

    assert isinstance(verdict, Excess) == is_refused
    if is_refused:
        assert verdict.reason is Reason.OVERLOADED


def test_a_policy_of_admitperf_reads_our_predictions_beside_vllms_names(module):
    class Patient(admitperf.Policy):
        name = "patient"

        def decide(self, metrics):
            assert "vllm:kv_cache_usage_perc" not in metrics
            late = metrics["leadsman:predicted_ttft_seconds"] > self.most
            return self.reject("deadline_infeasible") if late else self.admit()

    module.Patient = Patient
    found = plugins.adapted(Patient)
    refused, kept = (
        found(theirs=Patient(most=most)).admit(soundings(), CHEAPEST, Budget()) for most in (3, 5)
    )

    assert refused.reason is Reason.WOULD_MISS_TTFT
    assert kept == CHEAPEST


def test_a_deferral_of_admitperf_is_a_burst_and_keeps_its_time():
    judge = gate_of("admitperf.policies:QueueDepth", max_waiting=1, retry_after_ms=700)

    verdict = judge(soundings(waiting=5.0))

    assert (verdict.reason, verdict.seconds) == (Reason.BURST_DEFERRED, 0.7)


def test_a_missing_signal_does_not_admit_as_it_would_there():
    faults = []
    judge = gate_of("admitperf.policies:KvThreshold", faults, threshold=0.9)

    judge(soundings(waiting=5.0))

    assert [(one.cause, one.fallback) for one in faults] == [("lost", "admit")]


def test_a_parameter_that_it_lacks_is_told_at_the_start():
    with pytest.raises(PolicyError, match="cannot decide with parameters"):
        gate_of("admitperf.policies:KvThreshold")


def test_faults_are_counted_each_and_logged_once_in_a_while(caplog):
    now = [0.0]
    counts = Counts()
    faults = Faults(counts, lambda: now[0])
    caplog.set_level(logging.WARNING)

    for number in range(25):
        now[0] = float(number)
        faults.note(Fault("queue_cap", "lost", "predicted_wait", "no worker tells waiting"))

    assert counts.policy_faults == {"queue_cap/lost": 25}
    assert [record.times for record in caplog.records] == [1, 10, 10]
