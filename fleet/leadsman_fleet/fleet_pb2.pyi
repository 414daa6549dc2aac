from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("pool", "replica", "epoch", "sequence")
    POOL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    replica: str
    epoch: str
    sequence: int
    def __init__(self, pool: _Optional[str] = ..., replica: _Optional[str] = ..., epoch: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("version", "epoch", "sequence", "phase", "sent_at", "records", "declared")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LIVE: _ClassVar[Envelope.Phase]
        SNAPSHOT: _ClassVar[Envelope.Phase]
        SNAPSHOT_END: _ClassVar[Envelope.Phase]
    LIVE: Envelope.Phase
    SNAPSHOT: Envelope.Phase
    SNAPSHOT_END: Envelope.Phase
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: str
    sequence: int
    phase: Envelope.Phase
    sent_at: float
    records: _containers.RepeatedCompositeFieldContainer[Record]
    declared: Declared
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[str] = ..., sequence: _Optional[int] = ..., phase: _Optional[_Union[Envelope.Phase, str]] = ..., sent_at: _Optional[float] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., declared: _Optional[_Union[Declared, _Mapping]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("version", "replica", "sent_at", "records", "pool")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    version: int
    replica: str
    sent_at: float
    records: _containers.RepeatedCompositeFieldContainer[Record]
    pool: str
    def __init__(self, version: _Optional[int] = ..., replica: _Optional[str] = ..., sent_at: _Optional[float] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., pool: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("appended", "skipped")
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    appended: int
    skipped: int
    def __init__(self, appended: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("worker_seen", "worker_gone", "kv_events", "trust_changed", "load_sample", "granted", "tokens_seen", "ended", "learned", "store_seen")
    WORKER_SEEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_GONE_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRUST_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LOAD_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SEEN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    STORE_SEEN_FIELD_NUMBER: _ClassVar[int]
    worker_seen: WorkerSeen
    worker_gone: WorkerGone
    kv_events: KvEvents
    trust_changed: TrustChanged
    load_sample: LoadSample
    granted: Granted
    tokens_seen: TokensSeen
    ended: Ended
    learned: Learned
    store_seen: StoreSeen
    def __init__(self, worker_seen: _Optional[_Union[WorkerSeen, _Mapping]] = ..., worker_gone: _Optional[_Union[WorkerGone, _Mapping]] = ..., kv_events: _Optional[_Union[KvEvents, _Mapping]] = ..., trust_changed: _Optional[_Union[TrustChanged, _Mapping]] = ..., load_sample: _Optional[_Union[LoadSample, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., tokens_seen: _Optional[_Union[TokensSeen, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., learned: _Optional[_Union[Learned, _Mapping]] = ..., store_seen: _Optional[_Union[StoreSeen, _Mapping]] = ...) -> None: ...

class SglangRules(_message.Message):
    __slots__ = ("max_prefill_tokens", "chunked_prefill_size", "schedule_policy", "schedule_conservativeness", "enable_mixed_chunk", "enable_priority_scheduling", "low_priority_first", "preemption_threshold", "prefill_max_requests", "steps_together")
    MAX_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_POLICY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_CONSERVATIVENESS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MIXED_CHUNK_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PRIORITY_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    LOW_PRIORITY_FIRST_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    max_prefill_tokens: int
    chunked_prefill_size: int
    schedule_policy: str
    schedule_conservativeness: float
    enable_mixed_chunk: bool
    enable_priority_scheduling: bool
    low_priority_first: bool
    preemption_threshold: int
    prefill_max_requests: int
    steps_together: bool
    def __init__(self, max_prefill_tokens: _Optional[int] = ..., chunked_prefill_size: _Optional[int] = ..., schedule_policy: _Optional[str] = ..., schedule_conservativeness: _Optional[float] = ..., enable_mixed_chunk: _Optional[bool] = ..., enable_priority_scheduling: _Optional[bool] = ..., low_priority_first: _Optional[bool] = ..., preemption_threshold: _Optional[int] = ..., prefill_max_requests: _Optional[int] = ..., steps_together: _Optional[bool] = ...) -> None: ...

class EngineSettings(_message.Message):
    __slots__ = ("model", "version", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_blocks", "engine", "enable_prefix_caching", "enable_chunked_prefill", "long_prefill_token_threshold", "async_scheduling", "policy", "watermark", "reserve_full_isl", "hardware", "image", "windows", "retention_interval", "num_speculative_tokens", "num_lookahead_tokens", "is_eagle", "sglang", "aligns_chunks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    ENABLE_CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    LONG_PREFILL_TOKEN_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ASYNC_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FULL_ISL_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_EAGLE_FIELD_NUMBER: _ClassVar[int]
    SGLANG_FIELD_NUMBER: _ClassVar[int]
    ALIGNS_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int
    engine: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    async_scheduling: bool
    policy: str
    watermark: float
    reserve_full_isl: bool
    hardware: str
    image: str
    windows: _containers.RepeatedScalarFieldContainer[int]
    retention_interval: int
    num_speculative_tokens: int
    num_lookahead_tokens: int
    is_eagle: bool
    sglang: SglangRules
    aligns_chunks: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., max_num_batched_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_model_len: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., engine: _Optional[str] = ..., enable_prefix_caching: _Optional[bool] = ..., enable_chunked_prefill: _Optional[bool] = ..., long_prefill_token_threshold: _Optional[int] = ..., async_scheduling: _Optional[bool] = ..., policy: _Optional[str] = ..., watermark: _Optional[float] = ..., reserve_full_isl: _Optional[bool] = ..., hardware: _Optional[str] = ..., image: _Optional[str] = ..., windows: _Optional[_Iterable[int]] = ..., retention_interval: _Optional[int] = ..., num_speculative_tokens: _Optional[int] = ..., num_lookahead_tokens: _Optional[int] = ..., is_eagle: _Optional[bool] = ..., sglang: _Optional[_Union[SglangRules, _Mapping]] = ..., aligns_chunks: _Optional[bool] = ...) -> None: ...

class WorkerSeen(_message.Message):
    __slots__ = ("worker", "endpoint", "settings", "ready", "dp_rank")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    worker: str
    endpoint: str
    settings: EngineSettings
    ready: bool
    dp_rank: int
    def __init__(self, worker: _Optional[str] = ..., endpoint: _Optional[str] = ..., settings: _Optional[_Union[EngineSettings, _Mapping]] = ..., ready: _Optional[bool] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class WorkerGone(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class StoreSeen(_message.Message):
    __slots__ = ("worker", "chunks", "unused", "problem")
    class UnusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    worker: str
    chunks: int
    unused: _containers.ScalarMap[str, int]
    problem: str
    def __init__(self, worker: _Optional[str] = ..., chunks: _Optional[int] = ..., unused: _Optional[_Mapping[str, int]] = ..., problem: _Optional[str] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("keys", "tier", "session")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    tier: str
    session: str
    def __init__(self, keys: _Optional[bytes] = ..., tier: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("keys", "tier")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    tier: str
    def __init__(self, keys: _Optional[bytes] = ..., tier: _Optional[str] = ...) -> None: ...

class Cleared(_message.Message):
    __slots__ = ("tier",)
    TIER_FIELD_NUMBER: _ClassVar[int]
    tier: str
    def __init__(self, tier: _Optional[str] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: Stored
    removed: Removed
    cleared: Cleared
    def __init__(self, stored: _Optional[_Union[Stored, _Mapping]] = ..., removed: _Optional[_Union[Removed, _Mapping]] = ..., cleared: _Optional[_Union[Cleared, _Mapping]] = ...) -> None: ...

class KvEvents(_message.Message):
    __slots__ = ("worker", "sequence", "engine_time", "received_at", "events")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_TIME_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    sequence: int
    engine_time: float
    received_at: float
    events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    def __init__(self, worker: _Optional[str] = ..., sequence: _Optional[int] = ..., engine_time: _Optional[float] = ..., received_at: _Optional[float] = ..., events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ...) -> None: ...

class TrustChanged(_message.Message):
    __slots__ = ("worker", "trust", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: str
    trust: str
    reason: str
    def __init__(self, worker: _Optional[str] = ..., trust: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LoadSample(_message.Message):
    __slots__ = ("worker", "at", "running", "waiting", "kv_usage", "prefix_hits")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    at: float
    running: int
    waiting: int
    kv_usage: float
    prefix_hits: float
    def __init__(self, worker: _Optional[str] = ..., at: _Optional[float] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., prefix_hits: _Optional[float] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("worker", "request", "at", "prompt_tokens", "keys", "max_tokens", "priority", "predicted_ttft", "reads_cache", "budget", "tenant", "session", "cached_tokens", "min_tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_FIELD_NUMBER: _ClassVar[int]
    READS_CACHE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    request: str
    at: float
    prompt_tokens: int
    keys: bytes
    max_tokens: int
    priority: int
    predicted_ttft: float
    reads_cache: bool
    budget: str
    tenant: str
    session: str
    cached_tokens: int
    min_tokens: int
    def __init__(self, worker: _Optional[str] = ..., request: _Optional[str] = ..., at: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., keys: _Optional[bytes] = ..., max_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., predicted_ttft: _Optional[float] = ..., reads_cache: _Optional[bool] = ..., budget: _Optional[str] = ..., tenant: _Optional[str] = ..., session: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ...) -> None: ...

class TokensSeen(_message.Message):
    __slots__ = ("worker", "request", "at", "tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    request: str
    at: float
    tokens: int
    def __init__(self, worker: _Optional[str] = ..., request: _Optional[str] = ..., at: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("worker", "request", "at", "outcome", "completion_tokens", "cached_tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    request: str
    at: float
    outcome: str
    completion_tokens: int
    cached_tokens: int
    def __init__(self, worker: _Optional[str] = ..., request: _Optional[str] = ..., at: _Optional[float] = ..., outcome: _Optional[str] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Learned(_message.Message):
    __slots__ = ("worker", "fingerprint", "sample_tokens", "sample_seconds", "step_weights")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    fingerprint: str
    sample_tokens: _containers.RepeatedScalarFieldContainer[int]
    sample_seconds: _containers.RepeatedScalarFieldContainer[float]
    step_weights: Weights
    def __init__(self, worker: _Optional[str] = ..., fingerprint: _Optional[str] = ..., sample_tokens: _Optional[_Iterable[int]] = ..., sample_seconds: _Optional[_Iterable[float]] = ..., step_weights: _Optional[_Union[Weights, _Mapping]] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Declared(_message.Message):
    __slots__ = ("budgets", "importance")
    class ImportanceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[ScopedBudget]
    importance: _containers.ScalarMap[str, int]
    def __init__(self, budgets: _Optional[_Iterable[_Union[ScopedBudget, _Mapping]]] = ..., importance: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ScopedBudget(_message.Message):
    __slots__ = ("budget", "scope")
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    budget: Budget
    scope: Scope
    def __init__(self, budget: _Optional[_Union[Budget, _Mapping]] = ..., scope: _Optional[_Union[Scope, _Mapping]] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("name", "max_queue_wait", "ttft", "confidence", "overload", "statuses", "should_retry", "retry_jitter", "mode", "session_move_cost", "probes", "policy", "parameters", "unit", "shares", "session_calls", "session_idle", "hold")
    class StatusesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    OVERLOAD_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    SHOULD_RETRY_FIELD_NUMBER: _ClassVar[int]
    RETRY_JITTER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_MOVE_COST_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SESSION_CALLS_FIELD_NUMBER: _ClassVar[int]
    SESSION_IDLE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_queue_wait: float
    ttft: float
    confidence: float
    overload: float
    statuses: _containers.ScalarMap[str, int]
    should_retry: bool
    retry_jitter: float
    mode: str
    session_move_cost: float
    probes: float
    policy: str
    parameters: _containers.ScalarMap[str, float]
    unit: str
    shares: Weighted
    session_calls: int
    session_idle: float
    hold: float
    def __init__(self, name: _Optional[str] = ..., max_queue_wait: _Optional[float] = ..., ttft: _Optional[float] = ..., confidence: _Optional[float] = ..., overload: _Optional[float] = ..., statuses: _Optional[_Mapping[str, int]] = ..., should_retry: _Optional[bool] = ..., retry_jitter: _Optional[float] = ..., mode: _Optional[str] = ..., session_move_cost: _Optional[float] = ..., probes: _Optional[float] = ..., policy: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ..., unit: _Optional[str] = ..., shares: _Optional[_Union[Weighted, _Mapping]] = ..., session_calls: _Optional[int] = ..., session_idle: _Optional[float] = ..., hold: _Optional[float] = ...) -> None: ...

class Weighted(_message.Message):
    __slots__ = ("weights",)
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.ScalarMap[str, float]
    def __init__(self, weights: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Scope(_message.Message):
    __slots__ = ("models", "tenants", "objectives", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    models: Words
    tenants: Words
    objectives: Words
    headers: _containers.ScalarMap[str, str]
    def __init__(self, models: _Optional[_Union[Words, _Mapping]] = ..., tenants: _Optional[_Union[Words, _Mapping]] = ..., objectives: _Optional[_Union[Words, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Words(_message.Message):
    __slots__ = ("words",)
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, words: _Optional[_Iterable[str]] = ...) -> None: ...
