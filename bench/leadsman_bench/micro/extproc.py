"""What the picker costs on the wire, beside a no-op ext_proc in Python, in the same run.

The question: how much of a no-op's request rate is left, and how much latency is added, once each
request is read, tokenized exactly, priced on four workers, reserved, routed and its outcome kept.
A real Envoy with one worker in front of engines that answer at once, both bodies in full duplex as
all gateways of the Gateway API have them; one figure is of the profile where Envoy's configuration
is ours. Two kinds of chats: of 2 KB, and conversations of 220 KB; in both only the last message is
new.

Rates are with 16 clients, latency with one, as what it adds to the same Envoy without a picker.
What records cost is told beside the same picker without a journal. All take turns, so that what
else the machine does hits them alike; figures are medians. All processes share the machine with
this one, so absolute figures are pessimistic. The no-op works in two threads and ours in one, so
where the machine is busy with other things too, it gets a larger share of it: then the CPU time of
a request is the figure to look at. The no-op is the least that can be done on grpc.aio; ours has a
server of its own (docs/adr/0012).
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from leadsman.units import Seconds

from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig, Profile
from leadsman_bench.micro import _load
from leadsman_bench.micro._upstream import MODEL
from leadsman_bench.micro.conversation import DIRECTORY, TEMPLATE
from leadsman_bench.processes import children, cpu_seconds, leadsman, module

ROUNDS: Final = 5
CLIENTS: Final = 16
ENGINES: Final = 4
SECONDS: Final[Seconds] = 1.5
CONVERSATIONS: Final = 8
SHORT: Final = 2_000
LONG: Final = 220_000


def measure() -> dict[str, float]:
    """Measure the ratios; takes some 110 seconds."""
    short, long = _bodies(SHORT), _bodies(LONG)
    with _running("duplex") as paths:
        pickers = {"noop": paths["noop"], "ours": paths["ours"]}
        at_short = _in_turn(pickers, short, CLIENTS)
        recording = journal_cost(paths, short)
        at_long = _in_turn(pickers, long, CLIENTS)
        alone = _in_turn({name: paths[name] for name in ("none", "noop", "ours")}, short, 1)
    with _running("buffered") as paths:
        pickers = {"noop": paths["noop"], "ours": paths["ours"]}
        at_buffered = _in_turn(pickers, short, CLIENTS)
    rates, longs, buffered = (
        _medians(runs, lambda run: run.load.rate) for runs in (at_short, at_long, at_buffered)
    )
    cpu, long_cpu = (_medians(runs, lambda run: run.cpu) for runs in (at_short, at_long))
    p50 = _medians(alone, lambda run: run.load.p50)
    return {
        "extproc_rps_vs_noop": rates["ours"] / rates["noop"],
        "extproc_p50_vs_noop": (p50["ours"] - p50["none"]) / (p50["noop"] - p50["none"]),
        "extproc_220k_rps_vs_noop": longs["ours"] / longs["noop"],
        "extproc_buffered_rps_vs_noop": buffered["ours"] / buffered["noop"],
        **recording,
        "extproc_rps": rates["ours"],
        "extproc_noop_rps": rates["noop"],
        "extproc_p50_added_s": p50["ours"] - p50["none"],
        "extproc_noop_p50_added_s": p50["noop"] - p50["none"],
        "extproc_220k_rps": longs["ours"],
        "extproc_220k_noop_rps": longs["noop"],
        "extproc_buffered_rps": buffered["ours"],
        "extproc_buffered_noop_rps": buffered["noop"],
        "extproc_cpu_s": cpu["ours"],
        "extproc_noop_cpu_s": cpu["noop"],
        "extproc_220k_cpu_s": long_cpu["ours"],
        "extproc_220k_noop_cpu_s": long_cpu["noop"],
    }


def journal_cost(paths: "dict[str, _Path]", bodies: list[bytes]) -> dict[str, float]:
    """Measure which share of the rate, and of the CPU's time, records of every request cost."""
    runs = _in_turn({name: paths[name] for name in ("ours", "unrecorded")}, bodies, CLIENTS)
    rates, cpu = _medians(runs, lambda run: run.load.rate), _medians(runs, lambda run: run.cpu)
    return {
        "extproc_journal_cost": 1.0 - rates["ours"] / rates["unrecorded"],
        "extproc_journal_cpu_cost": 1.0 - cpu["unrecorded"] / cpu["ours"],
    }


@dataclass(frozen=True, slots=True)
class _Path:
    """A way through an Envoy; `pid` is its picker's, None where it has none."""

    url: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, and the CPU time that its picker took for a request."""

    load: _load.Load
    cpu: Seconds


_Runs: TypeAlias = dict[str, list[_Run]]


def _medians(runs: _Runs, of: Callable[[_Run], float]) -> dict[str, float]:
    return {name: median(map(of, of_one)) for name, of_one in runs.items()}


def _in_turn(paths: dict[str, _Path], bodies: list[bytes], clients: int) -> _Runs:
    """Load each in turn, ROUNDS times; a first, short round of each warms up."""
    source = _load.requests(bodies)
    runs: _Runs = {name: [] for name in paths}
    for path in paths.values():
        _load.run(path.url, source, clients=clients, seconds=SECONDS / 2)
    for _ in range(ROUNDS):
        for name, path in paths.items():
            before = _taken(path)
            load = _load.run(path.url, source, clients=clients, seconds=SECONDS)
            runs[name].append(_Run(load, (_taken(path) - before) / load.requests))
    return runs


def _taken(path: _Path) -> Seconds:
    return 0.0 if path.pid is None else cpu_seconds(path.pid)


def _bodies(size: int) -> list[bytes]:
    """Make conversations of this many bytes; the counter's place is in the last message."""
    rng = random.Random(size)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(5000)]
    return [_conversation(rng, words, size) for _ in range(CONVERSATIONS)]


def _conversation(rng: random.Random, words: list[str], size: int) -> bytes:
    messages = [{"role": "system", "content": " ".join(rng.choices(words, k=60))}]
    while len(json.dumps(messages)) < size - 400:
        role = "user" if messages[-1]["role"] != "user" else "assistant"
        length = rng.randint(20, min(500, size // 20))
        messages.append({"role": role, "content": " ".join(rng.choices(words, k=length))})
    if messages[-1]["role"] == "user":
        messages.append({"role": "assistant", "content": "yes"})
    last = f"{' '.join(rng.choices(words, k=20))} {_load.place()}?"
    messages.append({"role": "user", "content": last})
    return json.dumps({"model": MODEL, "max_tokens": 16, "messages": messages}).encode()


@contextmanager
def _running(profile: Profile) -> Iterator[dict[str, _Path]]:
    """Run engines, both pickers and an Envoy for each; yields the ways through them by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leadsman-micro-")))
        held = stack.enter_context(children(folder))
        held.start("engines", module("leadsman_bench.micro._upstream", str(ENGINES)))
        ports = held.told("engines")["ports"]
        engines = [f"127.0.0.1:{port}" for port in ports]
        held.start("noop", module("leadsman_bench.micro._noop", profile))
        for name, journal in (("ours", folder / "journal"), ("unrecorded", None)):
            (folder / f"{name}.yaml").write_text(fleet_file(ports, folder, journal))
            held.start(name, leadsman("serve", "--config", str(folder / f"{name}.yaml")))
        paths = {}
        for name in ("none", "noop", "ours", "unrecorded"):
            picks = name != "none"
            picker = f"127.0.0.1:{held.told(name)['port']}" if picks else None
            config = EnvoyConfig(
                engines=engines,
                picker=picker,
                profile=profile,
                logs_access=name == "ours" and profile == "buffered",
            )
            envoy = stack.enter_context(running_envoy(config))
            paths[name] = _Path(envoy.url, held.pid(name) if picks else None)
        yield paths


def fleet_file(ports: list[int], folder: Path, journal: Path | None) -> str:
    """Write the file of a fleet whose engines are stubs that tell no scheduler settings."""
    (folder / "template.jinja").write_text(TEMPLATE)
    engine = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    told: dict[str, Any] = {
        "endpoints": [{"url": f"http://127.0.0.1:{port}", "profile": engine} for port in ports],
        "models": [
            {
                "name": MODEL,
                "path": str(DIRECTORY),
                "chat_template": str(folder / "template.jinja"),
            }
        ],
        "picker": {"listen": "127.0.0.1:0", "journal": None if journal is None else str(journal)},
    }
    return json.dumps(told)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
