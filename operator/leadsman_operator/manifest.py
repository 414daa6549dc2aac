"""Reads what users write: strictly, and with the place of every mistake.

A manifest is YAML whose shape is given by dataclasses: each key is a field, an unknown key is a
mistake (it is mostly a misspelt one), and so is a value of another type. Every mistake is a
`ManifestError` with the path to it, such as `endpoints[2].url`. Here text becomes values, so `Any`
is allowed.
"""

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
import yaml
from leadsman_engines.profile import EMPTY_PROFILE, EngineProfile

from leadsman_operator.endpoint import Endpoint

Shape = TypeVar("Shape")

_AT: Final = re.compile(r"(?P<problem>.*?) - at (?:`key` in )?`\$\.?(?P<path>.*)`", re.DOTALL)


class ManifestError(Exception):
    """A mistake in what the user wrote; `path` is empty where it is the whole."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An endpoint as it is written. profile: a name from `profiles`, or what is stated itself."""

    url: str
    profile: str | EngineProfile | None = None
    kv_events: str | None = None
    kv_replay: str | None = None


def read_manifest(text: str, shape: type[Shape]) -> Shape:
    """Read a manifest of this shape (a dataclass). Raises ManifestError."""
    try:
        written = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ManifestError("", f"this is no YAML: {error}") from error
    if not isinstance(written, Mapping):
        raise ManifestError("", f"expected keys and values, not {type(written).__name__}")
    for path, key, known in _unknown(written, shape, ""):
        raise ManifestError(_join(path, key), f"unknown; known are {', '.join(known)}")
    try:
        return msgspec.convert(written, shape, dec_hook=_convert)
    except msgspec.ValidationError as error:
        found = _AT.fullmatch(str(error))
        if found is None:
            raise ManifestError("", str(error)) from error
        raise ManifestError(found["path"], found["problem"]) from error


def read_endpoints(
    specs: Sequence[EndpointSpec], profiles: Mapping[str, EngineProfile]
) -> tuple[Endpoint, ...]:
    """Make the endpoints that were written, each with its profile. Raises ManifestError."""
    first: dict[str, int] = {}
    endpoints = []
    for place, spec in enumerate(specs):
        path = f"endpoints[{place}]"
        url = _url(spec.url, f"{path}.url")
        if url in first:
            raise ManifestError(f"{path}.url", f"the same as endpoints[{first[url]}].url")
        first[url] = place
        profile = _profile(spec, profiles, path)
        endpoints.append(Endpoint(url=url, profile=profile))
    return tuple(endpoints)


def _url(url: str, path: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ManifestError(path, f"{url!r}: {error}") from error
    if not is_usable:
        raise ManifestError(path, f"{url!r} is no http://host:port or https://host:port")
    return url.rstrip("/")


def _profile(spec: EndpointSpec, profiles: Mapping[str, EngineProfile], path: str) -> EngineProfile:
    profile = spec.profile or EMPTY_PROFILE
    if isinstance(profile, str):
        if profile not in profiles:
            known = ", ".join(sorted(profiles)) or "none"
            raise ManifestError(f"{path}.profile", f"no profile {profile!r}; there are: {known}")
        profile = profiles[profile]
    if spec.kv_events is not None:
        profile = replace(profile, kv_events=spec.kv_events)
    if spec.kv_replay is not None:
        profile = replace(profile, kv_replay=spec.kv_replay)
    if profile.kv_replay is not None and profile.kv_events is None:
        raise ManifestError(f"{path}.kv_replay", "of no use without kv_events")
    return profile


def _unknown(written: Any, shape: Any, path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Find keys that a shape does not have: (path, key, known keys)."""
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        for choice in inner:
            yield from _unknown(written, choice, path)
    elif is_dataclass(shape) and isinstance(written, Mapping):
        hints = get_type_hints(shape)
        known = [field.name for field in fields(shape)]
        for key, value in written.items():
            if key not in known:
                yield path, str(key), known
            else:
                yield from _unknown(value, hints[key], _join(path, key))
    elif isinstance(written, Mapping) and len(inner) == 2:
        for key, value in written.items():
            yield from _unknown(value, inner[1], _join(path, str(key)))
    elif isinstance(written, list) and inner:
        for place, value in enumerate(written):
            yield from _unknown(value, inner[0], f"{path}[{place}]")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _convert(shape: type, value: Any) -> Any:
    if shape is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise TypeError(f"Expected a {shape.__name__.lower()}, got `{type(value).__name__}`")
