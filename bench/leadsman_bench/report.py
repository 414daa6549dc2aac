"""How a run's figures look on a terminal, each beside its goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadsman_extproc.explaining import seconds

from leadsman_bench.chance import Odds
from leadsman_bench.summary import Graded, Shares, Summary

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure. goal: in words, and whether it was met; None where nothing is promised."""

    what: str
    value: str
    goal: str | None = None
    met: bool | None = None


def percent(share: float | None) -> str:
    """Write a share; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def lines(summary: Summary) -> list[Line]:
    """Return a summary's figures with the goals of the project."""
    found = [
        Line(what="requests", value=f"{summary.requests:,}"),
        Line(what="served and graded", value=f"{summary.graded:,}"),
        Line(what="refused", value=f"{summary.refused:,}"),
    ]
    found += [
        Line(what=f"  {reason.replace('_', ' ')}", value=f"{number:,}")
        for reason, number in summary.refused_by_reason.items()
    ]
    if summary.lost:
        found.append(Line(what="lost, or not finished", value=f"{summary.lost:,}"))
    return [
        *found,
        at_least("predictions within 1 s", summary.within_1s, 0.97),
        at_least("predictions within 10 s", summary.within_10s, 0.997),
        at_least("predictions within 0.1 s or 15 %", summary.within_relative, 0.90),
        Line(what="median error", value=seconds(summary.median_error_s)),
        Line(what="90th percentile of the error", value=seconds(summary.p90_error_s)),
        at_most("cache estimates that differed", summary.cache_mismatch, 0.01),
        at_least("bounds kept", summary.bound_kept, 0.98),
        Line(what="same side of the bound", value=percent(summary.same_side)),
    ]


def at_least(what: str, share: float | None, goal: float) -> Line:
    """Make the line of a share that must not be less than `goal`."""
    met = None if share is None else share >= goal
    return Line(what=what, value=percent(share), goal=f"≥ {100 * goal:g} %", met=met)


def at_most(what: str, share: float | None, goal: float) -> Line:
    """Make the line of a share that must not be more than `goal`."""
    met = None if share is None else share <= goal
    return Line(what=what, value=percent(share), goal=f"≤ {100 * goal:g} %", met=met)


def table(title: str, found: Sequence[Line]) -> "Table":
    """Make the table of a run."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    drawn.add_column("")
    drawn.add_column("measured", justify="right")
    drawn.add_column("goal", justify="right", style="dim")
    drawn.add_column("")
    marks = {True: "[green]✓", False: "[red]✗", None: ""}
    for line in found:
        drawn.add_row(line.what, line.value, line.goal or "", marks[line.met])
    return drawn


def groups(title: str, found: dict[str, Shares]) -> "Table":
    """Make the table of a run's groups: workers, loads, or where the curve came from."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    drawn.add_column("", no_wrap=True)
    for name in (
        "requests",
        "1 s",
        "10 s",
        "0.1 s or 15 %",
        "p90 error",
        "cache off",
        "bound kept",
    ):
        drawn.add_column(name, justify="right", no_wrap=True)
    for name, group in found.items():
        drawn.add_row(
            name,
            f"{group.requests:,}",
            percent(group.within_1s),
            percent(group.within_10s),
            percent(group.within_relative),
            seconds(group.p90_error_s),
            percent(group.cache_mismatch),
            percent(group.bound_kept),
        )
    return drawn


def chances(found: dict[str, Odds]) -> "Table":
    """Make the table of what chance leaves, by offered load: ours / the best there is."""
    from rich import box
    from rich.table import Table

    title = "What chance leaves: our hits, and a perfect forecaster's on what came (on draws)"
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for name in ("load", "decisions", "1 s, ours", "best", "0.1 s or 15 %, ours", "best"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for name, odds in found.items():
        drawn.add_row(
            name,
            f"{odds.decisions:,}",
            percent(odds.within_1s_ours),
            f"{percent(odds.within_1s_best)} ({percent(odds.within_1s_expected)})",
            percent(odds.within_relative_ours),
            f"{percent(odds.within_relative_best)} ({percent(odds.within_relative_expected)})",
        )
    return drawn


def worst(graded: Sequence[Graded], count: int) -> "Table":
    """Make the table of the predictions that were most wrong, worst first.

    wait and prefill: predicted → real seconds before and after the engine began with the request.
    """
    from rich import box
    from rich.table import Table

    drawn = Table(title=f"The {count} worst", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("request", "worker", "at", "load", "prompt", "credited", "reused", "ahead"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for name in ("wait", "prefill", "error", "curve"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for one in sorted(graded, key=lambda one: -abs(one.grade.error))[:count]:
        grade = one.grade
        drawn.add_row(
            grade.request,
            grade.worker,
            f"{one.at:.1f}",
            "-" if one.load is None else f"{one.load:.2f}",
            f"{grade.prompt_tokens:,}",
            f"{grade.credited:,}",
            "-" if grade.reused is None else f"{grade.reused:,}",
            "-" if one.ahead is None else str(one.ahead),
            f"{one.predicted_wait:.2f} → {one.actual_wait:.2f}",
            f"{one.predicted_prefill:.2f} → {one.actual_prefill:.2f}",
            f"{-grade.error:+.2f} s",
            one.curve,
        )
    return drawn
