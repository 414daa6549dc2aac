"""An SGLang server imitated literally, beside the vLLM of the same package.

Written from SGLang's source a second time: batches are objects that are merged, filtered and thrown
away, the cache is a radix tree of nodes that are split and locked, and a queue is closed by a note
on the batch that runs. The replay that predicts has sums instead; neither knows the other, and both
are held against SGLang's own scheduler (e2e/oracle_sglang).

Ignored: that a speculating engine accepts drafts, sliding windows, LoRA slots, multimodal inputs,
disaggregation, the pipeline, prefill delayers, storage behind the host's memory.
"""
