"""Holds the replay against vLLM's real scheduler, on random runs."""
