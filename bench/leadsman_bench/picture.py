"""The picture of a run: predicted against real time to first token, on logarithmic axes.

A prediction is good where its mark lies on the diagonal. Two bands say how good: within 15 % of
the real time or 0.1 s, whichever is more, and within 1 s. A hollow mark is a request whose cache
estimate differed from what the engine reused: where those lie off the diagonal, the cache was the
reason. A cross is a prediction of a worker whose curve was not measured yet.

Written as PNG and SVG, and as an HTML page of its own that holds the picture and the run's table.
"""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from leadsman.units import Seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST: Seconds = 0.01
"""Where both axes start: shorter times are drawn on the edge."""

RASTER_ABOVE = 3000
"""With more marks than this the SVG holds them as an image, or it would be many megabytes."""

COLOURS = (
    "#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#0b7285", "#c2255c", "#5c7c00", "#364fc7",
    "#e67700", "#087f5b", "#a61e4d", "#495057", "#1098ad", "#9c36b5", "#74b816", "#f03e3e",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One served request of the picture. cache_matched is None where reuse was not reported."""

    worker: str
    predicted: Seconds
    actual: Seconds
    cache_matched: bool | None = None
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the HTML page says around the picture; rows: (what, value)."""

    title: str
    subtitle: str
    rows: Sequence[tuple[str, str]]


def draw_all(marks: Sequence[Mark], page: Page, folder: Path, name: str = "ttft") -> list[Path]:
    """Write `name`.png, .svg and .html into `folder`; returns their paths."""
    figure = draw(marks, page)
    png, svg, htm = (folder / f"{name}.{kind}" for kind in ("png", "svg", "html"))
    figure.savefig(png, dpi=160)
    drawing = _svg(figure)
    svg.write_text(drawing, encoding="utf-8")
    htm.write_text(_html(drawing, page), encoding="utf-8")
    return [png, svg, htm]


def draw(marks: Sequence[Mark], page: Page) -> "Figure":
    """Draw the scatter. marks may be empty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 8.0), layout="constrained")
    axes = figure.subplots()
    longest = max((max(mark.predicted, mark.actual) for mark in marks), default=1.0)
    top = max(longest * 1.6, FEWEST * 100)
    _bands(axes, top)
    _scatter(axes, marks)
    axes.set(xscale="log", yscale="log", xlim=(FEWEST, top), ylim=(FEWEST, top), aspect="equal")
    axes.set_xlabel("predicted time to first token", fontsize=11)
    axes.set_ylabel("real time to first token", fontsize=11)
    _seconds(axes)
    axes.set_title(f"{page.title}\n", loc="left", fontsize=15, fontweight="bold")
    axes.text(0, 1.015, page.subtitle, transform=axes.transAxes, fontsize=10, color="#495057")
    return figure


def _bands(axes: "Axes", top: Seconds) -> None:
    """Draw the diagonal and both bands around it."""
    line = np.geomspace(FEWEST, top, 400)
    near = np.maximum(0.15 * line, 0.1)
    for width, colour, label in (
        (np.ones_like(line), "#f1f3f5", "within 1 s"),
        (near, "#d3f0dc", "within 0.1 s or 15 %"),
    ):
        least = np.maximum(line - width, FEWEST / 10)
        axes.fill_betweenx(line, least, line + width, color=colour, lw=0, label=label)
    axes.plot(line, line, color="#495057", lw=0.9)


def _scatter(axes: "Axes", marks: Sequence[Mark]) -> None:
    """Draw the marks by worker: filled, hollow where the cache differed, crosses where untaught."""
    raster = len(marks) > RASTER_ABOVE
    style: dict[str, Any] = {"s": 17 if len(marks) < 1500 else 6, "rasterized": raster}
    alpha = 0.75 if len(marks) < 1500 else 0.35
    for number, worker in enumerate(sorted({mark.worker for mark in marks})):
        colour = COLOURS[number % len(COLOURS)]
        own = [mark for mark in marks if mark.worker == worker]
        good = [m for m in own if m.measured and m.cache_matched is not False]
        off = [m for m in own if m.measured and m.cache_matched is False]
        untaught = [m for m in own if not m.measured]
        label = f"{worker} ({len(own)})"
        axes.scatter(*_places(good), color=colour, lw=0, alpha=alpha, label=label, **style)
        axes.scatter(*_places(off), facecolors="white", edgecolors=colour, lw=1.1, **style)
        axes.scatter(*_places(untaught), color=colour, marker="x", lw=0.9, alpha=alpha, **style)
    hollow = sum(mark.cache_matched is False for mark in marks)
    crosses = sum(not mark.measured for mark in marks)
    differed = f"cache estimate differed ({hollow})"
    axes.scatter([], [], facecolors="white", edgecolors="#495057", label=differed)
    axes.scatter([], [], color="#495057", marker="x", label=f"curve unmeasured ({crosses})")
    columns = 1 if len({mark.worker for mark in marks}) < 9 else 2
    legend = axes.legend(loc="upper left", fontsize=8.5, frameon=False, ncols=columns)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _places(marks: Sequence[Mark]) -> tuple[list[Seconds], list[Seconds]]:
    return (
        [max(mark.predicted, FEWEST) for mark in marks],
        [max(mark.actual, FEWEST) for mark in marks],
    )


def _seconds(axes: "Axes") -> None:
    """Name ticks as people say them: 10 ms, 1 s, 10 s."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def name(value: float, _place: object) -> str:
        return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(name))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#dee2e6", lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _svg(figure: "Figure") -> str:
    """Return the figure as SVG, the same bytes for the same run."""
    from matplotlib import rc_context

    target = io.StringIO()
    with rc_context({"svg.hashsalt": "leadsman", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#212529}
body{max-width:1180px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}p{color:#495057;margin:.2rem 0 1.2rem}
main{display:flex;flex-wrap:wrap;gap:2rem;align-items:flex-start}
figure{flex:2 1 560px;margin:0}svg{width:100%;height:auto}
table{flex:1 1 300px;border-collapse:collapse}
td{padding:.35rem .2rem;border-bottom:1px solid #e9ecef}
td+td{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
"""


def _html(drawing: str, page: Page) -> str:
    """Return a page of its own: no script, nothing to fetch."""
    rows = "".join(
        f"<tr><td>{html.escape(what)}</td><td>{html.escape(value)}</td></tr>"
        for what, value in page.rows
    )
    picture = drawing[drawing.index("<svg") :]
    title, subtitle = html.escape(page.title), html.escape(page.subtitle)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{subtitle}</p><main><figure>{picture}</figure>"
        f"<table>{rows}</table></main></html>\n"
    )
