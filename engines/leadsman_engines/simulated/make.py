"""An engine of either kind, by its settings."""

from random import Random
from typing import TypeAlias

from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.hardware import Hardware
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.settings import SglangSettings

AnySettings: TypeAlias = SimulatedSettings | SglangSettings
AnyEngine: TypeAlias = SimulatedEngine | SimulatedSglang


def engine_of(settings: AnySettings, hardware: Hardware, rng: Random) -> AnyEngine:
    """Make an engine that has just started."""
    if isinstance(settings, SglangSettings):
        return SimulatedSglang(settings, hardware, rng)
    return SimulatedEngine(settings, hardware, rng)
