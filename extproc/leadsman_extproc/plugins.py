"""Admission policies from elsewhere: found by entry point, named in the settings, or AdmitPerf's.

A package declares its classes in the entry point group `leadsman.policies`; there they are
subclasses of `leadsman.policy.Policy`, and are known by their own name. AdmitPerf's are found in
its group, and known as `admitperf.NAME`, so that its `kv_threshold` is not taken for ours. Nothing
may take the name of another. What cannot be loaded stops the start, and says whose it was.

What goes wrong while deciding is a fault: counted each time, and logged the first time and at most
once in a while after that, with how many there were.
"""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Final

from leadsman.gate import Fault
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.units import Seconds

from leadsman_extproc.admitperf import adapted, is_admitperf
from leadsman_extproc.metrics import Counts

GROUPS: Final = ("leadsman.policies", "admitperf.policies")
QUIET: Final[Seconds] = 10.0
"""Between two log lines of the same fault."""

log = logging.getLogger(__name__)


def kinds(named: Iterable[str] = ()) -> Mapping[str, type[Policy]]:
    """Gather all policies by name. named: MODULE:CLASS of further ones. Raises PolicyError."""
    found: dict[str, type[Policy]] = dict(BUILT_IN)
    for where, load in (*_entries(), *((one, _named(one)) for one in named)):
        try:
            loaded = load()
        except Exception as error:  # a package's own import may raise anything
            raise PolicyError(f"policy {where}: cannot be loaded: {error!r}") from error
        kind = _policy(where, loaded)
        if kind.name in found and found[kind.name] is not kind:
            raise PolicyError(f"policy {where}: there is a policy {kind.name!r} already")
        found[kind.name] = kind
    return found


def _entries() -> Iterator[tuple[str, Callable[[], Any]]]:
    for group in GROUPS:
        for entry in entry_points(group=group):
            yield f"{group}: {entry.value}", entry.load


def _named(name: str) -> Callable[[], Any]:
    def load() -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)

    return load


def _policy(where: str, loaded: Any) -> type[Policy]:
    if isinstance(loaded, type) and issubclass(loaded, Policy):
        return loaded
    if is_admitperf(loaded):
        return adapted(loaded)
    raise PolicyError(f"policy {where}: neither a leadsman.policy.Policy nor one of AdmitPerf's")


@dataclass(slots=True)
class Faults:
    """Counts faults, and logs them without flooding."""

    counts: Counts
    clock: Callable[[], Seconds]
    _said: dict[str, tuple[Seconds, int]] = field(default_factory=dict)

    def note(self, fault: Fault) -> None:
        """Take a fault."""
        name = f"{fault.policy}/{fault.cause}"
        self.counts.policy_faults[name] += 1
        total, now = self.counts.policy_faults[name], self.clock()
        at, before = self._said.get(name, (-QUIET, 0))
        if now - at < QUIET:
            return
        self._said[name] = now, total
        log.warning(
            "policy could not decide",
            extra={
                "policy": fault.policy,
                "cause": fault.cause,
                "fallback": fault.fallback,
                "detail": fault.detail,
                "times": total - before,
            },
        )
