"""What has been learned of engines' speed, kept where it survives everybody who learned it.

Pickers learn and the log relays; if all of them start anew, each engine would be a stranger. So
the operator keeps one lesson a fingerprint, the one with most samples, in a ConfigMap, and tells it
of each worker that appears with that fingerprint. Of a fingerprint that is not seen any more the
lesson stays until newer ones need its place.

Source: Kubernetes core/v1 ConfigMap: 1 MiB at most, so `MOST` lessons of some 4 KB fit well.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from leadsman.curve import fingerprint
from leadsman.records import Learned, WorkerSeen
from leadsman.units import Seconds, Tokens, WorkerId
from msgspec import Struct

from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.objects import Key

log = logging.getLogger(__name__)

MOST: Final = 64
_ENTRY: Final = "lessons.json"
_ABSENT: Final = 404


class _Lesson(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    fingerprint: str
    samples: tuple[tuple[Tokens, Seconds], ...]
    step_weights: tuple[float, ...] | None = None


class _ConfigMap(Struct):
    data: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class Lessons:
    """The best lesson of each fingerprint, the one learned last at the end."""

    _best: dict[str, Learned] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._best)

    def take(self, learned: Iterable[Learned]) -> bool:
        """Keep what is better than what was known; True where something is."""
        is_new = False
        for one in learned:
            known = self._best.get(one.fingerprint)
            if known is None or len(one.samples) > len(known.samples):
                self._best.pop(one.fingerprint, None)
                self._best[one.fingerprint] = one
                is_new = True
        while len(self._best) > MOST:
            del self._best[next(iter(self._best))]
        return is_new

    def of(self, seen: WorkerSeen) -> Learned | None:
        """Say what is known of a worker like this one, as a record of it."""
        known = self._best.get(fingerprint(seen.settings))
        return None if known is None else replace(known, worker=seen.worker)

    def written(self) -> str:
        """Write all of them."""
        lessons = [
            _Lesson(fingerprint=name, samples=one.samples, step_weights=one.step_weights)
            for name, one in self._best.items()
        ]
        return msgspec.json.encode(lessons).decode()

    @classmethod
    def read(cls, text: str) -> "Lessons":
        """Read what `written` wrote. Raises msgspec.MsgspecError where it is something else."""
        lessons = msgspec.json.decode(text, type=list[_Lesson])
        return cls({one.fingerprint: _as_record(one) for one in lessons})


def _as_record(one: _Lesson) -> Learned:
    return Learned(
        worker=WorkerId(""),
        fingerprint=one.fingerprint,
        samples=one.samples,
        step_weights=one.step_weights,
    )


@dataclass(slots=True, kw_only=True)
class LessonBook:
    """The ConfigMap. What cannot be read is begun anew, and said."""

    api: Api
    place: Key

    async def load(self) -> Lessons:
        """Read what was kept; empty where nothing was."""
        try:
            found = msgspec.json.decode(await self.api.get(self._path()), type=_ConfigMap)
            return Lessons.read(found.data.get(_ENTRY, "[]"))
        except ApiError as error:
            if error.status != _ABSENT:
                log.warning("lessons not read", extra=self._told(error))
        except (msgspec.MsgspecError, *NO_ANSWER) as error:
            log.warning("lessons not read", extra=self._told(error))
        return Lessons()

    async def save(self, lessons: Lessons) -> bool:
        """Keep them; False where they could not be."""
        data = {"data": {_ENTRY: lessons.written()}}
        try:
            await self._write(data)
        except (ApiError, *NO_ANSWER) as error:
            log.warning("lessons not kept", extra=self._told(error))
            return False
        return True

    async def _write(self, data: dict[str, Any]) -> None:
        try:
            await self.api.merge(self._path(), data)
        except ApiError as error:
            if error.status != _ABSENT:
                raise
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.place.name}}
            await self.api.create(self._all(), about | data)

    def _told(self, error: Exception) -> dict[str, str]:
        return {"place": str(self.place), "error": str(error) or repr(error)}

    def _all(self) -> str:
        return f"/api/v1/namespaces/{self.place.namespace}/configmaps"

    def _path(self) -> str:
        return f"{self._all()}/{self.place.name}"
