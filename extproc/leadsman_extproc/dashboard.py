"""The Grafana dashboard of the pickers, from the same tables as their metrics.

Every metric has a panel, so one that is added shows up by itself; what is told only by two of them
together (shares) stands first. `python -m leadsman_extproc.dashboard FILE` writes it (`make
generate`); a test compares it with what a picker exports.

Source: Grafana's dashboard JSON model, schema version 39.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leadsman_extproc.metrics import (
    BY_LABEL,
    HELD,
    HELD_SECONDS,
    HISTOGRAMS,
    IN_FLIGHT,
    OF_WORKERS,
    PLAIN,
    SHARE,
    USED,
)

_FROM: Final = '{namespace=~"$namespace", job=~"$job"}'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ACROSS: Final = 3
_WIDTH: Final = 24 // _ACROSS
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph. expression: PromQL; legend: names a line by its labels; unit: Grafana's word."""

    title: str
    text: str
    expression: str
    legend: str
    unit: str = "reqps"


def _rate(name: str, by: str = "", where: str = _FROM) -> str:
    return f"sum{by}(rate(leadsman_{name}_total{where}[$__rate_interval]))"


def _shares() -> list[Panel]:
    within = _rate("within", " by (limit) ")
    asked = _FROM.replace("}", ', kind=~"admitted|refused"}')
    refused = _FROM.replace("}", ', kind="refused"}')
    return [
        Panel(
            title="Predictions that held",
            text="Share of graded predictions within a limit of the real time to first token.",
            expression=f"{within} / ignoring (limit) group_left () {_rate('graded')}",
            legend="{{limit}}",
            unit="percentunit",
        ),
        Panel(
            title="Share refused",
            text="Of the requests that were priced, those that were refused.",
            expression=f"{_rate('decisions', where=refused)} / {_rate('decisions', where=asked)}",
            legend="refused",
            unit="percentunit",
        ),
        Panel(
            title="Tokens as the engine's",
            text="1 while our tokens of a model are its engines'; 0: an engine tokenizes, slower.",
            expression=f"min by (model) (leadsman_token_parity{_FROM})",
            legend="{{model}}",
            unit="short",
        ),
        Panel(
            title="Cache views",
            text="Workers by how far their cache view is believed.",
            expression=f"count by (trust) (leadsman_trust{_FROM})",
            legend="{{trust}}",
            unit="short",
        ),
        Panel(
            title="Shared stores",
            text="1 while the directory of a store that engines share can be read.",
            expression=f"min by (store) (leadsman_store_readable{_FROM})",
            legend="{{store}}",
            unit="short",
        ),
        Panel(
            title="Shared stores' chunks",
            text="Of the largest store: those that are used, and others by why they are not.",
            expression=f"max by (state) (leadsman_store_chunks{_FROM})",
            legend="{{state}}",
            unit="short",
        ),
        *_admission(),
    ]


def _admission() -> list[Panel]:
    return [
        Panel(
            title="Held",
            text=HELD,
            expression=f"sum(leadsman_held{_FROM})",
            legend="held",
            unit="short",
        ),
        Panel(
            title="Held for",
            text=f"{HELD_SECONDS} 99th percentile.",
            expression="histogram_quantile(0.99, sum by (le) "
            f"(rate(leadsman_held_seconds_bucket{_FROM}[$__rate_interval])))",
            legend="p99",
            unit="s",
        ),
        Panel(
            title="Tenants' shares",
            text=SHARE,
            expression=f"max by (tenant) (leadsman_tenant_share{_FROM})",
            legend="{{tenant}}",
            unit="percentunit",
        ),
        Panel(
            title="Tenants' use",
            text=USED,
            expression=f"max by (tenant) (leadsman_tenant_used{_FROM})",
            legend="{{tenant}}",
            unit="percentunit",
        ),
    ]


def _counts() -> list[Panel]:
    labelled = [
        Panel(
            title=_title(name),
            text=text,
            expression=_rate(name, f" by ({label}) "),
            legend=f"{{{{{label}}}}}",
        )
        for name, label, text in BY_LABEL
    ]
    plain = [
        Panel(
            title=_title(name),
            text=text,
            expression=_rate(name),
            legend=name,
        )
        for name, text in PLAIN
    ]
    in_flight = [
        Panel(
            title=_title(name),
            text=text,
            expression=f"{together} by (worker) (leadsman_{name}{_FROM})",
            legend="{{worker}}",
            unit="short",
        )
        for (name, text), together in zip(IN_FLIGHT.items(), ("sum", "max"), strict=True)
    ]
    return labelled + plain + in_flight + _distributions() + _of_workers()


def _distributions() -> list[Panel]:
    """Draw each histogram's 99th percentile."""
    return [
        Panel(
            title=_title(name.removesuffix("_seconds")),
            text=f"{text} 99th percentile.",
            expression="histogram_quantile(0.99, sum by (le) "
            f"(rate(leadsman_{name}_bucket{_FROM}[$__rate_interval])))",
            legend="p99",
            unit="s",
        )
        for name, text in HISTOGRAMS
    ]


def _of_workers() -> list[Panel]:
    return [
        Panel(
            title=_title(name),
            text=text,
            expression=f"max by (worker) (leadsman_{name}{_FROM})",
            legend="{{worker}}",
            unit="s" if name.endswith("_seconds") else "short",
        )
        for name, (text, _) in OF_WORKERS.items()
    ]


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _drawn(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "description": panel.text,
            "datasource": _SOURCE,
            "gridPos": {
                "x": number % _ACROSS * _WIDTH,
                "y": number // _ACROSS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
            "targets": [
                {
                    "refId": "A",
                    "datasource": _SOURCE,
                    "expr": panel.expression,
                    "legendFormat": panel.legend,
                }
            ],
        }
        for number, panel in enumerate(panels)
    ]


def _chosen(name: str, label: str, where: str = "") -> dict[str, Any]:
    query = f"label_values(leadsman_decisions_total{where}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """Write the dashboard."""
    return {
        "uid": "leadsman-pickers",
        "title": "Leadsman / pickers",
        "tags": ["leadsman"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource"}
                | {"query": "prometheus"},
                _chosen("namespace", "Namespace"),
                _chosen("job", "Pickers", '{namespace=~"$namespace"}'),
            ]
        },
        "panels": _drawn([*_shares(), *_counts()]),
    }


def written() -> str:
    """Write it as JSON, one value a line."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(written())
