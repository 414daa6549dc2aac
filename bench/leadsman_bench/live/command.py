"""The five operations on the command line; each works on a folder, `--in`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from leadsman.policy import PolicyError
from leadsman.units import Seconds
from leadsman_extproc.plugins import kinds
from rich.console import Console

from leadsman_bench.callers import Manners
from leadsman_bench.envoy import EnvoyError
from leadsman_bench.live import comparing, deployment, files
from leadsman_bench.live.deployment import DeploymentError
from leadsman_bench.live.keeper import base, parser
from leadsman_bench.live.play import TaskPlay
from leadsman_bench.live.run import Plan, measure_capacity, repeats
from leadsman_bench.processes import ChildError
from leadsman_bench.traces import TraceError

FOLDER = Path("bench-out")
SAID_EVERY: Seconds = 5.0


def main(name: str, argv: list[str]) -> int:
    """Run one of the operations."""
    operations: dict[str, Callable[[list[str], Console], int]] = {
        "up": up,
        "smoke": smoke,
        "run": run,
        "compare": compare,
        "down": down,
    }
    console = Console(width=None if sys.stdout.isatty() else 120)
    failures = (
        DeploymentError,
        ChildError,
        EnvoyError,
        TraceError,
        PolicyError,
        comparing.CompareError,
        ValueError,
    )
    try:
        return operations[name](argv, console)
    except failures as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return 1


def _in(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument(
        "--in", dest="folder", type=Path, default=FOLDER, help=f"folder (default {FOLDER})"
    )
    return made


def up(argv: list[str], console: Console) -> int:
    """Bring engines and Envoy up."""
    made = _in(parser("leadsman bench up"))
    arguments = made.parse_args(argv)
    base(arguments)
    found = deployment.up(arguments.folder, _without_folder(argv))
    console.print(f"up: {found.url} before {len(found.engines)} engines: {', '.join(found.names)}")
    console.print(f"next: leadsman bench smoke --in {arguments.folder}")
    return 0


def _without_folder(argv: list[str]) -> list[str]:
    """Leave `--in FOLDER` out: the keeper is told it by place."""
    kept, skip = [], False
    for one in argv:
        if skip or one.startswith("--in="):
            skip = False
        elif one == "--in":
            skip = True
        else:
            kept.append(one)
    return kept


def smoke(argv: list[str], console: Console) -> int:
    """Check that the deployment serves, and measure its capacity."""
    made = _in(argparse.ArgumentParser(prog="leadsman bench smoke", description=smoke.__doc__))
    made.add_argument("--seconds", type=float, default=60.0, help="for the backlog, at most")
    made.add_argument("--seed", type=int, default=9)
    arguments = made.parse_args(argv)
    found = deployment.read(arguments.folder)
    console.print(f"a backlog of {128 * len(found.engines)} calls, nobody refused …")
    per_s = measure_capacity(found, arguments.seconds, arguments.folder / "smoke", arguments.seed)
    from msgspec.structs import replace

    deployment.write(arguments.folder, replace(found, capacity_per_s=per_s))
    console.print(f"serves; capacity measured: {per_s:.2f} calls a second")
    return 0


def run(argv: list[str], console: Console) -> int:
    """Run policies at loads, each some times, and write four files of each run."""
    arguments = _run_parser().parse_args(argv)
    found = deployment.read(arguments.folder)
    known = kinds()
    plans = [
        _plan(arguments, policy, load)
        for policy in arguments.policy or ["none", "queue_cap", "predicted_wait"]
        for load in arguments.load or [1.0]
    ]
    for plan in plans:
        if plan.policy not in known:
            raise PolicyError(f"no policy {plan.policy!r}; there are {', '.join(sorted(known))}")
        known[plan.policy].made(plan.parameters)
    out = arguments.folder / "runs"
    for plan in plans:
        with console.status("") as status:
            watcher = _Watcher(console, status.update, plan)
            rans = repeats(found, plan, arguments.folder / "pickers" / plan.policy, watcher)
        for ran in rans:
            folder = files.write(out, ran, found)
            figures = files.summary(ran)
            console.print(
                f"{files.label(ran)} {plan.load:g} x, repeat {ran.repeat}: goodput "
                f"{figures['goodput_under_admission']:.3f}, let in {figures['admit_rate']:.2f}"
                f"  {folder.name}",
                highlight=False,
            )
    return _compare(arguments.folder, console)


class _Watcher:
    """Says how a play stands: on a line that changes, or now and then where nobody watches."""

    def __init__(self, console: Console, update: Callable[[str], None], plan: Plan) -> None:
        self._console, self._update, self._plan = console, update, plan
        self._said: Seconds = 0.0

    def __call__(self, repeat: int, play: TaskPlay, at: Seconds) -> None:
        """Say it."""
        tally, plan = play.tally, self._plan
        words = (
            f"{plan.policy} {plan.load:g} x, repeat {repeat} of {plan.repeats}: {at:3.0f} s, "
            f"{tally.sent} of {tally.planned} sent, {tally.served} served, {tally.refused} "
            f"refused, {tally.in_flight} in flight, {tally.failed} failed"
        )
        self._update(words)
        if not self._console.is_terminal and abs(at - self._said) >= SAID_EVERY:
            self._said = at
            self._console.print(words, highlight=False)


def _plan(arguments: argparse.Namespace, policy: str, load: float) -> Plan:
    name, _, unit = policy.partition("/")
    return Plan(
        workload=arguments.workload,
        trace=arguments.trace,
        manners=arguments.manners,
        policy=name,
        parameters=dict(arguments.set or ()),
        unit=unit or "request",
        load=load,
        seconds=arguments.seconds,
        warm_up=arguments.warm_up,
        repeats=arguments.repeats,
        seed=arguments.seed,
        slack=arguments.slack,
        factor=arguments.factor,
        experiment=arguments.experiment,
    )


def _run_parser() -> argparse.ArgumentParser:
    made = _in(argparse.ArgumentParser(prog="leadsman bench run", description=run.__doc__))
    made.add_argument("--policy", action="append", help="NAME, or NAME/session, NAME/tenant")
    made.add_argument(
        "--set", action="append", type=_setting, metavar="NAME=NUMBER", help="a parameter of it"
    )
    made.add_argument("--load", action="append", type=float, help="in measured capacities (1)")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--seconds", type=float, default=30.0, help="of a repeat that count")
    made.add_argument("--warm-up", type=float, default=10.0, help="seconds before them")
    made.add_argument("--workload", choices=["conversation", "agents"], default="conversation")
    made.add_argument("--trace", type=Path, help="a file: Mooncake's, AdmitPerf's or our format")
    made.add_argument("--manners", choices=get_args(Manners), default="leave")
    made.add_argument("--slack", type=float, default=2.0, help="of a deadline: seconds")
    made.add_argument("--factor", type=float, default=2.0, help="and so many unloaded TTFTs")
    made.add_argument("--seed", type=int, default=int(time.time()) % 1000 * 10)
    made.add_argument("--experiment", default="admission")
    return made


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def compare(argv: list[str], console: Console) -> int:
    """Rank the runs of a folder, and draw the report."""
    made = _in(argparse.ArgumentParser(prog="leadsman bench compare", description=compare.__doc__))
    return _compare(made.parse_args(argv).folder, console)


def _compare(folder: Path, console: Console) -> int:
    from leadsman_bench.live import page

    runs = comparing.read(folder / "runs")
    for one in comparing.undisclosed(runs):
        console.print(f"not disclosed: {one}", highlight=False)
    report = folder / "report.html"
    report.write_text(page.drawn(runs), encoding="utf-8")
    console.print(f"report: {report}")
    console.print(comparing.table(runs))
    for one in comparing.left_out(runs):
        console.print(one, highlight=False)
    return 0


def down(argv: list[str], console: Console) -> int:
    """Stop all that is up."""
    made = _in(argparse.ArgumentParser(prog="leadsman bench down", description=down.__doc__))
    folder = made.parse_args(argv).folder
    deployment.down(folder)
    console.print(f"down; the runs stay in {folder / 'runs'}")
    return 0
