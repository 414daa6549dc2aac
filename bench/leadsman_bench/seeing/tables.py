"""How a report of grades looks on a terminal of 100 columns."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from leadsman.grade import Cell
from leadsman.units import Seconds, Tokens
from leadsman_extproc.explaining import seconds

from leadsman_bench.report import Line, at_least, at_most, percent, table
from leadsman_bench.seeing.grade import Drift, Group, Report, Reuse, Worst
from leadsman_bench.seeing.refusals import Judged
from leadsman_bench.seeing.words import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TITLES: Final = {
    "cache": "By cache estimate, in %: what the engine found, beside what was credited",
    "model": "By model, in %",
    "worker": "By worker, in %",
    "size": "By prompt tokens, in %",
    "age": "By age of the worker's state, in %",
    "curve": "By where the worker's speed came from, in %",
    "hour": "By time, UTC, in %",
}
MOST_ROWS: Final = 24
LEAST_DRIFT: Final = 0.05
"""A worker whose real over predicted time changed by less is not worth a line."""
LEAST_REQUESTS: Final = 20


def show(report: Report, console: "Console") -> None:
    """Print all of it, the most important first."""
    console.print(table(_title(report), _lines(report)))
    if report.all is None:
        return
    console.print(_cells(report.all))
    for kind, title in TITLES.items():
        found = report.groups[kind]
        if len(found) > 1 or kind == "cache":
            console.print(_groups(title, found))
    if report.reuse:
        console.print(_reuse(report.reuse))
    console.print(*_drift(report.drift))
    console.print(_worst(report.worst))


def _title(report: Report) -> str:
    return f"{report.rows:,} outcomes recorded over {_span(report.span)}"


def _span(span: Seconds) -> str:
    if span < 120:
        return f"{span:.0f} s"
    return f"{span / 60:.0f} min" if span < 7200 else f"{span / 3600:.1f} h"


def _lines(report: Report) -> list[Line]:
    refused, all_ = sum(report.refused.values()), report.all
    found = [Line(what="requests sent on", value=f"{report.requests:,.0f}")]
    found += [Line(what="refused", value=f"{refused:,}")]
    found += [
        Line(what=f"  {(reason or 'unknown').replace('_', ' ')}", value=f"{count:,}")
        for reason, count in report.refused.items()
    ]
    if report.set_aside:
        told = f"{report.set_aside:,.0f}"
        found.append(Line(what="sent on although refused (shadow, probes)", value=told))
    found.append(Line(what="without a first token", value=f"{report.unanswered:,.0f}"))
    if all_ is None:
        return found
    return [
        *found,
        Line(what="graded", value=f"{all_.requests:,.0f}"),
        at_least("predictions within 1 s", all_.within_1s, 0.97),
        at_least("predictions within 10 s", all_.within_10s, 0.997),
        at_least("predictions within 0.1 s or 15 %", all_.within_relative, 0.90),
        Line(what="error: median, 90th, 99th percentile", value=_errors(all_)),
        Line(what="real times above predicted ones, in sum", value=_signed(all_.slower)),
        Line(what="real times within the predicted quantile", value=percent(all_.covered)),
        at_most("cache estimates that differed", all_.cache_mismatch, 0.01),
        at_most("underpredicted, of those with a bound", all_.share(Cell.UNDERPREDICTED), 0.02),
        at_most("false alarms, of those with a bound", all_.share(Cell.FALSE_ALARM), 0.02),
        *_judged("by hindsight", report.hindsight),
        *_judged("let in to see", report.probed),
    ]


def _judged(how: str, judged: Judged) -> list[Line]:
    if not judged.asked:
        return []
    line = at_most(f"false alarms, of refusals {how}", judged.share, 0.02)
    return [
        line,
        Line(what="  at 95 %", value=_interval(judged.interval)),
        Line(what="  of which it is not known", value=f"{judged.asked - judged.known:,}"),
    ]


def _interval(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{100 * found[0]:.1f} to {100 * found[1]:.1f} %"


def _errors(group: Group) -> str:
    return ", ".join(map(seconds, (group.p50, group.p90, group.p99)))


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def _cells(group: Group) -> "Table":
    drawn = _table("Against the bound, of requests that were served and had one")
    for name in ("", "came in time", "came late"):
        drawn.add_column(name, justify="right" if name else "left")
    drawn.add_row(
        "predicted in time",
        _cell(group, Cell.IN_TIME),
        _cell(group, Cell.UNDERPREDICTED, "underpredicted"),
    )
    drawn.add_row(
        "predicted late",
        _cell(group, Cell.FALSE_ALARM, "false alarm"),
        _cell(group, Cell.LATE),
    )
    return drawn


def _cell(group: Group, cell: Cell, name: str = "") -> str:
    told = f"{group.cells[cell]:,.0f}  {percent(group.share(cell))}"
    return f"{name}  {told}" if name else told


def _groups(title: str, found: Mapping[str, Group]) -> "Table":
    drawn = _table(title)
    drawn.add_column("", max_width=20, no_wrap=True)
    for name in ("requests", "1 s", "10 s", "15 %", "p50", "p90", "p99", "bias", "cache"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("under", justify="right", no_wrap=True)
    shown = dict(list(found.items())[-MOST_ROWS:]) if title == TITLES["hour"] else found
    if len(shown) > MOST_ROWS:
        worst = sorted(shown.items(), key=lambda one: one[1].within_1s)
        shown = dict(worst[:MOST_ROWS])
        drawn.title = f"{title}: the worst {MOST_ROWS} of {len(found)}"
    for name, group in shown.items():
        drawn.add_row(
            words(name),
            f"{group.requests:,.0f}",
            _share(group.within_1s),
            _share(group.within_10s),
            _share(group.within_relative),
            seconds(group.p50),
            seconds(group.p90),
            seconds(group.p99),
            "-" if group.slower is None else f"{100 * group.slower:+.1f}",
            _share(group.cache_mismatch),
            _share(group.share(Cell.UNDERPREDICTED)),
        )
    return drawn


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _reuse(found: tuple[Reuse, ...]) -> "Table":
    drawn = _table("Where reuse was lost, in prompt tokens")
    drawn.add_column("model", max_width=20, no_wrap=True)
    names = ("prompts", "the fleet held", "routing used", "delivered", "passed by", "missed")
    for name in (*names, "unforeseen"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for one in found:
        drawn.add_row(
            words(one.model),
            _tokens(one.prompt),
            *(f"{_tokens(part)} {100 * part / one.prompt:.0f} %" for part in _parts(one)),
            *(_tokens(part) for part in (one.passed_by, one.missed, one.unforeseen)),
        )
    drawn.caption = (
        "passed by: held elsewhere, not used by routing. missed: used, not delivered by the "
        "engine. unforeseen: delivered beyond what was used."
    )
    return drawn


def _parts(one: Reuse) -> tuple[Tokens, ...]:
    return one.held, one.used, one.delivered


def _tokens(count: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.1f}{name}"
    return f"{count:.0f}"


def _drift(found: tuple[Drift, ...]) -> "tuple[Table | str, ...]":
    drifted = [
        one
        for one in found
        if one.before and one.after and one.requests >= LEAST_REQUESTS
        and abs(one.after / one.before - 1) >= LEAST_DRIFT
    ]  # fmt: skip
    if not drifted:
        return (f"[bold]Drift[/bold]: no worker moved by {100 * LEAST_DRIFT:.0f} % or more",)
    drawn = _table("Drift: real over predicted time, in the first and the last half of the time")
    for name in ("worker", "first half", "last half", "change"):
        drawn.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    for one in sorted(drifted, key=lambda each: -abs(_change(each)))[:MOST_ROWS]:
        drawn.add_row(
            words(one.worker),
            f"{one.before:.3f}",
            f"{one.after:.3f}",
            f"{100 * _change(one):+.1f} %",
        )
    return (drawn,)


def _change(one: Drift) -> float:
    return one.after / one.before - 1 if one.after and one.before else 0.0


def _worst(found: tuple[Worst, ...]) -> "Table":
    drawn = _table("The worst: `leadsman explain REQUEST` says why")
    drawn.add_column("request", max_width=28, no_wrap=True)
    drawn.add_column("worker", max_width=18, no_wrap=True)
    for name in ("prompt", "predicted", "real", "cache", "found", "ahead"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for one in found:
        drawn.add_row(
            words(one.request),
            words(one.worker),
            _tokens(one.prompt_tokens),
            seconds(one.predicted),
            seconds(one.actual),
            *("-" if part is None else _tokens(part) for part in (one.credited, one.reused)),
            "-" if one.queued_requests is None else str(one.queued_requests),
        )
    return drawn


def _table(title: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
