"""What the demo runs: four engines, two loads, and the requests of the trace that make them.

The engines differ in hardware, step budget, sequences, block size, scheduling and version. Prompts
are a quarter of the trace's length and answers half, so that two cores carry engines, Envoy, picker
and client at once; which pieces prompts share is exactly the trace's. Capacity is measured before:
each engine's stepping core works off a backlog of the trace in virtual time.

Load comes in two phases, 0.7 then 1.5 times capacity, in the trace's own order with its own
bunching. Of the requests, 70 % bound their queue wait; half name max_tokens, more than they use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeAlias

import yaml
from leadsman.units import Seconds, Tokens
from leadsman_engines.simulated.make import AnySettings
from leadsman_engines.simulated.presets import presets

from leadsman_bench.offers import measured_capacity
from leadsman_bench.player import Planned
from leadsman_bench.scenario import MODEL, WorkerSpec, changed, wishes
from leadsman_bench.traces import TraceRequest, bundled, scaled, spread

PIECE_TOKENS: Tokens = 128
OUTPUT_SHARE = 0.5
BACKLOG = 300
"""Requests that an engine's capacity is measured on."""

BOUNDS: tuple[Seconds, ...] = (5.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the demo at one load, in units of capacity."""

    load: float
    seconds: Seconds


PHASES = (Phase(load=0.7, seconds=28.0), Phase(load=1.5, seconds=32.0))

Changes: TypeAlias = dict[str, int | bool | str]
"""What of a preset's settings is otherwise. `engine`: whose they are; vLLM's where it is absent."""

ENGINES: tuple[tuple[str, Changes], ...] = (
    ("llama-3.1-8b-a100", {}),
    ("mistral-7b-v100", {}),
    ("llama-3.1-70b-4xh100", {"max_num_seqs": 64, "block_size": 64}),
    ("qwen2.5-0.5b-a10g", {"max_num_seqs": 8}),
)


def engines() -> list[WorkerSpec]:
    """Return the engines."""
    made = presets()
    return [
        WorkerSpec(name=kind, settings=_settings(kind, changes), hardware=made[kind].hardware)
        for kind, changes in ENGINES
    ]


def _settings(kind: str, changes: Changes) -> AnySettings:
    preset, changes = presets()[kind], {**changes, "model": MODEL}
    if changes.pop("engine", "vllm") == "vllm":
        return changed(preset.settings, **changes)
    return replace(preset.sglang, **changes)  # type: ignore[arg-type]  # the plan's own names


def engine_options(name: str, changes: Changes) -> list[str]:
    """Return the options of `leadsman simulate-engine` that make the same engine."""
    wanted = _settings(name, changes)
    engine, changes = changes.get("engine"), {k: v for k, v in changes.items() if k != "engine"}
    options = ["--preset", name]
    if engine is not None:
        options += ["--engine", str(engine)]
    for key in ("model", *changes, *(["num_blocks"] if "block_size" in changes else [])):
        options += ["--" + key.replace("_", "-"), str(getattr(wanted, key))]
    return options


def trace() -> list[TraceRequest]:
    """Return the shipped rows at the demo's lengths, each at a moment of its own."""
    rows = scaled(bundled(), piece_tokens=PIECE_TOKENS, output=OUTPUT_SHARE)
    return spread(rows, rng=Random("demo/spread"))


def capacity(rows: Sequence[TraceRequest]) -> list[float]:
    """Measure each engine's requests a second on the trace's first rows that it can hold."""
    found: list[float] = []
    for spec in engines():
        room = spec.settings.max_model_len
        fitting = [row for row in rows if row.input_tokens + row.output_tokens < room]
        found.append(measured_capacity(spec, fitting[:BACKLOG], seed=1))
    return found


def plan(rows: Sequence[TraceRequest], per_s: float, *, seed: int) -> list[Planned]:
    """Put the trace's rows into the phases, in their order, at each phase's load."""
    rng = Random(f"{seed}/callers")
    planned: list[Planned] = []
    start: Seconds = 0.0
    for phase in PHASES:
        wanted = round(phase.load * per_s * phase.seconds)
        part = rows[len(planned) : len(planned) + wanted]
        for row, at in zip(part, _times(part, phase.seconds), strict=True):
            wanted_by = wishes(row, rng)
            bound = wanted_by.max_queue_wait
            planned.append(
                Planned(
                    id=f"demo-{len(planned):04d}",
                    at=start + at,
                    row=replace(row, at=start + at),
                    model=MODEL,
                    max_queue_wait=None if bound is None else rng.choice(BOUNDS),
                    max_tokens=wanted_by.max_tokens,
                )
            )
        start += phase.seconds
    return planned


def _times(rows: Sequence[TraceRequest], seconds: Seconds) -> list[Seconds]:
    """Press the rows' own times into so many seconds."""
    if not rows:
        return []
    first = rows[0].at
    span = max(rows[-1].at - first, 1e-9)
    return [(row.at - first) / span * seconds for row in rows]


def phase_at(at: Seconds) -> Phase:
    """Say which phase a moment of the plan is in."""
    end = 0.0
    for phase in PHASES:
        end += phase.seconds
        if at < end:
            return phase
    return PHASES[-1]


def fleet_file(ports: Sequence[int], tokenizer: Path, template: Path, journal: Path) -> str:
    """Write what `leadsman serve` is told."""
    return yaml.safe_dump(
        {
            "endpoints": [{"url": f"http://127.0.0.1:{port}"} for port in ports],
            "models": [
                {"name": MODEL, "path": str(tokenizer), "chat_template": str(template)},
            ],
            "picker": {"listen": "127.0.0.1:0", "journal": str(journal), "drain": 2.0},
            "budget": {"name": "demo"},
        },
        sort_keys=False,
    )
