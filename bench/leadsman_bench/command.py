"""`leadsman bench`: every number that the project claims, by these commands.

simulate: predictions on a fleet in virtual time. policies: goodput of admission policies side by
side, on the same. goals: what is promised of admission, each with its spread. recorded: on
recordings of a real engine.
micro: speed and memory of the parts, each module of `leadsman_bench.micro` with its `measure()`.
operator: how the operator keeps up in a cluster, by a real API server.
page: how smoothly the live page is drawn, in a real browser.
up, smoke, run, compare, down: policies against live engines, through Envoy.
"""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import ge, le
from pathlib import Path

import msgspec

from leadsman_bench.report import Line, table


@dataclass(frozen=True, slots=True)
class Goal:
    """What a measurement must reach. ok: compares the measured value with the limit."""

    ok: Callable[[float, float], bool]
    limit: float
    unit: str = ""

    def words(self) -> str:
        """Write the goal."""
        return f"{'≥' if self.ok is ge else '≤'} {self.limit:g}{self.unit}"


GOALS = {
    "price_20_queued_s": Goal(le, 100e-6, " s"),
    "decision_p99_s": Goal(le, 1e-3, " s"),
    "hash_lookup_vs_dynamo": Goal(le, 0.5),
    "ingest_blocks_per_s": Goal(ge, 500e3),
    "bytes_per_block": Goal(le, 80),
    "conversation_first_turn_s": Goal(le, 0.15, " s"),
    "conversation_next_turn_s": Goal(le, 0.04, " s"),
    "extproc_rps_vs_noop": Goal(ge, 0.70),
    "extproc_p50_vs_noop": Goal(le, 2.0),
    "extproc_220k_rps_vs_noop": Goal(ge, 0.45),
    "extproc_journal_cost": Goal(le, 0.05),
    "grade_10m_s": Goal(le, 30, " s"),
    "idle_cpu_64_endpoints": Goal(le, 0.05),
    "operator_lag_p99_s": Goal(le, 0.1, " s"),
    "cold_start_s": Goal(le, 10, " s"),
}


LIVE = ("up", "smoke", "run", "compare", "down")
"""The five operations on live engines."""


def main(argv: list[str]) -> int:
    """Run one of the benchmarks; gives the exit status, 2 where there is no such one."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "simulate": _simulate,
        "policies": _policies,
        "goals": _goals,
        "recorded": _recorded,
        "micro": micro,
        "operator": _operator,
        "page": _page,
        **{name: partial(_live, name) for name in LIVE},
    }
    name = argv[0] if argv else "--help"
    if name in {"-h", "--help"}:
        print(f"usage: leadsman bench {{{','.join(commands)}}} [OPTIONS]\n\n{__doc__}")
        return 0
    if name not in commands:
        print(f"leadsman bench: no benchmark {name!r}; there are {', '.join(commands)}")
        return 2
    return commands[name](argv[1:])


def _simulate(argv: list[str]) -> int:
    from leadsman_bench import simulate

    return simulate.main(argv)


def _policies(argv: list[str]) -> int:
    from leadsman_bench import contest

    return contest.main(argv)


def _live(name: str, argv: list[str]) -> int:
    return int(importlib.import_module("leadsman_bench.live.command").main(name, argv))


def _goals(argv: list[str]) -> int:
    return int(importlib.import_module("leadsman_bench.goals.command").main(argv))


def _recorded(argv: list[str]) -> int:
    return int(importlib.import_module("leadsman_bench.recorded").main(argv))


def _page(argv: list[str]) -> int:
    from leadsman_bench.seeing import frames

    return frames.main(argv)


def _operator(argv: list[str]) -> int:
    from leadsman_bench.operating import command

    _tell(*command.measure(argv))
    return 0


def micro(argv: list[str]) -> int:
    """Run the micro benchmarks, and show each figure beside its goal."""
    found = benchmarks()
    parser = argparse.ArgumentParser(prog="leadsman bench micro")
    parser.add_argument("only", nargs="*", help=f"any of {', '.join(found)}; all by default")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.only) - set(found)
    if unknown:
        parser.error(f"no micro benchmark {', '.join(sorted(unknown))}")
    measured: dict[str, float] = {}
    for name in arguments.only or found:
        print(f"measuring {name} …", file=sys.stderr)
        measured |= importlib.import_module(f"leadsman_bench.micro.{name}").measure()
    _tell(measured, arguments.json)
    return 0


def _tell(measured: dict[str, float], path: Path | None) -> None:
    """Show the figures, and write them where they are wanted."""
    _show(measured)
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")


def benchmarks() -> list[str]:
    """Name the micro benchmarks that there are."""
    from leadsman_bench import micro as package

    return sorted(
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_") and _measures(module.name)
    )


def _measures(name: str) -> bool:
    return hasattr(importlib.import_module(f"leadsman_bench.micro.{name}"), "measure")


def _show(measured: dict[str, float]) -> None:
    from rich.console import Console

    shown = [_line(name, value) for name, value in measured.items()]
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table("Speed and memory", shown))


def _line(name: str, value: float) -> Line:
    goal = GOALS.get(name)
    return Line(
        what=name,
        value=f"{value:,.4g}",
        goal=goal.words() if goal else None,
        met=goal.ok(value, goal.limit) if goal else None,
    )
