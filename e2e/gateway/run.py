"""Run the tests through a real gateway: `python -m gateway.run [OPTIONS OF PYTEST]`, in e2e/.

First builds what they need; where that cannot be had, says so and ends with status 3. Then they run
in namespaces of their own, network and mounts, so that pods can have addresses and nothing of it
is seen outside. Without root, in a user namespace.

`--prepare` only builds.
"""

import json
import os
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
    try:
        found = programs()
    except NotToBeHadError as error:
        print(f"no run through a real gateway: {error}", file=sys.stderr)
        sys.exit(NOT_TO_BE_HAD)
    if sys.argv[1:] == ["--prepare"]:
        return
    os.environ[FOUND] = json.dumps(asdict(found), default=str)
    alone = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    tests = ["-m", "pytest", "-rs", "--timeout=600", "e2e/gateway", *sys.argv[1:]]
    os.chdir(ROOT)
    os.execvp(alone[0], [*alone, "--", sys.executable, *tests])


if __name__ == "__main__":
    main()
