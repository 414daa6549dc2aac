"""EngineProfile: what a set of pods does not tell of itself, and what was found of each worker."""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta

from leadsman_operator.crds.parts import (
    Conditions,
    Count,
    Labels,
    Name,
    Part,
    Port,
    Share,
    rule,
    valid,
)

MOST_WORKERS: Final = 128
"""Of how many workers the status tells: what is more would make the object megabytes large."""


class PodSelector(Part, frozen=True, kw_only=True):
    """Pods of the same namespace that carry all of these labels."""

    match_labels: Annotated[Labels, Meta(description="Label names and values.")]


class StatedSettings(Part, frozen=True, kw_only=True):
    """Settings that the engine was started with. What it tells itself goes before this."""

    rules: ClassVar = (
        rule(
            "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs)"
            " || self.maxNumBatchedTokens >= self.maxNumSeqs",
            says="maxNumBatchedTokens must be at least maxNumSeqs: vLLM needs a token a sequence",
        ),
    )
    model: Annotated[Name | None, Meta(description="The model's name, as served.")] = None
    version: Annotated[Name | None, Meta(description="The engine's version, such as 0.33.0.")] = (
        None
    )
    max_num_batched_tokens: Annotated[
        Count | None, Meta(description="Token budget of one step: --max-num-batched-tokens.")
    ] = None
    max_num_seqs: Annotated[
        Count | None, Meta(description="Sequences that run at once: --max-num-seqs.")
    ] = None
    max_model_len: Annotated[Count | None, Meta(description="Longest context.")] = None
    block_size: Annotated[Count | None, Meta(description="Tokens of one KV block.")] = None
    num_blocks: Annotated[
        Count | None, Meta(description="Usable KV blocks of one rank: num_gpu_blocks - 1.")
    ] = None
    enable_prefix_caching: Annotated[bool | None, Meta(description="Prefix caching is on.")] = None
    enable_chunked_prefill: Annotated[bool | None, Meta(description="Chunked prefill is on.")] = (
        None
    )
    long_prefill_token_threshold: Annotated[
        Count | None, Meta(description="Most tokens of one prompt in one step.")
    ] = None
    async_scheduling: Annotated[bool | None, Meta(description="Async scheduling is on.")] = None
    policy: Annotated[
        Literal["fcfs", "priority"] | None, Meta(description="--scheduling-policy.")
    ] = None
    watermark: Annotated[Share | None, Meta(description="Share of blocks that is kept free.")] = (
        None
    )
    reserve_full_isl: Annotated[
        bool | None, Meta(description="A prompt must fit whole before it is begun.")
    ] = None
    num_speculative_tokens: Annotated[
        Count | None, Meta(description="Drafts that are tried a step: num_speculative_tokens.")
    ] = None
    num_lookahead_tokens: Annotated[
        Count | None,
        Meta(description="The same number where the drafter has a cache of its own (EAGLE, MTP)."),
    ] = None
    retention_interval: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="--prefix-cache-retention-interval, of hybrid models."),
    ] = None
    hardware: Annotated[
        Name | None, Meta(description="Names the GPU: what was learned holds for like ones only.")
    ] = None


class KvEvents(Part, frozen=True, kw_only=True):
    """Where the engine publishes its cache events, by ZMQ. Absent: as it tells itself."""

    rules: ClassVar = (
        rule(
            "self.published || !(has(self.port) || has(self.replayPort))",
            says="with published false, drop port and replayPort; or set published to true",
        ),
        rule(
            "!has(self.replayPort) || has(self.port)",
            says="replayPort is of no use without port: state both",
        ),
    )
    published: Annotated[bool, Meta(description="False: nobody is to look for them.")] = True
    port: Annotated[
        Port | None,
        Meta(description="Of the first target port, or rank; each further one's is one higher."),
    ] = None
    replay_port: Annotated[
        Port | None, Meta(description="Where missed events are asked for; counted the same way.")
    ] = None


Url: TypeAlias = Annotated[
    str,
    Meta(
        max_length=2048,
        extra_json_schema=valid(
            rule(
                "self.startsWith('http://') || self.startsWith('https://')",
                says="must be a URL: http://host:port or https://host:port",
            )
        ),
    ),
]


class SharedStore(Part, frozen=True, kw_only=True):
    """What these engines share below their own caches: LMCache's, or vLLM's in Mooncake."""

    rules: ClassVar = (
        rule(
            "has(self.lmcache) != has(self.mooncake)", says="must name one of lmcache and mooncake"
        ),
    )
    lmcache: Annotated[
        Url | None,
        Meta(description="LMCache's coordinator, such as http://lmcache-coordinator:9300."),
    ] = None
    mooncake: Annotated[
        Url | None,
        Meta(description="Mooncake's master, by the port of its metrics: http://master:9003."),
    ] = None
    stored_as: Annotated[
        Name | None, Meta(description="The model's name there, if not as it is served.")
    ] = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.lmcache or self.mooncake or ""


class EngineProfileSpec(Part, frozen=True, kw_only=True):
    """Statements about the engines in a set of pods."""

    selector: PodSelector
    engine: Annotated[
        Literal["vLLM", "SGLang"],
        Meta(description="Which engine they run; the status says where another one answers."),
    ] = "vLLM"
    settings: StatedSettings | None = None
    kv_events: KvEvents | None = None
    shared_store: SharedStore | None = None


class WorkerStatus(Part, frozen=True, kw_only=True):
    """One scheduler of one pod, as it was found."""

    worker: Annotated[
        str, Meta(description="Its address, and its rank where one port has several.")
    ]
    pod: Annotated[str, Meta(description="The pod's name.")]
    ready: Annotated[bool, Meta(description="Whether it takes requests.")]
    model: str
    version: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int


class EngineProfileStatus(Part, frozen=True, kw_only=True):
    """What the operator found."""

    conditions: Conditions = ()
    pods: Annotated[int, Meta(ge=0, description="Pods that it speaks of.")] | None = None
    workers: Annotated[int, Meta(ge=0, description="Engine schedulers found in them.")] | None = (
        None
    )
    discovered: Annotated[
        tuple[WorkerStatus, ...],
        Meta(
            max_length=MOST_WORKERS,
            description=f"The first {MOST_WORKERS} of them, in the order of their addresses.",
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["worker"],
            },
        ),
    ] = ()
