"""Child processes of a run: started together, stopped together, none left behind.

Each child dies with this process even if that is killed (the kernel's parent-death signal), and is
stopped on every way out of the `with` block, Ctrl-C included: first asked, after GRACE killed. A
child leads a process group of its own, so that Ctrl-C reaches this process alone and the order of
stopping is ours.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leadsman.units import Seconds

GRACE: Seconds = 5.0
_ASK_AND_EXEC: Final = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class ChildError(Exception):
    """A child ended or was not ready in time; says what it wrote last."""


@dataclass(slots=True)
class Children:
    """The running children; each writes to `folder/NAME.log`."""

    folder: Path
    _running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a child that dies with this process."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  commands of this package
                dying_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def until(self, name: str, ready: Callable[[], bool], within: Seconds = 30.0) -> None:
        """Wait until a child is ready. Raises ChildError where it ends or takes too long."""
        give_up = time.monotonic() + within
        while not ready():
            status = self._running[name].poll()
            if status is not None:
                raise ChildError(f"{name} ended with status {status}:\n{self.last_words(name)}")
            if time.monotonic() > give_up:
                raise ChildError(f"{name} is not ready:\n{self.last_words(name)}")
            time.sleep(0.05)

    def ended(self, name: str, within: Seconds) -> int | None:
        """Wait for a child to end by itself; gives its exit status, None where it does not."""
        try:
            return self._running[name].wait(timeout=within)
        except subprocess.TimeoutExpired:
            return None

    def end(self, name: str) -> None:
        """Ask one child to end, and see to it that it does."""
        child = self._running.pop(name)
        child.terminate()
        try:
            child.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def last_words(self, name: str) -> str:
        """Return the end of what a child wrote."""
        written = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(written.splitlines()[-15:])

    def told(self, name: str, within: Seconds = 30.0) -> dict[str, Any]:
        """Wait for the JSON line in which a child says where it serves.

        Raises ChildError where it ends or takes too long.
        """
        self.until(name, lambda: self._told(name) is not None, within)
        found = self._told(name)
        assert found is not None
        return found

    def _told(self, name: str) -> dict[str, Any] | None:
        for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and ("port" in said or "ports" in said):
                return said
        return None

    def pid(self, name: str) -> int:
        """Return a child's process id."""
        return self._running[name].pid

    def pids(self) -> list[int]:
        """List the children's process ids."""
        return [child.pid for child in self._running.values()]

    def kill(self, name: str) -> None:
        """Kill a child and all that it started, without warning."""
        child = self._running.pop(name)
        _kill_group(child.pid)
        child.wait()

    def stop(self) -> None:
        """Ask every child to end, the last started first; kill those that do not.

        What they started and left behind is killed too.
        """
        children = list(reversed(self._running.values()))
        for child in children:
            child.terminate()
        give_up = time.monotonic() + GRACE
        for child in children:
            try:
                child.wait(timeout=max(0.05, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            _kill_group(child.pid)
        self._running.clear()


def _kill_group(leader: int) -> None:
    """Kill what is left of the group that a child leads: what it started, too."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextmanager
def children(folder: Path) -> Iterator[Children]:
    """Hold children that are all stopped on the way out."""
    folder.mkdir(parents=True, exist_ok=True)
    held = Children(folder)
    try:
        yield held
    finally:
        held.stop()


def module(name: str, *arguments: str) -> list[str]:
    """Name the command that runs a module."""
    return [sys.executable, "-m", name, *arguments]


def cpu_seconds(pid: int) -> Seconds:
    """Read the CPU time that a process has taken, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  a local port
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def leadsman(*arguments: str) -> list[str]:
    """Give the command that runs `leadsman` in this interpreter."""
    code = "import sys; from leadsman_cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", code, *arguments]


def free_ports(count: int) -> list[int]:
    """Find ports of the loopback that nobody has now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Wrap a command so that the kernel kills it when this process dies.

    The child asks for that itself before it becomes the command: a `preexec_fn` would run in a fork
    of a process that may have gRPC threads.
    """
    return [sys.executable, "-c", _ASK_AND_EXEC, *command]
