"""The pure domain of Leadsman: predict the time to first token on every worker, pick, or refuse.

No I/O, no clock, no randomness in here: `now` and `rng` are arguments, and numpy is the only
dependency. Seconds are seconds on one monotonic axis that the caller chooses.
"""
