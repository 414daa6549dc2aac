# ruff: noqa: E402
"""Runs scenarios on vLLM's real scheduler; runs under vLLM's Python, and knows nothing of Leadsman.

python engine.py MODEL_FOLDER < scenarios > runs, one a line each, as JSON

No model is loaded: what a step would have generated is what the scenario says. One cycle is what
vLLM's engine core does in one turn of its loop: take what has come, schedule a step, and process
the output of that step (or, with asynchronous scheduling, of the one before it).
Source: vLLM 0.32 and 0.33, v1/engine/core.py, EngineCore.step and step_with_batch_queue.
"""

import json
import logging
import os
import sys
from collections import deque
from types import SimpleNamespace

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
logging.disable(logging.WARNING)

import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

STOP = 0
MOST_CYCLES = 3000


def scheduler_of(settings, model):
    """Make the real scheduler, as these settings would make it in a server."""
    is_async = settings["async_scheduling"]
    config = VllmConfig(
        model_config=ModelConfig(
            model=model,
            tokenizer=model,
            skip_tokenizer_init=True,
            max_model_len=settings["max_model_len"],
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=settings["max_model_len"],
            is_encoder_decoder=False,
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_num_seqs=settings["max_num_seqs"],
            long_prefill_token_threshold=settings["long_prefill_token_threshold"],
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            policy=settings["policy"],
            watermark=settings["watermark"],
            scheduler_reserve_full_isl=settings["scheduler_reserve_full_isl"],
            async_scheduling=is_async,
        ),
        cache_config=CacheConfig(
            block_size=settings["block_size"],
            enable_prefix_caching=settings["enable_prefix_caching"],
            mamba_cache_mode="align" if settings.get("aligns_chunks") else "none",
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    config.cache_config.num_gpu_blocks = settings["num_blocks"]
    config.cache_config.block_size = settings["block_size"]
    # Where there is no GPU the configuration turns it off again.
    config.scheduler_config.async_scheduling = is_async
    if settings["num_speculative_tokens"]:
        object.__setattr__(config, "speculative_config", drafter(settings))
    groups = [
        KVCacheGroupSpec([f"layer{index}"], spec_of(window, settings))
        for index, window in enumerate(settings["windows"])
    ]
    make = AsyncScheduler if is_async else Scheduler
    scheduler = make(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=settings["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=settings["retention"],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings["block_size"],
        hash_block_size=settings["block_size"],
        log_stats=True,
    )
    told = scheduler.scheduler_config
    assert scheduler.vllm_config.max_concurrent_batches == 1 + is_async
    for name in ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"):
        assert getattr(told, name) == settings[name], (name, getattr(told, name))
    return scheduler


def spec_of(window, settings):
    block_size = settings["block_size"]
    if settings.get("aligns_chunks") and window is not None:
        return MambaSpec(
            block_size=block_size,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
        )
    shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if window is None:
        return FullAttentionSpec(**shape)
    return SlidingWindowSpec(**shape, sliding_window=window)


def drafter(settings):
    """What the scheduler asks of a drafter's configuration: EAGLE's, a draft model's, or n-gram's.

    A real one wants the drafter's weights.
    """
    eagle, ahead = settings["use_eagle"], settings["num_lookahead_tokens"]
    return SimpleNamespace(
        parallel_drafting=False,
        method="eagle" if eagle else "draft_model" if ahead else "ngram",
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=False,
        needs_eagle_block_drop=lambda: eagle,
        num_speculative_tokens=settings["num_speculative_tokens"],
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        use_eagle=lambda: eagle,
        use_eagle_block_drop=lambda: eagle,
        uses_draft_model=lambda: bool(ahead) and not eagle,
        use_dspark=lambda: False,
        use_dflash=lambda: False,
        use_multi_module_mtp=lambda: False,
    )


class Run:
    """One scenario on one scheduler."""

    def __init__(self, told, model):
        settings = told["settings"]
        self.scheduler = scheduler_of(settings, model)
        self.drafts = settings["num_speculative_tokens"]
        self.depth = 2 if settings["async_scheduling"] else 1
        hasher = get_hash_fn_by_name("sha256")
        init_none_hash(hasher)
        ahead = getattr(self.scheduler.vllm_config, "num_hash_lookahead_tokens", 0)
        more = (ahead,) if ahead else ()
        self.hasher = get_request_block_hasher(settings["block_size"], hasher, *more)
        self.told = {request["id"]: request for request in told["requests"]}
        self.queue = deque()
        self.names = {}
        self.events = []
        self.cached = {}
        self.scheduler.kv_event_publisher = self

    def publish(self, batch):
        """Take what the scheduler publishes, in a publisher's place."""
        self.events += batch.events

    def shutdown(self):
        pass

    def request(self, arrival, told):
        prompt = [first + n for first, length in told["prompt"] for n in range(1, length + 1)]
        params = SamplingParams(
            max_tokens=told["max_tokens"],
            stop_token_ids=[STOP],
            skip_reading_prefix_cache=not told["reads_cache"],
        )
        return Request(
            request_id=told["id"],
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            priority=told["priority"],
            arrival_time=float(arrival),
            block_hasher=self.hasher,
        )

    def cycles(self):
        todo = deque(enumerate(self.told.values()))
        for cycle in range(MOST_CYCLES):
            while todo and todo[0][1]["cycle"] <= cycle:
                self.scheduler.add_request(self.request(*todo.popleft()))
            for name, told in self.told.items():
                if told["aborts"] == cycle:
                    self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if self.scheduler.has_requests() or self.queue:
                yield self.cycle(cycle)
            elif not todo:
                return
        raise AssertionError("a run that does not end")

    def cycle(self, number):
        scheduler = self.scheduler
        seen = {"cycle": number, "tokens": None, "preempted": [], "cached": {}}
        is_full = True
        if scheduler.has_requests():
            before = {r.request_id: r.num_preemptions for r in scheduler.requests.values()}
            step = scheduler.schedule()
            seen["tokens"] = list(step.num_scheduled_tokens.items())
            seen["preempted"] = sorted(
                name
                for name, request in scheduler.requests.items()
                if request.num_preemptions > before[name]
            )
            sampled = [
                name
                for name in step.num_scheduled_tokens
                if not scheduler.requests[name].is_prefill_chunk
            ]
            self.queue.append((step, sampled))
            executed = step.total_num_scheduled_tokens > 0
            is_full = len(self.queue) == self.depth or not (executed or scheduler.has_requests())
        if is_full:
            self.process(*self.queue.popleft(), seen)
        self.events += scheduler.kv_cache_manager.take_events()
        seen["free"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        seen["events"] = [self.event(event) for event in self.events]
        self.events.clear()
        return seen

    def process(self, step, sampled, seen):
        scheduler, names = self.scheduler, list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[
                self.generated(name, step) if name in sampled else [] for name in names
            ],
        )
        for outputs in scheduler.update_from_output(step, output).values():
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    seen["cached"][one.request_id] = one.prefill_stats.num_cached_tokens
        if self.drafts and self.depth == 1 and names:
            drafts = [[1] * self.drafts for _ in names]
            scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def generated(self, name, step):
        """Return the tokens that a step's output holds: one, and the drafts that were right."""
        request, told = self.scheduler.requests.get(name), self.told[name]
        if request is None:
            return []
        had = request.num_output_tokens
        drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
        right = min(drafts, told["accepts"][had % len(told["accepts"])])
        said = range(had + 1, had + right + 2)
        return [STOP if n == told["stops"] else told["answer"] + n for n in said]

    def event(self, event):
        """Name blocks by numbers, in the order in which they are first heard of."""
        if isinstance(event, BlockStored | BlockRemoved):
            numbers = [self.names.setdefault(h, len(self.names)) for h in event.block_hashes]
            return [type(event) is BlockStored, event.group_idx, numbers]
        raise AssertionError(event)


def main():
    model = sys.argv[1]
    print(json.dumps({"version": vllm.__version__}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        cycles = list(Run(told, model).cycles())
        print(json.dumps({"cycles": cycles}), flush=True)


if __name__ == "__main__":
    main()
