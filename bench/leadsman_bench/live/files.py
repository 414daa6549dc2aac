"""The four files of a run, and the seven disclosures that a result is worth nothing without.

Reasons are told in AdmitPerf's words as well, whose list is closed: a wait that is too long is
`wait_estimate_exceeded`, a TTFT `deadline_infeasible`, a share `tenant_quota`; what a threshold
refuses is named by the threshold. The status is the one that was sent, which theirs derives.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from leadsman.policies import BUILT_IN
from leadsman.policy import parameters
from leadsman.units import Seconds
from leadsman_extproc.plugins import kinds

from leadsman_bench.live.deployment import Deployment
from leadsman_bench.live.play import Told
from leadsman_bench.live.run import Ran, write_json
from leadsman_bench.live.scraping import Sample
from leadsman_bench.player import Played

REASONS = {
    "would_wait_too_long": "wait_estimate_exceeded",
    "would_miss_ttft": "deadline_infeasible",
    "over_share": "tenant_quota",
    "burst_deferred": "capacity_reserved",
    "no_endpoint": "capacity_reserved",
}
BY_POLICY = {"kv_threshold": "kv_pressure", "queue_cap": "queue_depth", "dual_gate": "kv_pressure"}
WATCHED = {
    "kv_threshold": "kv_pressure",
    "queue_cap": "queue_depth",
    "dual_gate": "kv_pressure",
    "concurrency_cap": "running",
}
"""The signal of AdmitPerf's that a policy decides on, where it does on one."""

DISCLOSURES = {
    "load": "the offered load as a multiple of measured capacity",
    "deadline": "the deadline relative to unloaded latency",
    "liveness": "whether the signal that the policy watches moved",
    "variation": "repeats and their spread",
    "parameters": "which parameters were tuned, borrowed or left at defaults",
    "denominator": "whether refusals count",
    "configuration": "model, engine and version, hardware, workload, SLO, baseline",
}


def label(ran: Ran) -> str:
    """Name a policy as it was run."""
    plan = ran.plan
    set_ = "".join(f",{name}={value:g}" for name, value in sorted(plan.parameters.items()))
    unit = "" if plan.unit == "request" else f"/{plan.unit}"
    return f"{plan.policy}{unit}{set_}"


def folder_of(out: Path, ran: Ran) -> Path:
    """Give a run's folder, as AdmitPerf's first generation names it."""
    slug = label(ran).replace("/", "-").replace(",", "-").replace("=", "")
    return out / f"{slug}-{ran.plan.load:g}x-r{ran.repeat}"


def write(out: Path, ran: Ran, up: Deployment) -> Path:
    """Write a run's four files; gives their folder."""
    folder = folder_of(out, ran)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "manifest.json", manifest(ran, up))
    write_json(folder / "summary.json", summary(ran))
    _write_lines(folder / "decisions.jsonl", decisions(ran, up))
    _write_lines(folder / "outcomes.jsonl", [outcome(ran, one) for one in ran.counted])
    return folder


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def deadline(ran: Ran, told: Told) -> Seconds:
    """Give a call's deadline."""
    return ran.plan.slack + ran.plan.factor * ran.unloaded.of(told.call.row)


def in_time(ran: Ran, told: Told) -> bool:
    """Whether a call had its first token by its deadline."""
    return told.was_served and told.ttft is not None and told.ttft <= deadline(ran, told)


def judged(ran: Ran) -> list[Told]:
    """Give the calls that goodput counts: all but those that their callers were to give up."""
    return [one for one in ran.counted if one.call.hangs_up is None]


def unmade(ran: Ran) -> int:
    """Count calls that were never made, since their task had been given up; they are misses."""
    made = Counter(one.task.name for one in ran.told)
    begun = {one.task.name: one.task for one in ran.counted}
    return sum(len(task.calls) - made[name] for name, task in begun.items())


def summary(ran: Ran) -> dict[str, object]:
    """Give the figures of a run, by the names of AdmitPerf's first generation."""
    calls, missed = judged(ran), unmade(ran)
    offered = len(calls) + missed
    tries = [one for told in ran.counted for one in told.tries]
    refused = Counter(one.reason for one in tries if one.status in {429, 503, 529})
    served = [one for one in calls if one.was_served]
    met = sum(in_time(ran, one) for one in calls)
    ttfts = sorted(one.ttft for one in served if one.ttft is not None)
    gaps = sorted(b - a for one in served for a, b in pairwise(one.tries[-1].chunks_at))
    seconds = ran.plan.seconds
    failed = sum(not one.was_served and one.tries[-1].reason is None for one in calls)
    return {
        "offered": offered,
        "admitted": len(served),
        "deferred": refused.get("burst_deferred", 0),
        "rejected": refused.total() - refused.get("burst_deferred", 0),
        "reject_reasons": dict(refused),
        "warmup_excluded": len(ran.told) - len(ran.counted),
        "completed": len(served),
        "failed": failed,
        "never_made": missed,
        "wall_s": ran.wall,
        "throughput_rps": len(served) / seconds,
        "goodput_rps": met / seconds,
        "goodput_under_admission": met / offered if offered else None,
        "offered_attainment": met / offered if offered else None,
        "served_attainment": met / len(served) if served else None,
        "admit_rate": len(served) / offered if offered else None,
        "ttft_ms": _quantiles(ttfts),
        "tbt_ms": _quantiles(gaps),
        "slo": {"judged": offered, "met": met, "missed": offered - met},
        "signals": ranges(ran.samples),
        "scrapes": len(ran.samples),
        "tasks": len({one.task.name for one in ran.counted}),
        "capacity_rps": ran.capacity,
        "load": ran.plan.load,
    }


def _quantiles(values: Sequence[Seconds]) -> dict[str, float | None]:
    def at(share: float) -> float | None:
        return values[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else None

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}


def ranges(samples: Sequence[Sample]) -> dict[str, dict[str, float] | None]:
    """Say in which range each signal moved; None: nobody told it."""
    found: dict[str, dict[str, float] | None] = {}
    for name in samples[0].signals if samples else ():
        values = [v for one in samples if (v := one.signals[name]) is not None]
        found[name] = {"min": min(values), "max": max(values)} if values else None
    return found


def manifest(ran: Ran, up: Deployment) -> dict[str, object]:
    """Say all that is needed to judge a run, and to repeat it; the seven disclosures among it."""
    plan = ran.plan
    provenance = _provenance(ran)
    return {
        "experiment": plan.experiment,
        "policy": plan.policy,
        "policy_params": dict(plan.parameters),
        "policy_label": label(ran),
        "unit": plan.unit,
        "repeat": ran.repeat,
        "repeats": plan.repeats,
        "seed": plan.seed,
        "slo_mode": "relative",
        "situation": f"{plan.load:g}x",
        "offered_rate": plan.load * ran.capacity,
        "workload": plan.workload if plan.trace is None else str(plan.trace),
        "baseline": plan.policy == "none",
        "engine_url": up.url,
        "deployment": "simulated engines" if up.simulated else "engines given by URL",
        "created_at": datetime.fromtimestamp(ran.began_at, UTC).isoformat(),
        "environment": {
            "leadsman": version("leadsman"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "engine": {"names": up.names, "version": list(ran.versions)},
        },
        "disclosures": {
            "load": {"multiple_of_capacity": plan.load, "capacity_rps": ran.capacity},
            "deadline": {
                "slack_s": plan.slack,
                "times_unloaded": plan.factor,
                "unloaded_s": ran.unloaded.base,
                "unloaded_s_per_token": ran.unloaded.per_token,
            },
            "liveness": {"signals": ranges(ran.samples), "watched": WATCHED.get(plan.policy)},
            "variation": {"repeats": plan.repeats},
            "parameters": provenance,
            "denominator": "all calls that were offered; a refusal is a miss",
            "configuration": {
                "model": up.model,
                "engines": up.names,
                "versions": list(ran.versions),
                "hardware": "simulated: the names of the engines say what"
                if up.simulated
                else None,
                "workload": plan.workload if plan.trace is None else str(plan.trace),
                "manners": plan.manners,
                "seconds": plan.seconds,
                "warm_up": plan.warm_up,
                "seed": plan.seed,
                "baseline": "none",
            },
        },
    }


def _provenance(ran: Ran) -> dict[str, dict[str, object]]:
    kind = (kinds() if ran.plan.policy not in BUILT_IN else BUILT_IN)[ran.plan.policy]
    made = kind.made(ran.plan.parameters)
    return {
        one.name: {"value": one.value, "provenance": one.provenance} for one in parameters(made)
    }


def missing(manifest_: Mapping[str, Any]) -> list[str]:
    """Name the disclosures that a manifest lacks, each with what it asks for."""
    told = manifest_.get("disclosures") or {}
    found = []
    for name, asks in DISCLOSURES.items():
        value = told.get(name)
        if value is None or (name != "parameters" and not value) or _is_hollow(name, value):
            found.append(f"{name}: {asks}")
    return found


def _is_hollow(name: str, value: Any) -> bool:
    """Whether a disclosure is there and says nothing."""
    match name:
        case "load":
            return value.get("multiple_of_capacity") is None or not value.get("capacity_rps")
        case "deadline":
            return value.get("times_unloaded") is None or not value.get("unloaded_s")
        case "liveness":
            told = value.get("signals") or {}
            watched = value.get("watched")
            return told.get(watched) is None if watched else not any(told.values())
        case "variation":
            return (value.get("repeats") or 0) < 2
        case "configuration":
            return any(
                value.get(one) in (None, [], "")
                for one in ("model", "engines", "hardware", "workload", "baseline")
            )
        case _:
            return False


def decisions(ran: Ran, up: Deployment) -> list[dict[str, object]]:
    """Give each try of a call that counts, with the signals before it and what came of it."""
    provenance = {name: one["provenance"] for name, one in _provenance(ran).items()}
    values = {name: one["value"] for name, one in _provenance(ran).items()}
    common = {
        "experiment": ran.plan.experiment,
        "run": f"{ran.plan.load:g}x-r{ran.repeat}",
        "notes": f"{up.model} on {', '.join(up.names)}; {ran.plan.workload}, {ran.plan.load:g} x "
        f"of {ran.capacity:.3g} calls/s; deadline {ran.plan.slack:g} s + {ran.plan.factor:g} x "
        "unloaded",
        "policy": label(ran),
        "baseline": ran.plan.policy == "none",
        "params": _admitperf_names(ran.plan.policy, values),
        "provenance": _admitperf_names(ran.plan.policy, provenance),
        "card": {
            "unit": ran.plan.unit,
            "setting": "online",
            "slo_awareness": "deadline",
            "signal_quantity": WATCHED.get(ran.plan.policy),
            "signal_structure": "scalar",
        },
        "enforced": True,
        "fault": None,
    }
    tries = ((told, played) for told in ran.counted for played in told.tries)
    return [common | _decision(ran, told, played) for told, played in tries]


def _admitperf_names(policy: str, values: Mapping[str, object]) -> dict[str, object]:
    """Name the limit of a policy that AdmitPerf has too as it does."""
    names = {"kv_threshold": "threshold", "queue_cap": "max_waiting"}
    known = {"limit": names[policy]} if policy in names else {}
    return {known.get(name, name): value for name, value in values.items() if value is not None}


def _decision(ran: Ran, told: Told, played: Played) -> dict[str, object]:
    at = ran.began_at + played.sent_at
    before = [one for one in ran.samples if one.at <= at]
    signals = before[-1].signals if before else {}
    refused = played.reason is not None
    reason = None
    if refused:
        reason = BY_POLICY.get(ran.plan.policy) or REASONS.get(
            str(played.reason), "capacity_reserved"
        )
    comes_back = refused and played.should_retry and played.retry_after is not None
    row: dict[str, object] = {
        "at": at,
        "request_id": played.planned.id,
        "tenant_id": told.task.tenant,
        "session": told.task.session,
        "decided_at": at,
        "metrics": {},
        "signals": dict(signals),
        "sources": {},
        "verdict": "defer" if comes_back else "reject" if refused else "admit",
        "kind": "DEFER" if comes_back else "REJECT" if refused else "ADMIT",
        "reason": reason,
        "leadsman_reason": played.reason,
        "status": played.status,
        "http_status": played.status,
        "retry_after_ms": None if played.retry_after is None else played.retry_after * 1e3,
        "decide_us": None,
    }
    if not refused:
        first = None if played.first_at is None else (played.first_at - told.began) * 1e3
        row["outcome"] = {"ttft_ms": first, "ok": in_time(ran, told), "status": played.status}
    return row


def outcome(ran: Ran, told: Told) -> dict[str, object]:
    """Give what became of one call; no key of it makes AdmitPerf 0.0.2 take it for a log."""
    last = told.tries[-1]
    status = "completed" if told.was_served else "rejected" if last.reason else "failed"
    chunks = last.chunks_at
    return {
        "request_id": told.tries[0].planned.id,
        "task": told.task.name,
        "session": told.task.session,
        "tenant_id": told.task.tenant,
        "at": ran.began_at + told.began,
        "tries": len(told.tries),
        "status": status,
        "http_status": last.status,
        "reason": last.reason,
        "gave_up": told.gave_up,
        "prompt_tokens": told.call.row.input_tokens,
        "ttft_ms": None if told.ttft is None else told.ttft * 1e3,
        "deadline_ms": deadline(ran, told) * 1e3,
        "met_deadline": in_time(ran, told),
        "tbt_ms": [round((b - a) * 1e3, 1) for a, b in pairwise(chunks)],
        "total_ms": None if last.ended_at is None else (last.ended_at - told.began) * 1e3,
        "output_tokens": len(chunks),
        "cached_tokens": last.cached_tokens,
        "error": "the connection broke" if last.broke and not told.gave_up else None,
    }
