"""Makes a structural schema of a `Part`: what the API server can check and `kubectl explain` say.

msgspec writes JSON Schema 2020-12; a CRD wants OpenAPI 3.0 without references and without null.
Absence is the only null that there is: a field that may be None is one that may be left out.

Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions", structural schemas.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from leadsman_operator.crds.parts import Part

_REF: Final = "#/$defs/"
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(part: type[Part]) -> dict[str, Any]:
    """Write the schema of one part, with all that is in it."""
    [top], parts = msgspec.json.schema_components([part])
    rules = {one.__name__: one.rules for one in _descendants(Part) if one.__name__ in parts}
    return _structural(top, parts, rules)


def _descendants(part: type[Part]) -> Iterator[type[Part]]:
    for child in part.__subclasses__():
        yield child
        yield from _descendants(child)


def _structural(
    node: Mapping[str, Any], parts: Mapping[str, Any], rules: Mapping[str, Any]
) -> dict[str, Any]:
    if "$ref" in node:
        name = node["$ref"].removeprefix(_REF)
        found = _structural(parts[name], parts, rules)
        return found | ({"x-kubernetes-validations": list(rules[name])} if rules[name] else {})
    if "anyOf" in node:
        [choice] = [one for one in node["anyOf"] if one.get("type") != "null"]
        outer = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return _structural(choice, parts, rules) | outer
    made = {key: value for key, value in node.items() if key not in ("title", "required")}
    if made.get("default", ...) in (None, [], ()):
        del made["default"]
    if "enum" in made:
        made["enum"] = [value for value in made["enum"] if value is not None]
        made["type"] = _TYPES[type(made["enum"][0])]
    if "properties" in node:
        inner = node["properties"].items()
        made["properties"] = {key: _structural(value, parts, rules) for key, value in inner}
        if node.get("required"):
            made["required"] = node["required"]
    for key in ("items", "additionalProperties"):
        if key in node:
            made[key] = _structural(node[key], parts, rules)
    return made
