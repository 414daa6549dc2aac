"""Run the tests through a real gateway: `python -m gateway.run [OPTIONS OF PYTEST]`, in e2e/.

First builds what they need. Then they run in namespaces of their own, network and mounts, so that
pods can have addresses and nothing of it is seen outside. Without root, in a user namespace. Where
something of this cannot be had, it says so and ends with status 3.

`--prepare` only builds.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kube.go_programs import NotToBeHadError

from .programs import programs

ROOT: Final = Path(__file__).parents[2]
NOT_TO_BE_HAD: Final = 3
FOUND: Final = "LEADSMAN_E2E_PROGRAMS"
"""Environment variable that tells the tests what was found: they cannot look for it any more."""


def main() -> None:
    alone = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    try:
        found = programs()
        _try(alone)
    except NotToBeHadError as error:
        print(f"no run through a real gateway: {error}", file=sys.stderr)
        sys.exit(NOT_TO_BE_HAD)
    if sys.argv[1:] == ["--prepare"]:
        return
    os.environ[FOUND] = json.dumps(asdict(found), default=str)
    tests = ["-m", "pytest", "-rs", "--timeout=600", "e2e/gateway", *sys.argv[1:]]
    os.chdir(ROOT)
    os.execvp(alone[0], [*alone, "--", sys.executable, *tests])


def _try(alone: list[str]) -> None:
    """See whether namespaces may be made here. Raises NotToBeHadError."""
    done = subprocess.run([*alone, "--", "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotToBeHadError(done.stderr.strip())


if __name__ == "__main__":
    main()
