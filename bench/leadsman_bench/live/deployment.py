"""What is up: engines and an Envoy before them, kept by a process of its own until `down`.

`up` starts the keeper, which starts the engines (or takes those it is given) and Envoy, says in
`deployment.json` where they are, and stops all of it when it is asked to end. Envoy asks a picker
at a port that is kept for it; whoever runs a policy starts the picker there.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

import msgspec
from leadsman.units import Seconds

from leadsman_bench.demo_plan import ENGINES, engine_options
from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_bench.processes import Children, answers, children, free_ports, leadsman

UP_WITHIN: Seconds = 90.0
DOWN_WITHIN: Seconds = 30.0
PICKER_WITHIN: Seconds = 120.0
FILE = "deployment.json"


class DeploymentError(Exception):
    """What was asked of a deployment cannot be done; says why."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is up. engines: URLs; names: what each is; capacity_per_s: measured by `smoke`."""

    keeper: int
    url: str
    picker: str
    engines: list[str]
    names: list[str]
    model: str
    tokenizer: str
    chat_template: str | None
    simulated: bool
    capacity_per_s: float | None = None


def read(folder: Path) -> Deployment:
    """Read what is up. Raises DeploymentError where nothing is."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=Deployment)
    except FileNotFoundError:
        raise DeploymentError(
            f"nothing is up in {folder}: `leadsman bench up --in {folder}`"
        ) from None
    if not _is_alive(found.keeper):
        raise DeploymentError(f"what was up in {folder} is gone: `leadsman bench up --in {folder}`")
    return found


def write(folder: Path, deployment: Deployment) -> None:
    """Write what is up; whoever reads sees all of it or what was before."""
    made = folder / f".{FILE}"
    made.write_bytes(msgspec.json.format(msgspec.json.encode(deployment), indent=1) + b"\n")
    made.replace(folder / FILE)


def up(folder: Path, options: Sequence[str]) -> Deployment:
    """Start a keeper that outlives this process, and wait until all is up."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = read(folder)
    except DeploymentError:
        (folder / FILE).unlink(missing_ok=True)
    else:
        raise DeploymentError(f"{folder} is up already, kept by process {found.keeper}")
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(  # noqa: S603  this package's own module
            [sys.executable, "-m", "leadsman_bench.live.keeper", str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    give_up = time.monotonic() + UP_WITHIN
    while not (folder / FILE).exists():
        if keeper.poll() is not None or time.monotonic() > give_up:
            keeper.terminate()
            said = (folder / "keeper.log").read_text(errors="replace").strip()
            raise DeploymentError(f"nothing came up:\n{said[-2000:]}")
        time.sleep(0.1)
    return read(folder)


def down(folder: Path) -> None:
    """Let the keeper stop everything, and wait until it has."""
    found = read(folder)
    os.kill(found.keeper, signal.SIGTERM)
    give_up = time.monotonic() + DOWN_WITHIN
    while _is_alive(found.keeper):
        if time.monotonic() > give_up:
            raise DeploymentError(f"the keeper, process {found.keeper}, does not end")
        time.sleep(0.1)
    (folder / FILE).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def keep(folder: Path, base: Deployment, *, simulated_engines: int) -> None:
    """Hold a deployment until this process is asked to end. base: what is given of it."""
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with children(folder / "logs") as held:
        engines, names = list(base.engines), list(base.names)
        if simulated_engines:
            names = [name for name, _ in ENGINES[:simulated_engines]]
            engines = _start_engines(held, base, simulated_engines)
        [port] = free_ports(1)
        hosts = [url.partition("://")[2].rstrip("/") for url in engines]
        config = EnvoyConfig(engines=hosts, picker=f"127.0.0.1:{port}")
        with running_envoy(config) as envoy:
            found = msgspec.structs.replace(
                base,
                keeper=os.getpid(),
                url=envoy.url,
                picker=f"127.0.0.1:{port}",
                engines=engines,
                names=names,
            )
            write(folder, found)
            ended.wait()


def _start_engines(held: Children, base: Deployment, count: int) -> list[str]:
    for number, (name, changes) in enumerate(ENGINES[:count]):
        options = [*engine_options(name, changes), "--tokenizer", base.tokenizer]
        if base.chat_template is not None:
            options += ["--chat-template", base.chat_template]
        held.start(f"engine-{number}", leadsman("simulate-engine", *options, "--seed", str(number)))
    ports = [int(held.told(f"engine-{number}")["port"]) for number in range(count)]
    return [f"http://127.0.0.1:{port}" for port in ports]


def start_picker(
    held: Children, up_: Deployment, budget: Mapping[str, object], journal: Path
) -> None:
    """Start `leadsman serve` with a budget where Envoy asks, and wait until it can decide."""
    import yaml

    model: dict[str, object] = {"name": up_.model, "path": up_.tokenizer}
    if up_.chat_template is not None:
        model["chat_template"] = up_.chat_template
    [metrics] = free_ports(1)
    told = {
        "endpoints": [{"url": url} for url in up_.engines],
        "models": [model],
        "picker": {
            "listen": up_.picker,
            "journal": str(journal.absolute()),
            "metrics_port": metrics,
            "drain": 1.0,
            "recording": {"names": "plain"},
        },
        "budget": dict(budget),
    }
    settings = held.folder / "fleet.yaml"
    settings.write_text(yaml.safe_dump(told, sort_keys=False))
    held.start("leadsman", leadsman("serve", "--config", str(settings)))
    held.told("leadsman", PICKER_WITHIN)
    held.until("leadsman", lambda: answers(f"{up_.engines[0]}/health"))
