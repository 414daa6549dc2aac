"""Runs SGLang's own scheduler on a CPU, step by step, with outputs made up instead of a model.

Reads scenarios (see `scenarios.py`), one JSON a line, and writes for each what every iteration of
the scheduler's loop did. All decisions are SGLang's: `Scheduler.get_next_batch_to_run`, the
`PrefillAdder`, the unified radix tree, the paged allocator, the retraction, and the processing of
results, in the order in which `event_loop_normal` and `event_loop_overlap` call them. Written here
is what stands around them: requests come from the scenario, and a forward pass gives one token a
request, the one that ends it when the scenario says so.

Runs in an environment that has SGLang's wheel, never in Leadsman's own.
"""

import stand_ins

stand_ins.install()

import json  # noqa: E402
import sys  # noqa: E402
from array import array  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers import scheduler as scheduling  # noqa: E402
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.schedule_policy import PrefillAdder, SchedulePolicy  # noqa: E402
from sglang.srt.managers.scheduler_components.batch_result_processor import (  # noqa: E402
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import (  # noqa: E402
    NewTokenRatioTracker,
)
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

STOP = 1
VOCABULARY = 1 << 20
MOST_ITERATIONS = 5_000

scheduling.PrefillStats = stand_ins.StandIn()
scheduling.set_time_batch = scheduling.set_schedule_time_batch = lambda *_: None


class _Metrics(stand_ins.StandIn):
    """Counts what nobody reads."""

    num_generated_tokens = forward_ct_decode = 0


class _Adder(PrefillAdder):
    """SGLang's own, which also notes what each candidate found cached and was given."""

    log: dict
    free = None

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        _Adder.free = self.token_to_kv_pool_allocator.available_size() + (
            self.tree_cache.evictable_size()
        )

    def add_one_req(self, req, has_chunked_req, truncation_align_size):
        before = self.tree_cache.evictable_size()
        lock = self.tree_cache.lock(req.last_node)
        unpinned = before - self.tree_cache.evictable_size()
        self.tree_cache.unlock(lock)
        self.log[req.rid] = [req.prefix_len, (req.prefix_len - unpinned) // self.page_size]
        return super().add_one_req(req, has_chunked_req, truncation_align_size)


class Engine:
    """One scheduler and what it stands on, for one scenario."""

    def __init__(self, settings):
        self.settings, self.is_async = settings, settings["overlap"]
        self.published = get_context().override_server_args(
            page_size=settings["page"],
            chunked_prefill_size=settings["chunk"] or -1,
            max_prefill_tokens=settings["max_prefill"],
            schedule_policy=settings["policy"],
            schedule_conservativeness=settings["conservativeness"],
            enable_priority_scheduling=settings["priority"],
            schedule_low_priority_values_first=settings["low_first"],
            attention_backend="torch_native",
            device="cpu",
            pp_max_micro_batch_size=settings["slots"],
            prefill_max_requests=settings.get("prefill_max_requests"),
        )
        self.published.install()
        self.clock, self.retracted, self.results = 0, [], []
        self.scheduler = self._scheduler()
        self.processor = self._processor()

    def _pools(self):
        size, page = self.settings["pages"] * self.settings["page"], self.settings["page"]
        rows = ReqToTokenPool(self.settings["slots"], 4096, "cpu", False)
        kind = TokenToKVPoolAllocator if page == 1 else PagedTokenToKVPoolAllocator
        pages = {} if page == 1 else {"page_size": page}
        allocator = kind(
            size, dtype=torch.bfloat16, device="cpu", kvcache=None, need_sort=False, **pages
        )
        allocator.use_triton_kernels = False
        tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=rows,
                token_to_kv_pool_allocator=allocator,
                page_size=page,
                tree_components=(ComponentType.FULL,),
            )
        )
        return rows, allocator, tree

    def _scheduler(self):
        settings = self.settings
        one = scheduling.Scheduler.__new__(scheduling.Scheduler)
        one.req_to_token_pool, one.token_to_kv_pool_allocator, one.tree_cache = self._pools()
        mixed = settings["mixed"] and settings["chunk"] is not None
        plain = {
            "waiting_queue": [], "chunked_req": None, "last_batch": None,
            "running_batch": ScheduleBatch(reqs=[], batch_is_full=False),
            "page_size": settings["page"], "max_prefill_tokens": settings["max_prefill"],
            "chunked_prefill_size": settings["chunk"], "is_mixed_chunk": mixed,
            "max_running_requests": settings["slots"], "max_prefill_bs": 0,
            "enable_priority_scheduling": settings["priority"],
            "enable_priority_preemption": settings["priority"],
            "priority_scheduling_preemption_threshold": settings["threshold"],
            "schedule_low_priority_values_first": settings["low_first"],
            "abort_on_priority_when_disabled": False, "max_queued_requests": None,
            "processed_tokens_counter": 0, "_prefill_decode_interval_remaining": 0,
            "prefill_decode_interval": 0, "prefill_decode_interval_min_bs": 0,
            "truncation_align_size": None, "dynamic_chunk_sizer": None, "dllm_config": None,
            "prefill_delayer": None, "min_free_slots_delayer": None, "lora_drainer": None,
            "decode_offload_manager": None, "hisparse_coordinator": None,
            "_pending_chunked_abort_req": None, "enable_hierarchical_cache": False,
            "enable_hicache_storage": False, "enable_lmcache": False, "enable_lora": False,
            "enable_hisparse": False, "is_hybrid_swa": False, "require_mlp_sync": False,
            "enable_unified_cache_external_linker": False, "device": "cpu",
            "enable_overlap": self.is_async, "enable_skip_finishing_decode": self.is_async,
            "spec_algorithm": SpeculativeAlgorithm.NONE, "result_queue": [],
            "disaggregation_mode": DisaggregationMode.NULL, "forward_ct": 0,
            "model_config": SimpleNamespace(
                is_encoder_decoder=False, vocab_size=VOCABULARY,
                self_opened_think_start_ids=None,
            ),
        }  # fmt: skip
        for name, value in plain.items():
            setattr(one, name, value)
        one.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
        one.beam_coordinator = SimpleNamespace(
            pending_member_rows=lambda _: 0, commit_decode=lambda _: set()
        )
        one.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=False: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        one.ngram_embedding_manager = SimpleNamespace(
            prepare_for_forward=lambda batch, chunked_req: batch
        )
        runner = SimpleNamespace(attn_backend=object(), prefill_aware_swa=False)
        one.tp_worker = SimpleNamespace(model_runner=runner)
        one.scheduler_stage_metrics = None
        one.load_inquirer = one.metrics_reporter = one.future_map = _Metrics()
        one.get_prefill_adder_class = lambda: _Adder
        one._process_hicache_events = one._prefetch_kvcache = lambda *_: None
        one.policy = SchedulePolicy(
            settings["policy"], one.tree_cache, False, settings["priority"], settings["low_first"]
        )
        one.new_token_ratio_tracker = NewTokenRatioTracker.from_config()
        add = one._add_request_to_queue

        def requeue(req, is_retracted=False):
            self.retracted.append(req.rid)
            self.enqueue(req, add, is_retracted)

        prioritise = one.policy.calc_priority

        def note_matches(queue, *given, **named):
            prioritise(queue, *given, **named)
            page = settings["page"]
            self.matches = {
                req.rid: [min(req.prefix_len, req.seqlen - 1) // page * page, 0] for req in queue
            }

        one.policy.calc_priority = note_matches
        one._add_request_to_queue = requeue
        self.add = add
        return one

    def enqueue(self, req, add, is_retracted=False):
        """Let a request enter the queue at a moment of our own clock, which never ties."""
        add(req, is_retracted)
        self.clock += 1
        req.time_stats.wait_queue_entry_time = float(self.clock)

    def _processor(self):
        one, scheduler = object.__new__(SchedulerBatchResultProcessor), self.scheduler
        for name in SchedulerBatchResultProcessor.__slots__:
            object.__setattr__(one, name, _Metrics())
        parts = {
            "is_generation": True, "disaggregation_mode": DisaggregationMode.NULL,
            "enable_overlap": self.is_async, "enable_overlap_mlx": False,
            "model_config": scheduler.model_config, "tree_cache": scheduler.tree_cache,
            "token_to_kv_pool_allocator": scheduler.token_to_kv_pool_allocator,
            "hisparse_coordinator": None, "req_to_token_pool": scheduler.req_to_token_pool,
            "decode_offload_manager": None, "draft_worker": None,
        }  # fmt: skip
        for name, value in parts.items():
            object.__setattr__(one, name, value)
        object.__setattr__(one, "beam_coordinator", scheduler.beam_coordinator)
        return one

    # -- one iteration of the loop -----------------------------------------------------------------

    def iterate(self):
        """Schedule, run and process as the event loop does; tells what was scheduled."""
        one = self.scheduler
        self.retracted, self.matches, _Adder.log = [], {}, {}
        _Adder.free = (
            one.token_to_kv_pool_allocator.available_size() + one.tree_cache.evictable_size()
        )
        plan = one.get_next_batch_to_run(running_batch=one.running_batch, last_batch=one.last_batch)
        one.running_batch, batch = plan.running_batch, plan.batch_to_run
        told = self._tell(batch)
        had_batch = one.last_batch is not None
        if batch is not None:
            self._launch(batch)
        if self.is_async:
            if had_batch:
                self._process(*one.result_queue.pop(0))
        elif batch is not None:
            self._process(*one.result_queue.pop(0))
        one.last_batch = batch
        told["idle"] = batch is None and not (self.is_async and had_batch) and self._is_idle()
        if told["idle"]:
            one.new_token_ratio_tracker.reset()
        told["ratio"] = one.new_token_ratio_tracker.current
        return told

    def _is_idle(self):
        one = self.scheduler
        return one.running_batch.is_empty() and one.chunked_req is None and not one.waiting_queue

    def _tell(self, batch):
        told = {
            "prefill": [],
            "decode": [],
            "retracted": self.retracted,
            "lookups": _Adder.log,
            "matches": self.matches,
        }
        decodes = set()
        if batch is not None and batch.forward_mode.is_decode():
            decodes = {req.rid for req in batch.reqs}
        elif batch is not None and batch.decoding_reqs:
            decodes = {req.rid for req in batch.decoding_reqs}
        for req in [] if batch is None else batch.reqs:
            if req.rid in decodes:
                told["decode"].append(req.rid)
            else:
                told["prefill"].append([req.rid, req.extend_len])
        told["free"] = _Adder.free // self.settings["page"]
        return told

    def _launch(self, batch):
        rows = len(batch.reqs)
        batch.input_ids = torch.zeros(rows, dtype=torch.int64)
        result = SimpleNamespace(
            copy_done=None, routed_experts_output=None, indexer_topk_output=None,
            auxiliary_host_output=None, logits_output=None, can_run_cuda_graph=False,
            extend_input_len_per_req=None, extend_logprob_start_len_per_req=None,
            grammar_advanced=False, num_correct_drafts_per_req_cpu=None,
            get_num_generated_tokens=lambda n: n,
        )  # fmt: skip
        self.scheduler.result_queue.append((batch.copy() if self.is_async else batch, result))

    def _process(self, batch, result):
        tokens = [self._next_token(req) for req in batch.reqs]
        result.next_token_ids = torch.tensor(tokens, dtype=torch.int64)
        if batch.forward_mode.is_decode():
            self.processor.process_batch_result_decode(batch, result)
        else:
            self.processor.process_batch_result_prefill(batch, result)

    def _next_token(self, req):
        if len(req.output_ids) + 1 >= self.outputs[req.rid]:
            return STOP
        self.token += 1
        return self.token

    def run(self, requests):
        """Run all requests to their ends."""
        self.outputs = {one["id"]: one["output"] for one in requests}
        self.token, steps, todo = VOCABULARY // 2, [], list(requests)
        for number in range(MOST_ITERATIONS):
            while todo and todo[0]["at"] <= number:
                self.enqueue(self._request(todo.pop(0)), self.add)
            steps.append(self.iterate())
            if steps[-1]["idle"] and not todo:
                return steps
        raise RuntimeError("requests are left over")

    def _request(self, one):
        sampling = SamplingParams(
            max_new_tokens=one["max_new"], stop_token_ids={STOP}, temperature=1.0
        )
        sampling.normalize(None)
        return Req(
            one["id"],
            "",
            array("q", one["prompt"]),
            sampling,
            eos_token_ids={STOP},
            vocab_size=VOCABULARY,
            priority=one["priority"] if self.settings["priority"] else None,
        )


def main():
    """Run each scenario of the standard input."""
    for line in sys.stdin:
        scenario = json.loads(line)
        engine = Engine(scenario["settings"])
        try:
            scenario["steps"] = engine.run(scenario["requests"])
        finally:
            engine.published.restore()
        print(json.dumps(scenario), flush=True)


if __name__ == "__main__":
    main()
