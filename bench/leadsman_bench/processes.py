"""Child processes of a run: started together, stopped together, none left behind.

Each child dies with this process even if that is killed (the kernel's parent-death signal), and is
stopped on every way out of the `with` block, Ctrl-C included: first asked, after GRACE killed. A
child leads a process group of its own, so that Ctrl-C reaches this process alone and the order of
stopping is ours.
"""

import ctypes
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leadsman.units import Seconds

GRACE: Seconds = 5.0
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


class ChildError(Exception):
    """A child ended or was not ready in time; says what it wrote last."""


@dataclass(slots=True)
class Children:
    """The running children; each writes to `folder/NAME.log`."""

    folder: Path
    _running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a child that dies with this process."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  commands of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  it only calls prctl
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

    def last_words(self, name: str) -> str:
        """Return the end of what a child wrote."""
        written = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(written.splitlines()[-15:])

    def pids(self) -> list[int]:
        """List the children's process ids."""
        return [child.pid for child in self._running.values()]

    def stop(self) -> None:
        """Ask every child to end, the last started first; kill those that do not."""
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
        self._running.clear()


@contextmanager
def children(folder: Path) -> Iterator[Children]:
    """Hold children that are all stopped on the way out."""
    folder.mkdir(parents=True, exist_ok=True)
    held = Children(folder)
    try:
        yield held
    finally:
        held.stop()


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  a local port
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
