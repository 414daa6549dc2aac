"""Runs a command beside an API server of its own that knows all the CRDs, as KUBECONFIG says it.

From this folder's parent: python -m kube.served COMMAND [ARGUMENT …]
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from .conftest import install, our_crds, upstream_crds
from .control_plane import NotToBeHadError, control_plane


def main(command):
    """Run it; gives its exit status."""
    with (
        TemporaryDirectory(prefix="leadsman-kube-") as folder,
        control_plane(Path(folder)) as plane,
    ):
        for definition in [*our_crds(), *upstream_crds()]:
            install(plane, definition)
        told = os.environ | {"KUBECONFIG": str(plane.kubeconfig)}
        return subprocess.run(command, env=told, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NotToBeHadError as problem:
        sys.exit(f"no Kubernetes control plane: {problem}")
