"""Records as messages and back: the one place that knows both vocabularies.

Every message has its record's field names, so one table says it all: which classes belong
together, and which few fields need more than copying. A field with presence in the message is
one that may be None in the record. Block keys travel as packed little-endian uint64, so that both
directions are a view of memory.

Decoding is forward compatible: a kind or a word that this version does not know is skipped and
counted. It never raises for a well-formed message.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast, get_args

import numpy as np
from google.protobuf.message import Message
from leadsman import records as core
from leadsman.engine import Engine, EngineSettings, Policy, SglangOrder, SglangRules
from leadsman.records import KvEvent, Record
from leadsman.units import Keys, Seconds, WorkerId

from leadsman_fleet import fleet_pb2 as pb

WIRE_VERSION = 1

_WIRE_KEYS = np.dtype("<u8")
MESSAGE_BYTES = 1024 * 1024

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What messages held, in order; `skipped` counts what this version does not know."""

    records: tuple[Record, ...]
    skipped: int


def encode(record: Record) -> pb.Record:
    """Put one record into a message."""
    kind, layout = _KIND_OF[type(record)]
    return pb.Record(**{kind: layout.write(record)})


def decode(messages: Iterable[pb.Record]) -> Decoded:
    """Take the records out of messages."""
    records: list[Record] = []
    skipped = 0
    for message in messages:
        kind = message.WhichOneof("kind")
        if kind is None:
            skipped += 1
            continue
        try:
            record = cast("Record", _LAYOUT_OF[kind].read(getattr(message, kind)))
        except ValueError:
            skipped += 1
            continue
        if isinstance(record, core.KvEvents):
            skipped += len(message.kv_events.events) - len(record.events)
        records.append(record)
    return Decoded(records=tuple(records), skipped=skipped)


def shifted(record: Record, offset: Seconds) -> Record:
    """Move a record's times onto a clock that reads `offset` seconds more than its writer's."""
    if not offset:
        return record
    match record:
        case core.KvEvents():
            return replace(record, received_at=record.received_at + offset)
        case core.LoadSample() | core.Granted() | core.TokensSeen() | core.Ended():
            return replace(record, at=record.at + offset)
        case _:
            return record


def weight(record: Record) -> int:
    """Bytes that a record takes on the wire, roughly: what bounds buffers and messages."""
    match record:
        case core.KvEvents():
            held = (event for event in record.events if not isinstance(event, core.Cleared))
            return 48 + 16 * len(record.events) + 8 * sum(len(event.keys) for event in held)
        case core.Granted():
            return 96 + 8 * len(record.keys)
        case core.Learned():
            return 64 + 16 * len(record.samples)
        case _:
            return 96


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Cut records into messages of about a megabyte; the last may be empty."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += weight(record)
        if size >= MESSAGE_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def pack(keys: Keys) -> bytes:
    """Write keys as little-endian uint64."""
    return keys.astype(_WIRE_KEYS, copy=False).tobytes()


def unpack(data: bytes) -> Keys:
    """Read keys as a view of `data`; ValueError where it is not a whole number of keys."""
    keys = np.frombuffer(data, dtype=_WIRE_KEYS)
    return keys if sys.byteorder == "little" else keys.astype(np.uint64)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Converted:
    """How one field differs between the record and its message."""

    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same


class _Layout(Generic[T, M]):
    """One record class beside its message class, field by field but for those `derived`."""

    def __init__(
        self,
        record: type[T],
        message: type[M],
        fields: Mapping[str, _Converted] | None = None,
        *,
        derived: Collection[str] = (),
    ) -> None:
        self.record = record
        self.message = message
        described = [one for one in message.DESCRIPTOR.fields if one.name not in derived]
        self._names = [one.name for one in described]
        self._optional = {
            one.name for one in described if one.has_presence and not one.message_type
        }
        self._converted = dict(fields or {})

    def write(self, record: T) -> M:
        values = {name: getattr(record, name) for name in self._names}
        for name, converted in self._converted.items():
            values[name] = converted.write(values[name])
        return self.message(**values)

    def read(self, message: M) -> T:
        values = {}
        for name in self._names:
            absent = name in self._optional and not message.HasField(name)
            values[name] = None if absent else getattr(message, name)
        for name, converted in self._converted.items():
            values[name] = converted.read(values[name])
        return self.record(**values)


def _word(words: Iterable[str]) -> _Converted:
    known = frozenset(words)

    def read(word: str) -> str:
        if word not in known:
            raise ValueError(f"{word!r} is none of {sorted(known)}")
        return word

    return _Converted(read=read)


def _windows(sizes: Iterable[int]) -> tuple[int | None, ...]:
    """Read the cache groups; who wrote none knew of one alone, which attends to everything."""
    return tuple(size or None for size in sizes) or (None,)


_WINDOWS = _Converted(write=lambda windows: [size or 0 for size in windows], read=_windows)
_KEYS = {"keys": _Converted(write=pack, read=unpack)}
_RULES = _Layout(SglangRules, pb.SglangRules, {"schedule_policy": _word(get_args(SglangOrder))})


class _SettingsLayout(_Layout[EngineSettings, pb.EngineSettings]):
    """Settings with the rules of their engine; its name follows from these, and is only checked."""

    def write(self, record: EngineSettings) -> pb.EngineSettings:
        message = super().write(record)
        message.engine = record.engine
        if record.sglang is not None:
            message.sglang.CopyFrom(_RULES.write(record.sglang))
        return message

    def read(self, message: pb.EngineSettings) -> EngineSettings:
        _word(get_args(Engine)).read(message.engine)
        settings = super().read(message)
        if not message.HasField("sglang"):
            return settings
        return replace(settings, sglang=_RULES.read(message.sglang))


_SETTINGS = _SettingsLayout(
    EngineSettings,
    pb.EngineSettings,
    {"policy": _word(get_args(Policy)), "windows": _WINDOWS},
    derived={"engine", "sglang"},
)
_EVENTS: dict[str, _Layout[Any, Any]] = {
    "stored": _Layout(core.Stored, pb.Stored, _KEYS),
    "removed": _Layout(core.Removed, pb.Removed, _KEYS),
    "cleared": _Layout(core.Cleared, pb.Cleared),
}


class _KvEventsLayout(_Layout[core.KvEvents, pb.KvEvents]):
    """What nearly all records are, field by field without a table: half the time."""

    def write(self, record: core.KvEvents) -> pb.KvEvents:
        return pb.KvEvents(
            worker=record.worker,
            sequence=record.sequence,
            engine_time=record.engine_time,
            received_at=record.received_at,
            events=[_write_event(event) for event in record.events],
        )

    def read(self, message: pb.KvEvents) -> core.KvEvents:
        return core.KvEvents(
            worker=WorkerId(message.worker),
            sequence=message.sequence,
            engine_time=message.engine_time,
            received_at=message.received_at,
            events=_read_events(message.events),
        )


def _write_event(event: KvEvent) -> pb.KvEvent:
    match event:
        case core.Stored():
            keys = pack(event.keys)
            return pb.KvEvent(stored=pb.Stored(keys=keys, tier=event.tier, session=event.session))
        case core.Removed():
            return pb.KvEvent(removed=pb.Removed(keys=pack(event.keys), tier=event.tier))
        case core.Cleared():
            return pb.KvEvent(cleared=pb.Cleared(tier=event.tier))


def _read_events(messages: Iterable[pb.KvEvent]) -> tuple[KvEvent, ...]:
    kinds = ((message.WhichOneof("kind"), message) for message in messages)
    return tuple(
        _EVENTS[kind].read(getattr(message, kind)) for kind, message in kinds if kind is not None
    )


class _LearnedLayout(_Layout[core.Learned, pb.Learned]):
    def write(self, record: core.Learned) -> pb.Learned:
        weights = record.step_weights
        return pb.Learned(
            worker=record.worker,
            fingerprint=record.fingerprint,
            sample_tokens=[tokens for tokens, _ in record.samples],
            sample_seconds=[seconds for _, seconds in record.samples],
            step_weights=None if weights is None else pb.Weights(values=weights),
        )

    def read(self, message: pb.Learned) -> core.Learned:
        weights = message.step_weights.values if message.HasField("step_weights") else None
        return core.Learned(
            worker=WorkerId(message.worker),
            fingerprint=message.fingerprint,
            samples=tuple(zip(message.sample_tokens, message.sample_seconds, strict=True)),
            step_weights=None if weights is None else tuple(weights),
        )


_LAYOUT_OF: dict[str, _Layout[Any, Any]] = {
    "worker_seen": _Layout(
        core.WorkerSeen,
        pb.WorkerSeen,
        {"settings": _Converted(write=_SETTINGS.write, read=_SETTINGS.read)},
    ),
    "worker_gone": _Layout(core.WorkerGone, pb.WorkerGone),
    "store_seen": _Layout(core.StoreSeen, pb.StoreSeen, {"unused": _Converted(read=dict)}),
    "kv_events": _KvEventsLayout(core.KvEvents, pb.KvEvents),
    "trust_changed": _Layout(
        core.TrustChanged, pb.TrustChanged, {"trust": _Converted(read=core.Trust)}
    ),
    "load_sample": _Layout(core.LoadSample, pb.LoadSample),
    "granted": _Layout(core.Granted, pb.Granted, _KEYS),
    "tokens_seen": _Layout(core.TokensSeen, pb.TokensSeen),
    "ended": _Layout(core.Ended, pb.Ended, {"outcome": _Converted(read=core.Outcome)}),
    "learned": _LearnedLayout(core.Learned, pb.Learned),
}
_KIND_OF: dict[type[Any], tuple[str, _Layout[Any, Any]]] = {
    layout.record: (kind, layout) for kind, layout in _LAYOUT_OF.items()
}
