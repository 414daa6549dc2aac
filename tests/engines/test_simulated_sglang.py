import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from oracle_sglang.scenarios import MODES, scenario

from ..core.sglang_runs import Compared  # noqa: TID252  # tests are no package
from .sglang_passes import difference, simulated_steps

GOLDEN = Path(__file__).parents[1] / "core" / "golden" / "sglang-0.5.23.jsonl.gz"
RUNS = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['mode']}-{run['seed']}")
def test_it_does_what_sglang_s_own_scheduler_did(run):
    assert run["steps"]

    assert difference(run) is None


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(1_000, 1_000_000))
@profile(max_examples=4)
def test_the_replay_agrees_with_it_step_by_step(mode, seed):
    drawn = scenario(mode, seed)

    compared = Compared(drawn | {"steps": simulated_steps(drawn)})

    assert compared.mismatch() is None
