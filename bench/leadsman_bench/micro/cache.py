"""How fast the cache index is, beside Dynamo's radix tree on the same prompts.

The question: hash a prompt of 100,000 tokens and find it among 64 workers that hold 20,000
blocks each; store and remove as a busy fleet does; and what a distinct block costs in memory
among 256 workers. Every worker holds a share of the prompt that differs from the others', as the
replicas of a shared conversation do. Ratios are of medians of the same run, turn about, and in time
on the CPU too (`hash_lookup_cpu_vs_dynamo`): Dynamo's tree lives in a thread of its own, so where
other work shares the machine its clock also counts two waits for a core.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final, TypeAlias

import numpy as np
from dynamo._core import RadixTree, compute_block_hash_for_seq
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed
from leadsman.units import Keys, TokenIds, WorkerId

BLOCK: Final = 16
PROMPT_BLOCKS: Final = 6250
WORKERS: Final = 64
BLOCKS_A_WORKER: Final = 20_000
RUNS: Final = 31
EVENT_BLOCKS: Final = 512
STEP_BLOCKS: Final = 30
_Took: TypeAlias = tuple[float, float]
"""Seconds by the clock, and on the CPU, all threads."""
SEED: Final = namespace_seed(secret=b"bench", model="bench")


def measure() -> dict[str, float]:
    """Measure all figures; `hash_lookup_vs_dynamo` is our time over theirs."""
    rng = np.random.default_rng(7)
    (ours, our_cpu), (theirs, their_cpu) = _hash_and_look_up(rng)
    return {
        "hash_lookup_vs_dynamo": ours / theirs,
        "hash_lookup_cpu_vs_dynamo": our_cpu / their_cpu,
        "hash_lookup_s": ours,
        "hash_lookup_dynamo_s": theirs,
        "ingest_blocks_per_s": _ingest(rng),
        "small_store_s": _small_store(rng),
        "bytes_per_block": _bytes_per_block(rng),
    }


def _hash_and_look_up(rng: np.random.Generator) -> tuple[_Took, _Took]:
    index, tree = CacheIndex(), RadixTree()
    prompt = _tokens(rng, PROMPT_BLOCKS)
    for number in range(WORKERS):
        shared = PROMPT_BLOCKS * (number + 1) // WORKERS
        for tokens in (prompt[: shared * BLOCK], _tokens(rng, BLOCKS_A_WORKER - shared)):
            index.store(WorkerId(str(number)), block_keys(tokens, BLOCK, SEED))
            _store_in_tree(tree, number, tokens)
    listed = prompt.tolist()
    deepest = index.match(block_keys(prompt, BLOCK, SEED)).gpu.tolist()
    found = tree.find_matches(compute_block_hash_for_seq(listed, BLOCK)).scores
    assert sorted(deepest) == sorted(found.values()), "both find the same"
    ours, theirs = list[_Took](), list[_Took]()
    for _ in range(RUNS):
        ours.append(_took(lambda: index.match(block_keys(prompt, BLOCK, SEED))))
        theirs.append(_took(lambda: tree.find_matches(compute_block_hash_for_seq(listed, BLOCK))))
    return _medians(ours), _medians(theirs)


def _took(work: Callable[[], object]) -> _Took:
    busy = time.process_time()
    return _seconds(work), time.process_time() - busy


def _medians(runs: list[_Took]) -> _Took:
    return median(wall for wall, _ in runs), median(cpu for _, cpu in runs)


def _store_in_tree(tree: RadixTree, worker: int, tokens: TokenIds) -> None:
    """Store a chain as Dynamo's own publisher would, event by event."""
    hashes = compute_block_hash_for_seq(tokens.tolist(), BLOCK)
    names = block_keys(tokens, BLOCK, SEED).tolist()
    for start in range(0, len(hashes), EVENT_BLOCKS):
        blocks = [
            {"block_hash": name, "tokens_hash": hashed}
            for name, hashed in zip(
                names[start : start + EVENT_BLOCKS],
                hashes[start : start + EVENT_BLOCKS],
                strict=True,
            )
        ]
        parent = names[start - 1] if start else None
        event = {"event_id": start, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}
        tree.apply_event(worker, json.dumps(event).encode())


def _ingest(rng: np.random.Generator) -> float:
    """Blocks a second of a full fleet that stores and removes as many, a step's worth at a time."""
    index = CacheIndex()
    workers = [WorkerId(str(number)) for number in range(WORKERS)]
    held = [_keys(rng, BLOCKS_A_WORKER // 4) for _ in workers]
    for worker, keys in zip(workers, held, strict=True):
        index.store(worker, keys)
    fresh = [_keys(rng, BLOCKS_A_WORKER // 4) for _ in workers]
    size, rates = 4 * STEP_BLOCKS, []
    for _ in range(3):
        start = time.perf_counter()
        for at in range(0, held[0].size, size):
            for worker, old, new in zip(workers, held, fresh, strict=True):
                index.remove(worker, old[at : at + size])
                index.store(worker, new[at : at + size])
        rates.append(2 * sum(map(len, held)) / (time.perf_counter() - start))
        held, fresh = fresh, [_keys(rng, BLOCKS_A_WORKER // 4) for _ in workers]
    return median(rates)


def _small_store(rng: np.random.Generator) -> float:
    """Seconds of one store of a step's blocks, all new."""
    index, times = CacheIndex(), []
    for _ in range(2000):
        keys = _keys(rng, STEP_BLOCKS)
        times.append(_seconds(partial(index.store, WorkerId("0"), keys)))
    return median(times)


def _bytes_per_block(rng: np.random.Generator) -> float:
    """Bytes a distinct block among 256 workers, the most seen while they fill."""
    index, most = CacheIndex(), 0.0
    for round_ in range(20):
        for number in range(256):
            index.store(WorkerId(str(number)), _keys(rng, 200))
        if round_ >= 4:
            most = max(most, index.nbytes / index.distinct_blocks)
    return most


def _tokens(rng: np.random.Generator, blocks: int) -> TokenIds:
    return rng.integers(0, 150_000, blocks * BLOCK, dtype=np.uint32)


def _keys(rng: np.random.Generator, blocks: int) -> Keys:
    return rng.integers(1, 2**64, blocks, dtype=np.uint64)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
