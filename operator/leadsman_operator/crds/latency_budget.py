"""LatencyBudget: what a set of a pool's requests may take, and what refusing one looks like."""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta

from leadsman_operator.crds.parts import (
    Conditions,
    Confidence,
    Count,
    Duration,
    Name,
    Part,
    PoolRef,
    PositiveDuration,
    Share,
    rule,
    valid,
)

_SET: Final = {"x-kubernetes-list-type": "set"}

Words: TypeAlias = Annotated[
    tuple[Name, ...], Meta(min_length=1, max_length=64, extra_json_schema=_SET)
]
Status: TypeAlias = Annotated[int, Meta(ge=400, le=599)]
Weight: TypeAlias = Annotated[
    float, Meta(extra_json_schema=valid(rule("self > 0.0", says="must be a weight above 0")))
]


class HeaderMatch(Part, frozen=True, kw_only=True):
    """A header that a request must carry with exactly this value."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=256,
            description="In lower case.",
            extra_json_schema=valid(
                rule(
                    "self.matches('^[a-z0-9!#$%&*+.^_|~-]+$')",
                    says="must be a header's name in lower case, like x-tier",
                )
            ),
        ),
    ]
    value: Annotated[str, Meta(max_length=4096, description="Its whole value.")]


class Match(Part, frozen=True, kw_only=True):
    """Which requests: those that fit every kind of condition that is given. Absent: all."""

    models: Annotated[
        Words | None, Meta(description="Any of these models, as the body names them.")
    ] = None
    tenants: Annotated[
        Words | None, Meta(description="Any of these tenants, as the gateway's header names them.")
    ] = None
    objectives: Annotated[
        Words | None,
        Meta(description="Any of these InferenceObjectives, as the request's header names them."),
    ] = None
    headers: Annotated[
        Annotated[tuple[HeaderMatch, ...], Meta(min_length=1, max_length=16)] | None,
        Meta(description="All of these headers."),
    ] = None


class Statuses(Part, frozen=True, kw_only=True):
    """The HTTP status of a refusal, by its reason. No ready endpoint is always 503."""

    would_wait_too_long: Annotated[Status, Meta(description="Its bound on the wait.")] = 429
    would_miss_ttft: Annotated[Status, Meta(description="Its TTFT objective.")] = 429
    over_share: Annotated[Status, Meta(description="The tenant has had its share.")] = 429
    overloaded: Annotated[Status, Meta(description="`overload`; 529 suits Anthropic's SDK.")] = 429
    burst_deferred: Annotated[Status, Meta(description="Too many at once.")] = 503


class LatencyBudgetSpec(Part, frozen=True, kw_only=True):
    """What the requests that it matches may take. A bound that is absent is no bound."""

    rules: ClassVar = (
        rule(
            "self.mode == 'Enforce' || self.probes == 0.0",
            says=(
                "probes must be 0 in modes Shadow and Off, where nobody is refused: set mode to"
                " Enforce, or drop probes"
            ),
        ),
    )
    pool_ref: Annotated[
        PoolRef | None, Meta(description="The pool. Absent: every pool of the namespace.")
    ] = None
    match: Match | None = None
    max_queue_wait: Annotated[
        PositiveDuration | None,
        Meta(
            description="Longest wait behind other work for requests that bring no bound of their"
            " own."
        ),
    ] = None
    ttft: Annotated[
        PositiveDuration | None,
        Meta(description="Longest time to the first token, for those that bring no objective."),
    ] = None
    overload: Annotated[
        PositiveDuration | None,
        Meta(description="Predicted wait above which even requests without a bound are refused."),
    ] = None
    confidence: Annotated[
        Confidence, Meta(description="How sure a promise must be to be made.")
    ] = 0.9
    statuses: Statuses | None = None
    should_retry: Annotated[
        bool, Meta(description="Whether refused callers are told to come back.")
    ] = True
    retry_jitter: Annotated[
        Share, Meta(description="Share of the wait over which their returns are spread.")
    ] = 0.1
    session_move_cost: Annotated[
        Duration, Meta(description="How much sooner another worker must be for a session to move.")
    ] = "250ms"
    probes: Annotated[
        Share,
        Meta(description="Share of refusals admitted at random, to see what becomes of them."),
    ] = 0.0
    mode: Annotated[
        Literal["Enforce", "Shadow", "Off"],
        Meta(
            description="Shadow refuses nobody, and records who would have been refused. Off does"
            " not ask: requests are routed, and nobody is refused."
        ),
    ] = "Enforce"
    policy: Annotated[
        Name,
        Meta(description="The admission rule, built in or a plugin of the picker's."),
    ] = "predicted_wait"
    parameters: Annotated[
        Annotated[dict[str, float], Meta(min_length=1, max_length=32)] | None,
        Meta(description="The rule's parameters, as docs/policies.md lists them."),
    ] = None
    unit: Annotated[
        Literal["Request", "Session", "Tenant"],
        Meta(
            description="What is let in: each request; a session with all of its calls; or requests"
            " by their tenants' shares."
        ),
    ] = "Request"
    shares: Annotated[
        Annotated[dict[str, Weight], Meta(min_length=1, max_length=256)] | None,
        Meta(description="Weights of tenants by name, 1 for all others. Given, shares are kept."),
    ] = None
    session_calls: Annotated[
        Count, Meta(description="Calls of a session that is in, until it is judged anew.")
    ] = 100
    session_idle: Annotated[
        PositiveDuration, Meta(description="A session without a call for so long is over.")
    ] = "1m"
    hold: Annotated[
        PositiveDuration | None,
        Meta(
            description="Longest time for which a request is held until a worker is nearly free,"
            " rather than stand in an engine's queue. No longer than the picker's longest_hold."
            " Absent: none is held."
        ),
    ] = None


class PoolStatus(Part, frozen=True, kw_only=True):
    """What has become of the budget in one pool."""

    name: Annotated[str, Meta(description="The pool's name.")]
    precedence: Annotated[
        int,
        Meta(ge=1, description="Its place among the pool's budgets; a request takes the first."),
    ]
    budgets: Annotated[int, Meta(ge=1, description="How many budgets the pool has.")]
    workers: Annotated[int, Meta(ge=0, description="Engine schedulers that are followed.")]
    ready_workers: Annotated[int, Meta(ge=0, description="Those that take requests.")]


class LatencyBudgetStatus(Part, frozen=True, kw_only=True):
    """What the operator says of it."""

    conditions: Conditions = ()
    pools: Annotated[
        tuple[PoolStatus, ...],
        Meta(
            max_length=256,
            description="The pools that it applies to.",
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
