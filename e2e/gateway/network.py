"""A network of its own for a node and its pods: each pod a namespace with an address, one bridge.

So every pod binds 0.0.0.0 and its usual ports, as in a cluster. All of it lives in the namespace
that this process was started in, and ends with it.

The addresses are of TEST-NET-2, which is nobody's (RFC 5737): Kubernetes takes no loopback ones.
"""

import itertools
import subprocess
from pathlib import Path
from typing import Final

NODE: Final = "198.51.100.1"
_POD: Final = "198.51.100.{}"
_NAMES: Final = Path("/run/netns")
_HOSTS: Final = Path("/etc/hosts")


class Network:
    """The node's end. Make it only in namespaces of its own (gateway.run): it mounts and links."""

    def __init__(self, folder: Path) -> None:
        self._numbers = itertools.count(10)
        self._hosts = folder / "hosts"
        self._hosts.write_text(_HOSTS.read_text())
        self._fixed = self._hosts.read_text()
        _NAMES.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", str(_NAMES))
        _run("mount", "--bind", str(self._hosts), str(_HOSTS))
        _ip(
            "link set lo up",
            "link add pods type bridge",
            f"addr add {NODE}/24 dev pods",
            "link set pods up",
        )

    def join(self) -> tuple[str, str]:
        """Make a pod's namespace; gives its name and address."""
        number = next(self._numbers)
        name, address = f"pod{number}", _POD.format(number)
        _ip(
            f"netns add {name}",
            f"link add {name} type veth peer name eth0 netns {name}",
            f"link set {name} master pods up",
        )
        _ip(
            "link set lo up",
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
            namespace=name,
        )
        return name, address

    def leave(self, name: str) -> None:
        """Take a pod's namespace away."""
        _ip(f"link del {name}", f"netns del {name}")

    def inside(self, name: str, command: list[str]) -> list[str]:
        """Wrap a command to run in a pod's namespace."""
        return ["nsenter", f"--net={_NAMES / name}", "--", *command]

    def say(self, names: dict[str, list[str]]) -> None:
        """Have names resolve to addresses, in place of a cluster's DNS."""
        lines = [f"{one} {name}\n" for name in sorted(names) for one in sorted(names[name])]
        written = self._fixed + "".join(lines)
        if written != self._hosts.read_text():
            with self._hosts.open("r+") as hosts:  # never empty: whoever looks now finds something
                hosts.write(written)
                hosts.truncate()


def _ip(*lines: str, namespace: str | None = None) -> None:
    where = ["-n", namespace] if namespace else []
    _run("ip", *where, "-batch", "-", given="\n".join(lines) + "\n")


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
