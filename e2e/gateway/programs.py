"""All that a run through a real gateway needs, built or fetched beforehand: later there is no net.

Istio's pilot-discovery is built unpatched from its Go module: some minutes of idle cores and 3 GB
of Go's caches the first time, nothing afterwards.
"""

import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from kube.control_plane import programs as kubernetes_programs
from kube.go_programs import NotToBeHadError, built, module_folder
from kube.helm import helm_program

MODULE: Final = Path(__file__).parent / "pilot"
PILOT: Final = "istio.io/istio/pilot/cmd/pilot-discovery"
DEFINITIONS: Final = {
    "sigs.k8s.io/gateway-api": "config/crd/standard",
    "sigs.k8s.io/gateway-api-inference-extension": "config/crd/bases",
    "istio.io/istio": "manifests/charts/base/files",
}
TOOLS: Final = ("ip", "nsenter", "unshare", "openssl")


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Where everything is. definitions: files with CustomResourceDefinitions, among others."""

    pilot: Path
    helm: Path
    envoy: Path
    definitions: tuple[Path, ...]


def programs() -> Programs:
    """Build and fetch what is not there yet. Raises NotToBeHadError."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NotToBeHadError(f"not on the PATH: {', '.join(missing)}")
    kubernetes_programs()
    return Programs(
        pilot=built("pilot-discovery", MODULE, PILOT),
        helm=helm_program(),
        envoy=Path(str(files("envoy") / "_bin" / "envoy")),
        definitions=tuple(
            path
            for module, folder in DEFINITIONS.items()
            for path in sorted((module_folder(module, _pinned(module)) / folder).glob("*.yaml"))
        ),
    )


def _pinned(module: str) -> str:
    """Give the version that pilot itself is built with."""
    lines = (MODULE / "go.mod").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.strip().startswith(f"{module} "))
