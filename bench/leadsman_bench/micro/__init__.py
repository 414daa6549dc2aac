"""Micro benchmarks: one part at a time, beside a peer or a no-op in the same run.

Each module has `measure() -> dict[str, float]` and runs by `python -m`.
"""
