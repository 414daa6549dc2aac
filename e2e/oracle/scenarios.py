"""Random runs of one engine: its settings, and who comes, says how much, and leaves when.

A scenario is plain data, made from a mode and a seed alone, so that a run that differs can be had
again by its number. A prompt is a list of `[first, length]`: rising token ids; prompts of one
family begin with the same ids. Output token n is `answer + n`, so equal prompts may have equal
answers. `stops` is after how many output tokens a request stops by itself, which the engine cannot
foresee; `aborts` is the cycle before which its client leaves. `accepts` are the drafts that would
be right, one number a step, over and over.

Blocks are few and prompts long for them, so that requests push each other out; and yet the longest
request fits alone, since vLLM does not start otherwise.
"""

from random import Random
from typing import Any, Final

MODES: Final = (
    "full-sync",
    "full-async",
    "spec-sync",
    "spec-async",
    "hybrid-sync",
    "hybrid-async",
    "mixed-sync",
    "mixed-async",
    "state-sync",
    "state-async",
)
"""What is scheduled (one cache group that attends to everything; that with drafts; several groups,
some with sliding windows; those with drafts; some with states, as Mamba's), and whether a step is
scheduled before the one ahead of it is processed."""

FAR: Final = 100_000
"""Ids between two families, and between an own text and another: none is that long."""


def scenario(mode: str, seed: int) -> dict[str, Any]:
    """Make one run: `settings` in vLLM's words, and `requests` in the order of their arrival."""
    rng = Random(f"{mode}/{seed}")
    what, when = mode.split("-")
    block_size = rng.choice([2, 4, 8, 16])
    longest = rng.choice([4, 8, 16]) * block_size + rng.randrange(block_size)
    settings: dict[str, Any] = {
        "block_size": block_size,
        "max_model_len": longest + rng.choice([0, 1, 7, 30]),
        "max_num_seqs": rng.choice([1, 2, 4, 8, 16]),
        "async_scheduling": when == "async",
        "policy": rng.choice(["fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.2]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "enable_prefix_caching": rng.random() < 0.9,
        "enable_chunked_prefill": rng.random() < 0.8,
        "long_prefill_token_threshold": rng.choice([0, 0, 3, block_size, 2 * block_size + 1]),
        "windows": [None],
        "retention": 0,
        "num_speculative_tokens": 0,
        "num_lookahead_tokens": 0,
        "use_eagle": False,
        "aligns_chunks": False,
    }
    if what in ("spec", "mixed"):
        _speculate(settings, rng)
    if what in ("hybrid", "mixed"):
        _window(settings, rng)
    if what == "state":
        _keep_states(settings, rng)
    _size(settings, rng, longest)
    return {
        "mode": mode,
        "seed": seed,
        "settings": settings,
        "requests": _requests(settings, rng, longest),
    }


def _speculate(settings: dict[str, Any], rng: Random) -> None:
    """Draft, and let the threshold not cut a decoding request: vLLM 0.32 stops where it does."""
    drafts = rng.choice([1, 2, 3, 5])
    settings["num_speculative_tokens"] = drafts
    if settings["long_prefill_token_threshold"]:
        settings["long_prefill_token_threshold"] = max(
            settings["long_prefill_token_threshold"], 1 + drafts
        )
    if rng.random() < 0.6:
        settings["num_lookahead_tokens"], settings["use_eagle"] = drafts, rng.random() < 0.7


def _window(settings: dict[str, Any], rng: Random) -> None:
    block_size = settings["block_size"]
    sizes = [rng.randrange(2, 5 * block_size) for _ in range(rng.choice([1, 1, 2]))]
    windows = [None] * rng.choice([0, 1, 1, 1]) + sizes + sizes[:1] * rng.choice([0, 0, 1])
    rng.shuffle(windows)
    settings["windows"] = windows
    settings["retention"] = rng.choice([0, 0, None, 2 * block_size])


def _keep_states(settings: dict[str, Any], rng: Random) -> None:
    """Have groups that keep states; vLLM has them only with a cache, and cuts prompts for them."""
    settings["windows"] = [None] * rng.choice([1, 1, 2]) + [2] * rng.choice([1, 1, 2, 3])
    rng.shuffle(settings["windows"])
    settings["retention"] = rng.choice([0, 0, None, 2 * settings["block_size"]])
    settings |= {
        "aligns_chunks": True,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
    }


def _size(settings: dict[str, Any], rng: Random, longest: int) -> None:
    """Set what the engine has of slots and blocks, so that it could start."""
    drafts, seqs = settings["num_speculative_tokens"], settings["max_num_seqs"]
    budget = max(seqs * (1 + drafts), rng.choice([4, 16, 64, 256]))
    if not settings["enable_chunked_prefill"]:
        budget = max(budget, settings["max_model_len"])
    settings["max_num_batched_tokens"] = budget
    most = settings["max_model_len"] + settings["num_lookahead_tokens"]
    whole = len(settings["windows"]) * (-(-most // settings["block_size"]) + 1)
    whole += int(whole * settings["watermark"] * 2)
    settings["num_blocks"] = 1 + whole + rng.choice([0, 1, 3, whole // 2, whole, 4 * whole])


def _requests(settings: dict[str, Any], rng: Random, longest: int) -> list[dict[str, Any]]:
    families = rng.choice([1, 2, 4])
    gap = rng.choice([0, 0, 1, 3])
    cycle, requests = 0, []
    for number in range(rng.randrange(2, 24)):
        cycle += rng.randrange(gap + 1)
        own = FAR * (100 + number)
        family = rng.randrange(families)
        size = rng.randrange(1, longest)
        shared = min(size, rng.choice([0, size // 2, size, longest // 3, longest // 2]))
        prompt = [[FAR * family, shared]] if shared else []
        if size > shared:
            prompt.append([own, size - shared])
        room = settings["max_model_len"] - size
        output = min(room, rng.choice([1, 2, rng.randrange(1, 40)]))
        requests.append(
            {
                "id": f"r{number}",
                "cycle": cycle,
                "prompt": prompt,
                "answer": FAR * (50 + family if rng.random() < 0.5 else 1000 + number),
                "max_tokens": max(1, output),
                "stops": rng.randrange(1, output + 1) if rng.random() < 0.3 and output else None,
                "aborts": cycle + rng.randrange(30) if rng.random() < 0.15 else None,
                "priority": rng.randrange(3),
                "reads_cache": rng.random() < 0.95,
                "accepts": [rng.randrange(6) for _ in range(rng.randrange(1, 5))],
            }
        )
    return requests
