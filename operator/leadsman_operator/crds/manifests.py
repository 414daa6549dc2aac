"""The CustomResourceDefinitions: each resource's names, columns and schema, as YAML.

`python -m leadsman_operator.crds.manifests DIR` writes one file each (`make crds`); a test holds
what is checked in against them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from leadsman_operator.crds.engine_profile import EngineProfileSpec, EngineProfileStatus
from leadsman_operator.crds.latency_budget import LatencyBudgetSpec, LatencyBudgetStatus
from leadsman_operator.crds.parts import GROUP, VERSION, Part
from leadsman_operator.crds.schema import schema_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind. columns: what `kubectl get` prints: name, type, path."""

    kind: str
    plural: str
    short: str
    about: str
    spec: type[Part]
    status: type[Part]
    columns: tuple[tuple[str, str, str], ...]

    @property
    def file(self) -> str:
        """The name of its CRD's file."""
        return f"{GROUP}_{self.plural}.yaml"

    def definition(self) -> dict[str, Any]:
        """Write its CustomResourceDefinition."""
        columns = (*self.columns, ("Age", "date", ".metadata.creationTimestamp"))
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short],
                    "categories": ["leadsman"],
                },
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "additionalPrinterColumns": [
                            {"name": name, "type": kind, "jsonPath": path}
                            for name, kind, path in columns
                        ],
                        "schema": {"openAPIV3Schema": self._schema()},
                    }
                ],
            },
        }

    def _schema(self) -> dict[str, Any]:
        return {
            "description": self.about,
            "type": "object",
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": schema_of(self.spec),
                "status": schema_of(self.status),
            },
        }


def _condition(name: str) -> tuple[str, str, str]:
    return name, "string", f'.status.conditions[?(@.type=="{name}")].status'


LATENCY_BUDGET: Final = Resource(
    kind="LatencyBudget",
    plural="latencybudgets",
    short="latbud",
    about="What a set of a pool's requests may take, and what a refusal of one of them looks like.",
    spec=LatencyBudgetSpec,
    status=LatencyBudgetStatus,
    columns=(
        ("Pool", "string", ".spec.poolRef.name"),
        ("Max-Wait", "string", ".spec.maxQueueWait"),
        ("TTFT", "string", ".spec.ttft"),
        ("Mode", "string", ".spec.mode"),
        _condition("Effective"),
    ),
)
ENGINE_PROFILE: Final = Resource(
    kind="EngineProfile",
    plural="engineprofiles",
    short="engprof",
    about="What engines in a set of pods do not tell of themselves, and what was found of each.",
    spec=EngineProfileSpec,
    status=EngineProfileStatus,
    columns=(
        ("Engine", "string", ".spec.engine"),
        ("Pods", "integer", ".status.pods"),
        ("Workers", "integer", ".status.workers"),
        _condition("Discovered"),
    ),
)
RESOURCES: Final = (LATENCY_BUDGET, ENGINE_PROFILE)


def written(resource: Resource) -> str:
    """Give the YAML of a resource's CRD, as it is checked in."""
    head = "# Made by `make crds` from operator/leadsman_operator/crds; change it there.\n"
    return head + yaml.safe_dump(resource.definition(), sort_keys=False, width=100)


def main(argv: list[str]) -> int:
    """Write the CRDs into a folder."""
    [folder] = argv
    for resource in RESOURCES:
        (Path(folder) / resource.file).write_text(written(resource))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
