"""What to be woken for, as Prometheus' rules: `python -m leadsman_extproc.alerts FILE`.

Shares are recorded once and alerted on, so that what a person looks at is what woke him. Each alert
names its section of docs/runbooks.md; tests hold expressions against what pickers export, and the
chart carries what this writes (`make generate`).

Source: Prometheus' documentation, recording and alerting rules; names as its practices have them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

RUNBOOKS: Final = "docs/runbooks.md"
_BY: Final = "by (namespace, job)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A share that is worth a name."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What is wrong, and since when. severity: `critical` is for at night."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str

    @property
    def anchor(self) -> str:
        """Where its runbook is, in docs/runbooks.md."""
        return self.name.lower()


def _share(part: str, whole: str, over: str, *, label: str = "") -> str:
    by = f"by (namespace, job, {label})" if label else _BY
    many = f" / ignoring ({label}) group_left () " if label else " / "
    return f"sum {by} (rate({part}[{over}])){many}sum {_BY} (rate({whole}[{over}]))"


RECORDINGS: Final = (
    Recording(
        name="leadsman:predictions_within:ratio_rate5m",
        expression=_share("leadsman_within_total", "leadsman_graded_total", "5m", label="limit"),
    ),
    Recording(
        name="leadsman:refused:ratio_rate5m",
        expression=_share(
            'leadsman_decisions_total{kind="refused"}',
            'leadsman_decisions_total{kind=~"admitted|refused"}',
            "5m",
        ),
    ),
    Recording(
        name="leadsman:quantiles_missed:ratio_rate30m",
        expression="1 - "
        + _share("leadsman_quantiles_kept_total", "leadsman_quantiles_total", "30m"),
    ),
    Recording(
        name="leadsman:quantiles_missable:ratio_rate30m",
        expression=_share("leadsman_quantiles_missable_total", "leadsman_quantiles_total", "30m"),
    ),
    Recording(
        name="leadsman:underpredicted:ratio_rate30m",
        expression=_share(
            'leadsman_cells_total{cell="underpredicted"}', "leadsman_cells_total", "30m"
        ),
    ),
    Recording(
        name="leadsman:false_alarms:ratio_rate30m",
        expression=_share(
            'leadsman_cells_total{cell="false_alarm"}', "leadsman_cells_total", "30m"
        ),
    ),
    Recording(
        name="leadsman:cache_mismatch:ratio_rate30m",
        expression=_share(
            'leadsman_cache_estimates_total{verdict="mismatch"}',
            "leadsman_cache_estimates_total",
            "30m",
        ),
    ),
    Recording(
        name="leadsman:predicted_queue_wait_seconds:p90_rate1m",
        expression="histogram_quantile(0.9, sum by (namespace, job, le) "
        "(rate(leadsman_predicted_queue_wait_seconds_bucket[1m])))",
    ),
)
ALERTS: Final = (
    Alert(
        name="LeadsmanStateStale",
        expression="max by (namespace, job, worker) (leadsman_state_age_seconds) > 30 "
        "and on (namespace, job, worker) leadsman_ready == 1",
        lasts="2m",
        severity="warning",
        summary="Nothing was heard of {{ $labels.worker }} for {{ $value | humanizeDuration }}.",
    ),
    Alert(
        name="LeadsmanCacheViewDoubted",
        expression='count by (namespace, job, worker) (leadsman_trust{trust=~"suspect|blind"})',
        lasts="15m",
        severity="warning",
        summary="The cache view of {{ $labels.worker }} is not believed.",
    ),
    Alert(
        name="LeadsmanCacheMismatch",
        expression="leadsman:cache_mismatch:ratio_rate30m > 0.05",
        lasts="15m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of requests found another cache than credited.",
    ),
    Alert(
        name="LeadsmanCoverageBroken",
        expression="leadsman:quantiles_missed:ratio_rate30m "
        "> 2 * leadsman:quantiles_missable:ratio_rate30m",
        lasts="15m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of requests take longer than their quantile.",
    ),
    Alert(
        name="LeadsmanUnderpredicting",
        expression="leadsman:underpredicted:ratio_rate30m > 0.05",
        lasts="15m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of bounded requests were let in and came late.",
    ),
    Alert(
        name="LeadsmanOverShedding",
        expression="(leadsman:refused:ratio_rate5m > 0.2 and on (namespace, job) "
        "max by (namespace, job) (llm_d_epp_average_queue_size) < 1) "
        "or leadsman:false_alarms:ratio_rate30m > 0.05",
        lasts="10m",
        severity="critical",
        summary="Requests are refused that the engines have room for.",
    ),
    Alert(
        name="LeadsmanFallingBack",
        expression=_share("leadsman_fallbacks_total", "leadsman_decisions_total", "5m") + " > 0.01",
        lasts="5m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of requests are sent without a decision.",
    ),
    Alert(
        name="LeadsmanTokensDiffer",
        expression="min by (namespace, job, model) (leadsman_token_parity) == 0",
        lasts="15m",
        severity="warning",
        summary="An engine tokenizes the requests of {{ $labels.model }}.",
    ),
    Alert(
        name="LeadsmanRecordsDropped",
        expression=f"sum {_BY} (rate(leadsman_journal_dropped_total[5m])) > 0 "
        f"or sum {_BY} (rate(leadsman_journal_failed_total[1h])) > 0",
        lasts="10m",
        severity="warning",
        summary="Records of decisions are lost, or stay unwritten as Parquet.",
    ),
)


def rules() -> dict[str, Any]:
    """Make the groups of a rule file."""
    recorded = [{"record": one.name, "expr": one.expression} for one in RECORDINGS]
    alerts = [
        {
            "alert": one.name,
            "expr": one.expression,
            "for": one.lasts,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "runbook": f"{RUNBOOKS}#{one.anchor}"},
        }
        for one in ALERTS
    ]
    return {
        "groups": [
            {"name": "leadsman.shares", "rules": recorded},
            {"name": "leadsman.alerts", "rules": alerts},
        ]
    }


def written() -> str:
    """Write the rule file."""
    return yaml.safe_dump(rules(), sort_keys=False, width=100)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(written())
