"""Writes docs/reference/metrics.md: `python -m leadsman_extproc.metrics_reference FILE`.

From the page itself, once everything on it has been counted, so it has what is exported and nothing
else (`make generate`; a test compares the two).
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from leadsman.condition import Condition
from leadsman.curve import DEFAULT_CURVE
from leadsman.records import LoadSample, StoreSeen
from leadsman.shares import Standing
from leadsman.units import WorkerId
from prometheus_client.core import Metric

from leadsman_extproc.metrics import BY_LABEL, IN_FLIGHT, Counts, Page

HEAD: Final = """# Metrics

What a picker exports at `picker.metrics_port`, written from the code by `make generate`. Labels are
few by design: a worker, a model, and words of closed lists; after 100 models the rest are `other`.
Counters end in `_total` on the page, histograms in `_bucket`, `_count` and `_sum`.

The alerts and recording rules that rest on these are in the chart (`prometheusRule.enabled`), each
with its [runbook](../runbooks.md).
"""
OURS: Final = """
## Leadsman's own

| metric | type | labels | what it says |
|---|---|---|---|
"""
THEIRS: Final = """
## Names of other endpoint pickers

Dashboards and autoscalers for the Gateway API inference extension and llm-d read these; they mean
the same here. `fairness_id` and `priority` are left out: callers choose their values.

| metric | type | labels | what it says |
|---|---|---|---|
"""


def everything() -> Iterable[Metric]:
    """Yield every family that there is, with a sample of each."""
    worker = WorkerId("any")
    load = LoadSample(worker=worker, at=0.0, running=1, waiting=1, kv_usage=0.5)
    condition = Condition(
        worker=worker,
        model="any",
        ready=True,
        heard_at=0.0,
        load=load,
        provenance="own",
        curve=DEFAULT_CURVE,
        samples=1,
        event_lag=0.0,
    )
    counts = Counts(
        trust=lambda: [("any",) * 3],
        conditions=lambda: [condition],
        stores=lambda: [StoreSeen(worker=worker, chunks=1, unused={})],
        pool="any",
    )
    for name, _, _ in BY_LABEL:
        getattr(counts, name)["any"] = 1
    counts.token_parity["any"] = True
    counts.held_for("any", 1.0)
    counts.shares = lambda: [("any", "any", Standing(share=0.5, used=0.5, tokens=1.0))]
    counts.of_model("any").failed["any"] = 1
    return Page(counts, dict.fromkeys(IN_FLIGHT, lambda: {worker: 1})).collect()


def written() -> str:
    """Write the page."""
    families = list(everything())
    ours = [_row(one) for one in families if one.name.startswith("leadsman_")]
    theirs = [_row(one) for one in families if not one.name.startswith("leadsman_")]
    return HEAD + OURS + "".join(ours) + THEIRS + "".join(theirs)


def _row(family: Metric) -> str:
    suffix = "_total" if family.type == "counter" else ""
    labels = dict.fromkeys(label for one in family.samples for label in one.labels)
    told = ", ".join(f"`{label}`" for label in labels if label != "le")
    return f"| `{family.name}{suffix}` | {family.type} | {told} | {family.documentation} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(written())
