"""Draws what the fuzz runs: settings of an engine and the requests that it gets.

    python scenarios.py MODE FIRST COUNT    one JSON a line

Each mode is one set of rules; everything else is drawn anew for each seed. Where prompts share
prefixes, memory is ample: whose pages are shared is not followed by a replay alone. In the scarce
modes it is not: those are for an engine that keeps the pages.
"""

import json
import random
import sys

MODES = ("plain", "overlap", "mixed", "mixed-overlap", "whole", "priority", "priority-overlap",
         "lpm", "lpm-overlap", "lof", "shared", "shared-overlap")  # fmt: skip
SCARCE = ("scarce", "scarce-overlap", "scarce-lpm", "scarce-mixed-overlap", "scarce-priority")
ALL_MODES = MODES + SCARCE


def scenario(mode, seed):
    """Draw one run."""
    chance = random.Random(f"{mode} {seed}")
    scarce = mode.startswith("scarce")
    shares = scarce or mode.startswith(("lpm", "shared"))
    page, slots = chance.choice([1, 2, 4, 8, 16]), chance.randint(1, 12)
    longest = chance.choice([24, 60, 150])
    whole = mode == "whole"
    chunk = None if whole else max(page, max(6, slots) + 1, chance.choice([8, 16, 32, 64]))
    chunk = chunk and -(-chunk // page) * page
    least = -(-(2 * longest) // page) + 3
    settings = {
        "page": page,
        "pages": least * (12 if shares and not scarce else 1) + chance.randint(0, least),
        "slots": slots,
        "max_prefill": chance.choice([slots + 14, 40, 100, 400]),
        "chunk": chunk,
        "policy": "lpm" if "lpm" in mode else "lof" if mode == "lof" else "fcfs",
        "conservativeness": chance.choice([0.1, 0.5, 1.0, 1.3]),
        "mixed": "mixed" in mode,
        "overlap": mode.endswith("overlap"),
        "priority": "priority" in mode or (mode == "lof" and chance.random() < 0.5),
        "threshold": chance.choice([0, 1, 10]),
        "low_first": chance.random() < 0.5,
    }
    if crowded := chance.random() < 0.5:
        settings["conservativeness"], settings["slots"] = 0.1, max(6, slots)
    requests = _requests(chance, settings, longest, shares=shares, crowded=crowded)
    return {"mode": mode, "seed": seed, "settings": settings, "requests": requests}


def _requests(chance, settings, longest, *, shares, crowded):
    families = [[chance.randrange(100, 1000) for _ in range(longest)] for _ in range(3)]
    requests, at = [], 0
    for number in range(chance.randint(2, 30)):
        at += 0 if crowded else chance.choice([0, 0, 0, 1, 2, 9])
        length = chance.randint(1, longest)
        prompt = [1000 * (number + 2) + place for place in range(length)]
        if shares:
            common = chance.randint(0, length)
            prompt[:common] = chance.choice(families)[:common]
        most = chance.randint(longest // 2 if crowded else 1, longest)
        stops = chance.random() < 0.3 and not settings["overlap"]
        requests.append({
            "id": f"r{number}", "prompt": prompt, "max_new": most,
            "output": chance.randint(1, most) if stops else most,
            "priority": chance.randint(0, 3), "at": at,
        })  # fmt: skip
    return requests


def main():
    """Write the scenarios of one mode."""
    mode, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        print(json.dumps(scenario(mode, seed)))


if __name__ == "__main__":
    main()
