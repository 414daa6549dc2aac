"""One thing that was looked at."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["fine", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found where, and what to change; a warning costs precision, a fault does not work.

    change: None where there is nothing to change.
    """

    level: Level
    where: str
    what: str
    change: str | None = None
