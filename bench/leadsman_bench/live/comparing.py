"""Runs side by side: by policy and load, or a word why they cannot be.

What is ranked must have met the same: the same deployment, workload, manners, deadlines and load.
Runs that did not are not put in one order, and what differs is named. So is every disclosure that
is missing; a ranking without its disclosures is shown with that said.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from leadsman_bench.live.files import missing

if TYPE_CHECKING:
    from rich.table import Table

CAPACITY_APART = 0.1
"""Share by which two measurements of one deployment's capacity may differ."""


class CompareError(ValueError):
    """Runs that cannot be compared; says what differs, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as its files tell it."""

    folder: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The policy as it was run."""
        return str(self.manifest["policy_label"])

    @property
    def load(self) -> float:
        """In capacities."""
        return float(self.manifest["disclosures"]["load"]["multiple_of_capacity"])

    @property
    def goodput(self) -> float:
        """Share of calls in time."""
        return float(self.summary["goodput_under_admission"] or 0.0)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Read `decisions` or `outcomes`."""
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def read(folder: Path) -> list[Run]:
    """Read all runs below a folder. Raises CompareError where there are none, or one is broken."""
    found = []
    for path in sorted(folder.rglob("manifest.json")):
        try:
            manifest = json.loads(path.read_text())
            summary = json.loads((path.parent / "summary.json").read_text())
            run = Run(folder=path.parent, manifest=manifest, summary=summary)
            _ = run.label, run.goodput
        except (OSError, ValueError, KeyError) as error:
            raise CompareError(f"{path.parent}: no run: {error!r}") from error
        found.append(run)
    if not found:
        raise CompareError(f"{folder}: no run has been written there")
    return found


def differences(runs: Sequence[Run]) -> list[str]:
    """Name what all runs must have alike and have not."""
    told = []
    met = [_met(run) for run in runs]
    for what in met[0]:
        values: dict[object, Run] = {}
        for one, run in zip(met, runs, strict=True):
            values.setdefault(one[what], run)
        if len(values) > 1:
            (one_value, a), (other, b) = list(values.items())[:2]
            told.append(f"{what}: {one_value!r} in {a.folder.name}, {other!r} in {b.folder.name}")
    return told + _capacities(runs) + _loads(runs)


def _met(run: Run) -> dict[str, object]:
    """Say what a run met, whatever its policy."""
    engine, disclosed = run.manifest["environment"]["engine"], run.manifest["disclosures"]
    deadline, configuration = disclosed["deadline"], disclosed["configuration"]
    return {
        "experiment": run.manifest.get("experiment"),
        "deployment": (run.manifest.get("deployment"), tuple(engine["names"])),
        "engine version": tuple(map(str, engine["version"])),
        "workload": run.manifest.get("workload"),
        "manners": configuration.get("manners"),
        "seconds": configuration.get("seconds"),
        "deadline": (deadline["slack_s"], deadline["times_unloaded"]),
        "denominator": disclosed.get("denominator"),
    }


def _capacities(runs: Sequence[Run]) -> list[str]:
    measured = {float(run.manifest["disclosures"]["load"]["capacity_rps"]): run for run in runs}
    least, most = min(measured), max(measured)
    if most - least <= CAPACITY_APART * most:
        return []
    said = f"{least:.3g} calls/s in {measured[least].folder.name}, {most:.3g} in "
    return [f"capacity: {said}{measured[most].folder.name}: 1 x is not the same load"]


def _loads(runs: Sequence[Run]) -> list[str]:
    if _shared(runs):
        return []
    loads = "; ".join(f"{name} at {sorted(at)}" for name, at in _by_policy(runs).items())
    return [f"load: no load that all policies were run at: {loads}"]


def _by_policy(runs: Sequence[Run]) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for run in runs:
        found.setdefault(run.label, set()).add(run.load)
    return found


def _shared(runs: Sequence[Run]) -> set[float]:
    """Give the loads that all policies were run at."""
    return set.intersection(*_by_policy(runs).values())


def left_out(runs: Sequence[Run]) -> list[str]:
    """Name each load that is not ranked since some policy was not run at it, and which was not."""
    labels = list(dict.fromkeys(run.label for run in runs))
    told = []
    for load in sorted({run.load for run in runs} - _shared(runs)):
        had = {run.label for run in runs if run.load == load}
        lacking = ", ".join(name for name in labels if name not in had)
        told.append(f"{load:g} x is not ranked: not run with {lacking}")
    return told


def undisclosed(runs: Sequence[Run]) -> list[str]:
    """Name each missing disclosure and whose it is; each once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for one in missing(run.manifest):
            found.setdefault(one, []).append(run.folder.name)
    return [f"{one} (missing in {', '.join(names[:3])})" for one, names in found.items()]


def ranked(runs: Sequence[Run]) -> dict[float, list[tuple[str, list[float]]]]:
    """Order the policies at each load that all have, best mean goodput first.

    Raises CompareError for runs that are not comparable; says all that differs.
    """
    differ = differences(runs)
    if differ:
        raise CompareError("these runs cannot be ranked:\n  " + "\n  ".join(differ))
    return {
        load: sorted(
            (
                (name, [one.goodput for one in runs if one.label == name and one.load == load])
                for name in dict.fromkeys(run.label for run in runs)
            ),
            key=lambda row: -fmean(row[1]),
        )
        for load in sorted(_shared(runs))
    }


def told(values: Sequence[float]) -> str:
    """Write a mean with its spread."""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"


def table(runs: Sequence[Run]) -> "Table":
    """Draw the ranking: goodput, what was let in, and the TTFT of those served."""
    from rich import box
    from rich.table import Table

    drawn = Table(title="Goodput under admission", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("load", "policy", "goodput", "let in", "TTFT p50", "p95", "runs"):
        drawn.add_column(name, justify="left" if name == "policy" else "right")
    for load, rows in ranked(runs).items():
        for name, values in rows:
            of = [run.summary for run in runs if run.label == name and run.load == load]
            drawn.add_row(
                f"{load:g} x",
                name,
                told(values),
                f"{fmean(one['admit_rate'] or 0.0 for one in of):.2f}",
                *(_milliseconds([one["ttft_ms"][q] for one in of]) for q in ("p50", "p95")),
                str(len(values)),
            )
    return drawn


def _milliseconds(values: Sequence[float | None]) -> str:
    known = [one for one in values if one is not None]
    return f"{fmean(known) / 1e3:.2f} s" if known else "-"
