"""What both custom resources are made of: durations, references, conditions, and rules in CEL.

A `Part` becomes one object of a structural schema (`schema`): its docstring is the description,
its `rules` are checked by the API server. A message says what is wrong and what is allowed, since
its reader has only that. Wherever a type alone would let the server answer with a regular
expression or a bare type name, a rule says it in words. The server puts the wrong value before the
message; to repeat it there would cost more than the server lets a schema's rules cost.
"""

import re
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from leadsman.units import Seconds
from msgspec import Meta, Struct

GROUP: Final = "leadsman.dev"
VERSION: Final = "v1alpha1"
POOL_GROUP: Final = "inference.networking.k8s.io"

_PIECE: Final = re.compile(r"([0-9]{1,5})(h|ms|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION: Final = r"^([0-9]{1,5}(h|ms|m|s)){1,4}$"


def rule(that: str, *, says: str) -> dict[str, str]:
    """Write one rule in CEL, and what is said where it does not hold."""
    return {"rule": that, "message": says}


def valid(*rules: dict[str, str]) -> dict[str, Any]:
    """Attach rules to a field."""
    return {"x-kubernetes-validations": list(rules)}


PositiveDuration: TypeAlias = Annotated[
    str,
    Meta(
        max_length=32,
        extra_json_schema=valid(
            rule(
                f"self.matches('{_DURATION}') && duration(self) > duration('0s')",
                says="must be a duration above 0, written like 30s, 1m30s or 250ms",
            )
        ),
    ),
]
Duration: TypeAlias = Annotated[
    str,
    Meta(
        max_length=32,
        extra_json_schema=valid(
            rule(
                f"self.matches('{_DURATION}')",
                says="must be a duration, written like 0s, 250ms or 1m30s",
            )
        ),
    ),
]
Share: TypeAlias = Annotated[
    float,
    Meta(
        extra_json_schema=valid(
            rule("self >= 0.0 && self <= 1.0", says="must be a share between 0 and 1")
        )
    ),
]
Confidence: TypeAlias = Annotated[
    float,
    Meta(
        extra_json_schema=valid(
            rule(
                "self >= 0.5 && self < 1.0",
                says="must be at least 0.5 and below 1; 0.9 keeps nine promises in ten",
            )
        )
    ),
]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Labels: TypeAlias = Annotated[
    dict[str, Annotated[str, Meta(max_length=63)]], Meta(min_length=1, max_length=64)
]


def seconds(text: str) -> Seconds:
    """Read a duration as the schema allows it."""
    return sum(int(number) * _UNITS[unit] for number, unit in _PIECE.findall(text))


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One object inside a resource."""

    rules: ClassVar[tuple[dict[str, str], ...]] = ()


class PoolRef(Part, frozen=True, kw_only=True):
    """An InferencePool of the same namespace."""

    name: Annotated[Name, Meta(description="The pool's name.")]
    group: Annotated[Literal["inference.networking.k8s.io"], Meta(description="Its API group.")] = (
        "inference.networking.k8s.io"
    )
    kind: Annotated[Literal["InferencePool"], Meta(description="Its kind.")] = "InferencePool"


ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]


class Condition(Part, frozen=True, kw_only=True):
    """One thing that holds of the object, or does not."""

    type: Annotated[str, Meta(max_length=316, description="What it is about.")]
    status: Annotated[ConditionStatus, Meta(description="Whether it holds.")]
    reason: Annotated[str, Meta(max_length=1024, description="Why, as one word.")]
    message: Annotated[str, Meta(max_length=32768, description="Why, for people.")]
    last_transition_time: Annotated[
        str,
        Meta(
            description="When the status last changed.", extra_json_schema={"format": "date-time"}
        ),
    ]
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the object that this is said of.")
    ]


Conditions: TypeAlias = Annotated[
    tuple[Condition, ...],
    Meta(
        max_length=8,
        extra_json_schema={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]
