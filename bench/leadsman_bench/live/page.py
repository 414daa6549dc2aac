"""The report of a set of runs: one HTML file with its plots in it, for whoever was not there.

Five plots. Goodput against load, with the spread of the repeats. What was let in, against load. The
time to first token of those served, as a distribution, at the highest load that all were run at.
Whether the signals moved that policies read, over the time of one repeat. And who was refused: by
the length of the prompt, since a policy that refuses the long ones only looks good by choice.
"""

import html
import io
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from leadsman_bench.live import comparing
from leadsman_bench.live.comparing import Run
from leadsman_bench.picture import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (512, 1024, 2048, 4096, 8192)
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem }
body { color: #1a1a1a; background: #fff }
h1 { margin-bottom: 0 }
.plots { display: grid; gap: 1rem }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)) }
figure { margin: 0 }
figcaption { font-size: .85rem; color: #555 }
svg { width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
td:nth-child(2), th:nth-child(2) { text-align: left }
.missing { color: #b02a37 }
"""
Plot = Callable[["Axes", Sequence[Run]], None]


def drawn(runs: Sequence[Run]) -> str:
    """Draw the report of runs that can be compared. Raises CompareError where they cannot."""
    ranking = comparing.ranked(runs)
    plots = "".join(
        f"<figure>{_svg(plot, runs)}<figcaption>{html.escape(says)}</figcaption></figure>"
        for plot, says in PLOTS
    )
    first = runs[0].manifest
    configuration = first["disclosures"]["configuration"]
    deadline = first["disclosures"]["deadline"]
    about = (
        f"{configuration['model']} on {', '.join(configuration['engines'])}; "
        f"{configuration['workload']}, callers who are refused {configuration['manners']}; "
        f"1 x is {first['disclosures']['load']['capacity_rps']:.2f} calls a second; a deadline is "
        f"{deadline['slack_s']:g} s and {deadline['times_unloaded']:g} times the unloaded TTFT"
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>Admission policies compared</title><style>{STYLE}</style>"
        f"<h1>Admission policies compared</h1><p>{html.escape(about)}</p>"
        f"{_table(runs, ranking)}{_left_out(runs)}<div class=plots>{plots}</div>"
        f"{_disclosures(runs)}</html>"
    )


def _table(runs: Sequence[Run], ranking: dict[float, list[tuple[str, list[float]]]]) -> str:
    rows = []
    for load, ranked in ranking.items():
        for name, values in ranked:
            of = [run.summary for run in runs if run.label == name and run.load == load]
            p95 = [one["ttft_ms"]["p95"] for one in of if one["ttft_ms"]["p95"] is not None]
            shown = (
                f"{load:g} x",
                name,
                comparing.told(values),
                f"{fmean(one['admit_rate'] or 0.0 for one in of):.0%}",
                f"{fmean(p95) / 1e3:.2f} s" if p95 else "–",
                str(len(values)),
            )
            rows.append("<tr>" + "".join(f"<td>{html.escape(one)}</td>" for one in shown))
    heads = ("load", "policy", "goodput", "let in", "TTFT p95 of served", "repeats")
    head = "".join(f"<th>{one}</th>" for one in heads)
    return f"<div class=wide><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _left_out(runs: Sequence[Run]) -> str:
    return "".join(f"<p class=missing>{html.escape(one)}</p>" for one in comparing.left_out(runs))


def _disclosures(runs: Sequence[Run]) -> str:
    missing = comparing.undisclosed(runs)
    told = "".join(f"<li class=missing>not disclosed: {html.escape(one)}</li>" for one in missing)
    policies = {run.label: run.manifest["disclosures"]["parameters"] for run in runs}
    for name, parameters in policies.items():
        said = "; ".join(
            f"{one} = {value['value']} ({value['provenance']})" for one, value in parameters.items()
        )
        told += f"<li>{html.escape(name)}: {html.escape(said or 'no parameters')}</li>"
    denominator = html.escape(str(runs[0].manifest["disclosures"]["denominator"]))
    return (
        f"<h2>Disclosures</h2><ul><li>goodput: {denominator}</li>{told}</ul>"
        "<p>Manifests, decisions and outcomes of each run lie beside this file.</p>"
    )


def _svg(plot: Plot, runs: Sequence[Run]) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.__name__, "font.size": 11}):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        plot(axes, runs)
        axes.spines[["top", "right"]].set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    drawing = written.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    # Ids must differ between drawings of one page.
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{plot.__name__}-", drawing)


def _policies(runs: Sequence[Run]) -> list[tuple[str, str, list[Run]]]:
    names = list(dict.fromkeys(run.label for run in runs))
    return [
        (name, COLOURS[place % len(COLOURS)], [run for run in runs if run.label == name])
        for place, name in enumerate(names)
    ]


def _against_load(axes: "Axes", runs: Sequence[Run], of: Callable[[Run], float]) -> None:
    for name, colour, own in _policies(runs):
        loads = sorted({run.load for run in own})
        values = [[of(run) for run in own if run.load == load] for load in loads]
        means = [fmean(one) for one in values]
        spread: Any = [
            [mean - min(one) for mean, one in zip(means, values, strict=True)],
            [max(one) - mean for mean, one in zip(means, values, strict=True)],
        ]
        axes.errorbar(
            loads,
            means,
            yerr=spread,
            label=name,
            color=colour,
            marker="o",
            capsize=4,
            linewidth=1.6,
        )
    axes.set_xlabel("offered load, in measured capacities")
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False, fontsize=9)


def goodput(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draw goodput against load."""
    _against_load(axes, runs, lambda run: run.goodput)
    axes.set_ylabel("calls in time, of all")


def let_in(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draw the admitted share against load."""
    _against_load(axes, runs, lambda run: float(run.summary["admit_rate"] or 0.0))
    axes.set_ylabel("calls let in, of all")


def ttft(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draw the distribution of TTFT at the highest load that all were run at."""
    load = max(comparing.ranked(runs))
    for name, colour, own in _policies(runs):
        waits = sorted(
            row["ttft_ms"] / 1e3
            for run in own
            if run.load == load
            for row in run.rows("outcomes")
            if row["ttft_ms"] is not None
        )
        if waits:
            shares = [(place + 1) / len(waits) for place in range(len(waits))]
            axes.step(waits, shares, label=name, color=colour, where="post")
    axes.set_xscale("log")
    axes.set_xlabel(f"time to first token at {load:g} x, seconds")
    axes.set_ylabel("share of those served")
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False, fontsize=9)


def liveness(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draw the signals of one repeat of each policy, over its time, each over its own most."""
    load = max(comparing.ranked(runs))
    styles = {"queue_depth": "-", "running": "--", "kv_pressure": ":"}
    most: dict[str, float] = {}
    for name, colour, own in _policies(runs):
        rows = next(run for run in own if run.load == load).rows("decisions")
        for signal, style in styles.items():
            points = [
                (row["at"] - rows[0]["at"], row["signals"].get(signal))
                for row in sorted(rows, key=lambda row: row["at"])
            ]
            known = [(at, value) for at, value in points if value is not None]
            top = max((value for _, value in known), default=0.0)
            most[signal] = max(most.get(signal, 0.0), top)
            if top > 0:
                axes.plot(
                    [at for at, _ in known],
                    [value / top for _, value in known],
                    style,
                    color=colour,
                    linewidth=1.2,
                    label=f"{name}: {signal} ≤ {top:.3g}",
                )
    axes.set_xlabel(f"seconds of one repeat at {load:g} x")
    axes.set_ylabel("signal, of its own most")
    axes.legend(frameon=False, fontsize=7)


def refused(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draw the share of calls refused by the length of their prompt."""
    load = max(comparing.ranked(runs))
    shown = _policies(runs)
    names = [f"< {edge}" for edge in SIZES] + [f"≥ {SIZES[-1]}"]
    width = 0.8 / len(shown)
    for place, (name, colour, own) in enumerate(shown):
        asked, out = [0] * len(names), [0] * len(names)
        for run in own:
            for row in run.rows("outcomes") if run.load == load else ():
                size = sum(row["prompt_tokens"] >= edge for edge in SIZES)
                asked[size] += 1
                out[size] += row["status"] == "rejected"
        shares = [a / b if b else 0.0 for a, b in zip(out, asked, strict=True)]
        places = [spot + width * (place - (len(shown) - 1) / 2) for spot in range(len(names))]
        axes.bar(places, shares, width, label=name, color=colour)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(f"prompt tokens, at {load:g} x")
    axes.set_ylabel("share refused for good")
    axes.legend(frameon=False, fontsize=9)


PLOTS: Sequence[tuple[Plot, str]] = (
    (goodput, "Goodput under admission: calls with their first token in time, of all that came."),
    (let_in, "What was let in, at the first try or a later one."),
    (ttft, "Those who were served: how long until their first token, from their first try."),
    (liveness, "Did the signals move? One that stays flat cannot have decided anything."),
    (refused, "Who was refused: by the length of the prompt."),
)
