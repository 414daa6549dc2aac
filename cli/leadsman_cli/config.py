"""What `leadsman serve` is told: docs/fleet.example.yaml shows every key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leadsman.budget import Budget
from leadsman.gate import Gates
from leadsman.policy import Policy, PolicyError
from leadsman_engines.profile import EngineProfile, SharedStore
from leadsman_extproc.models import ServedModel, load_model
from leadsman_extproc.plugins import kinds
from leadsman_extproc.settings import Settings
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.manifest import (
    EndpointSpec,
    ManifestError,
    read_endpoints,
    read_manifest,
)
from leadsman_operator.stores import is_readable


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """How a model's text becomes tokens. path: a folder with tokenizer.json and what belongs to it;
    without one its requests are tokenized by an engine. chat_template: a file that overrides it.
    """

    name: str
    path: Path | None = None
    chat_template: Path | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """listen: where further replicas follow the fleet stream; None: this process alone does."""

    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole file. secret: makes block keys unguessable; the same for all replicas.

    stores: what engines share below their own caches.
    """

    endpoints: tuple[EndpointSpec, ...]
    profiles: Mapping[str, EngineProfile] = field(default_factory=dict)
    stores: tuple[SharedStore, ...] = ()
    models: tuple[ModelSpec, ...] = ()
    budget: Budget = field(default_factory=Budget)
    picker: Settings = field(default_factory=Settings)
    fleet: FleetSpec = field(default_factory=FleetSpec)
    secret: str = ""

    def targets(self) -> tuple[Endpoint, ...]:
        """Make the endpoints. Raises ManifestError."""
        found = read_endpoints(self.endpoints, self.profiles)
        keeps_names = any(store.mooncake is not None for store in self.stores)
        return tuple(replace(endpoint, keeps_names=keeps_names) for endpoint in found)

    def served_models(self) -> tuple[ServedModel, ...]:
        """Load the models' tokenizers and templates. Raises ManifestError."""
        return load_models(self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerConfig:
    """The file of a picker alone. budget: of requests that no LatencyBudget is for.

    secret: the operator's.
    """

    models: tuple[ModelSpec, ...] = ()
    budget: Budget = field(default_factory=Budget)
    picker: Settings = field(default_factory=Settings)
    secret: str = ""


def policies(settings: Settings, budget: Budget) -> Mapping[str, type[Policy]]:
    """Gather the admission policies, and try the file's own. Raises ManifestError."""
    try:
        found = kinds(settings.policies)
    except PolicyError as error:
        raise ManifestError("picker.policies", str(error)) from error
    try:
        Gates(found).policy(budget)
    except PolicyError as error:
        raise ManifestError("budget.policy", str(error)) from error
    return found


def check_stores(stores: Sequence[SharedStore]) -> None:
    """Say what is wrong with the stores. Raises ManifestError."""
    for place, store in enumerate(stores):
        if (store.lmcache is None) == (store.mooncake is None):
            raise ManifestError(f"stores[{place}]", "expected one of lmcache and mooncake")
        if not store.url.startswith(("http://", "https://")):
            kind = "lmcache" if store.mooncake is None else "mooncake"
            raise ManifestError(f"stores[{place}].{kind}", "expected the URL of a store")
        if store.block_size < 1:
            raise ManifestError(
                f"stores[{place}].block_size", "expected a number of tokens above 0"
            )
        if not is_readable(store):
            raise ManifestError(f"stores[{place}]", "needs pip install 'leadsman[lmcache]'")


def load_models(models: Sequence[ModelSpec]) -> tuple[ServedModel, ...]:
    """Load models' tokenizers and templates. Raises ManifestError."""
    return tuple(_load(spec, f"models[{place}]") for place, spec in enumerate(models))


def read_config(path: Path) -> Config:
    """Read the file. Raises ManifestError, and OSError where it cannot be read."""
    return read_manifest(path.read_text(), Config)


def _load(spec: ModelSpec, path: str) -> ServedModel:
    text = None
    if spec.path is not None:
        try:
            template = spec.chat_template.read_text() if spec.chat_template else None
            text = load_model(spec.path, chat_template=template, variables=spec.template_variables)
        except (OSError, ValueError) as error:
            raise ManifestError(f"{path}.path", str(error)) from error
    return ServedModel(name=spec.name, text=text, aliases=spec.aliases, adapters=spec.adapters)
