import json
import time

import pytest
from leadsman_bench import command
from leadsman_bench.operating._engines import BLOCKS, HELD, batches, sent_now
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_wire import decode_batch


def test_what_needs_a_cluster_is_left_out_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    asked = ["operator", "stream", "cold", "--blocks", "2560", "--json", str(tmp_path / "o.json")]

    status = command.main(asked)

    assert status == 0
    assert "stream is left out" in capsys.readouterr().err
    measured = json.loads((tmp_path / "o.json").read_text())
    assert measured["cold_start_s"] > 0
    assert "operator_lag_p99_s" not in measured


def test_a_played_engines_cache_fills_and_then_stays_as_full():
    blocks, known = EngineBlocks(secret=b"s", model="m"), []
    first, again = batches(3)

    for batch in [*first, *again, *again]:
        blocks.resolve(decode_batch(batch, "w").events)
        known.append(blocks.known)

    assert known[HELD - 1] == HELD * BLOCKS
    assert set(known[HELD:]) == {HELD * BLOCKS, (HELD - 1) * BLOCKS}
    assert not blocks.counts
    assert blocks.waiting == 0


def test_a_batch_says_when_it_was_sent_and_is_the_same_otherwise():
    [made, *_], _ = batches(3)

    sent = decode_batch(sent_now(made), "w")

    assert sent.engine_time == pytest.approx(time.time(), abs=60)
    assert sent.events[0].hashes == decode_batch(made, "w").events[0].hashes
