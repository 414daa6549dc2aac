"""Settings of an engine, for tests that only carry them about."""

from leadsman.engine import EngineSettings

SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=2048,
    max_num_seqs=16,
    max_model_len=8192,
    block_size=16,
    num_blocks=100,
)
