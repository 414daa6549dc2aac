"""Programs and files out of Go modules, built or fetched once and kept in the user's cache."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent


class NotToBeHadError(Exception):
    """Something cannot be had on this machine: says what, and what would help."""


def cache_folder() -> Path:
    """Say where what was built or fetched once is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "leadsman"


def built(name: str, module: Path, package: str = ".", stamps: Sequence[str] = ()) -> Path:
    """Build a package as a module's files pin it, unless that was done; gives the program.

    stamps: `variable=value`, for the linker. Raises NotToBeHadError.
    """
    written = b"".join(path.read_bytes() for path in sorted(module.iterdir()))
    folder = cache_folder() / f"{name}-{hashlib.sha256(written).hexdigest()[:12]}"
    program = folder / name
    if not program.exists():
        print(f"building {name} into {folder}: minutes", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"made-{os.getpid()}"
        linked = " ".join(["-s -w", *(f"-X {stamp}" for stamp in stamps)])
        go(module, "build", "-trimpath", "-ldflags", linked, "-o", str(made), package)
        made.rename(program)
    return program


def module_folder(module: str, version: str) -> Path:
    """Fetch a Go module; gives its folder. Raises NotToBeHadError."""
    done = go(HERE, "mod", "download", "-json", f"{module}@{version}")
    return Path(json.loads(done)["Dir"])


def go(where: Path, *arguments: str) -> str:
    """Run go in a folder; gives what it says. Raises NotToBeHadError."""
    program = shutil.which("go")
    if program is None:
        raise NotToBeHadError("there is no Go toolchain")
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOGC": os.environ.get("GOGC", "400"),
    }
    done = subprocess.run(
        [program, *arguments],
        cwd=where,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problem = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NotToBeHadError(f"go {arguments[0]} failed: {' '.join(problem)}")
    return done.stdout
