"""The folder that records are written to: two files that grow, and those that were full.

`decisions.jsonl` and `outcomes.jsonl` grow. One that is full is renamed by the moment, and where
Parquet is asked for, a process of its own rewrites it (some ten times smaller) at the least
priority: the picker's own memory and time stay free of it, and where it fails the lines are still
there. What was left by an earlier life is taken up. A limit on all full files drops the oldest.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, Literal

KINDS: Final = ("decisions", "outcomes")
Form = Literal["jsonl", "parquet"]


def can_write_parquet() -> bool:
    """Say whether what writes Parquet is installed."""
    return find_spec("duckdb") is not None


class RecordFile:
    """One kind of lines, `decisions` or `outcomes`, in a folder."""

    def __init__(self, folder: Path, kind: str, file_bytes: int | None) -> None:
        self._live = folder / f"{kind}.jsonl"
        self._most = file_bytes
        self._file: IO[bytes] = self._live.open("ab")
        self._size = self._file.tell()
        self._full = 0

    def write(self, lines: bytes | memoryview) -> None:
        """Write whole lines."""
        self._file.write(lines)
        self._size += len(lines)

    def flush(self) -> None:
        """Hand what was written to the system; a file that is full is put aside."""
        self._file.flush()
        if self._most is not None and self._size >= self._most:
            self._file.close()
            self._live.rename(self._aside())
            self._file = self._live.open("ab")
            self._size = 0

    def close(self) -> None:
        """Close it; what its disk has no room for is lost, and was counted."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _aside(self) -> Path:
        """Name a full file by the moment, so that names stand in the order of time.

        An earlier life may have had the same process id, in a container it always has, and may have
        ended this very second: its files' names are not taken.
        """
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        while True:
            self._full += 1
            name = f"{self._live.stem}-{moment}-{os.getpid()}-{self._full:06d}"
            if not any(self._live.parent.glob(f"{name}.*")):
                return self._live.with_name(f"{name}.jsonl")


class FullFiles:
    """What becomes of the files that are full. One is rewritten at a time."""

    def __init__(self, folder: Path, form: Form, most_bytes: int | None) -> None:
        self._folder = folder
        self._form = form
        self._most = most_bytes
        self._rewriting: subprocess.Popen[bytes] | None = None
        self._left_alone: set[Path] = set()
        self._subject: Path | None = None
        self.failed = 0

    def tend(self) -> None:
        """Begin to rewrite the next one, and drop what is too much; does not wait."""
        if self._form == "parquet" and self._is_free():
            waiting = (path for path in self._all(".jsonl") if path not in self._left_alone)
            self._subject = next(waiting, None)
            if self._subject is not None:
                self._rewriting = _rewrite(self._subject)
        if self._most is not None:
            self._drop(self._most)

    def close(self) -> None:
        """Wait for the file that is being rewritten."""
        if self._rewriting is not None:
            self._rewriting.wait()
            self._is_free()

    def _is_free(self) -> bool:
        if self._rewriting is None:
            return True
        status = self._rewriting.poll()
        if status is None:
            return False
        self._rewriting = None
        if status and self._subject is not None:
            self._left_alone.add(self._subject)
            self.failed += 1
        return True

    def _drop(self, most: int) -> None:
        full = [path for path in self._all(".jsonl", ".parquet") if path != self._subject]
        sizes = {path: path.stat().st_size for path in full}
        too_much = sum(sizes.values()) - most
        for path in sorted(full, key=_moment):
            if too_much <= 0:
                return
            path.unlink(missing_ok=True)
            too_much -= sizes[path]

    def _all(self, *suffixes: str) -> Iterator[Path]:
        for path in sorted(self._folder.iterdir()):
            if path.suffix in suffixes and path.name.startswith(tuple(f"{k}-" for k in KINDS)):
                yield path


def _moment(path: Path) -> str:
    return path.name.partition("-")[2]


def _rewrite(path: Path) -> "subprocess.Popen[bytes]":
    """Rewrite one file as Parquet beside it, and remove it once that is whole."""
    nice = ["nice", "-n", "19"] if os.name == "posix" else []
    command = [*nice, sys.executable, "-m", "leadsman_extproc.parquet", str(path)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  # our own module


@contextlib.contextmanager
def record_files(folder: Path, file_bytes: int | None) -> Iterator[dict[str, RecordFile]]:
    """Open both kinds in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: RecordFile(folder, kind, file_bytes) for kind in KINDS}
    try:
        yield files
    finally:
        for file in files.values():
            file.close()
