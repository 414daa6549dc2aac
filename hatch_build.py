"""Compiles what runs in every decision, message, event and engine step, by mypyc, into the wheel.

The same typed Python, some five times as fast in the replay: see docs/adr. Nothing depends on it:
what is not compiled is interpreted. In a working tree `python hatch_build.py` puts the extensions
beside their sources, and `python hatch_build.py --remove` takes them away.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
GROUP = "leadsman"
HOT = {
    "core/leadsman": (
        "admit candidates copies crowd decide ends exact families firstcome fleet followers future "
        "ghosts holding keys lengths line lobbies lobby looks mirror pool prefixes pricing replay "
        "residuals route running schedulers sequence serving sglang sglang_budget sglang_decode "
        "sglang_queue skipping standing stepping steptime tables together windows worker"
    ),
    "extproc/leadsman_extproc/http2": "calls connection frames headers messages outflow stream",
    "extproc/leadsman_extproc": (
        "bodies chat events exchange fields gather grants messages_api models native_bodies "
        "outcomes own_tokens pending picking prompts reading responses_api rows segments session "
        "sse templates verdict watch wire wishes"
    ),
    "engines/leadsman_engines": "blocks chunks groups kv_wire orphans zmtp",
    "fleet/leadsman_fleet": "log residency state written",
    "engines/leadsman_engines/simulated": (
        "blocks cache engine hardware scheduler sequences steps stretch"
    ),
}


def sources() -> list[str]:
    """List what is compiled, from the root of the tree."""
    return [f"{folder}/{name}.py" for folder, names in HOT.items() for name in names.split()]


def compile_in_place() -> list[Path]:
    """Compile all sources, each extension beside its source; returns the files made.

    Where there is no C compiler none are, and all of it is interpreted.
    """
    if shutil.which(os.environ.get("CC", "cc")) is None:
        print("no C compiler: Leadsman will run interpreted, several times slower", file=sys.stderr)
        return []
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.chdir(ROOT)
    packages = {folder.split("/", 1)[1].replace("/", "."): folder for folder in HOT}
    with tempfile.TemporaryDirectory() as out:
        arguments = ["--follow-imports=silent", "--ignore-missing-imports", *sources()]
        extensions = mypycify(
            arguments, group_name=GROUP, opt_level="2", debug_level="0", multi_file=True,
            target_dir=out,
        )  # fmt: skip
        made = Distribution({"ext_modules": extensions, "package_dir": {"": "core"} | packages})
        command = build_ext(made)
        command.inplace, command.build_temp, command.build_lib = True, out, out
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        return [Path(path) for path in command.get_outputs()]


def remove() -> None:
    """Take all extensions out of the tree."""
    for folder in ("core", *HOT):
        for path in (ROOT / folder).glob("*.so"):
            path.unlink()


class CompileHot(BuildHookInterface[Any]):
    """Puts the extensions into a wheel, unless LEADSMAN_INTERPRETED is set."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and include what came of it; leave an editable install to the Makefile."""
        if version == "editable" or os.environ.get("LEADSMAN_INTERPRETED"):
            return
        made = compile_in_place()
        for path in made:
            inside = path.resolve().relative_to(ROOT).as_posix().split("/", 1)[1]
            build_data["force_include"][str(path)] = inside
        build_data["pure_python"], build_data["infer_tag"] = not made, bool(made)


if __name__ == "__main__":
    remove()
    if "--remove" not in sys.argv:
        compile_in_place()
