import json

import msgspec
import zmq
from leadsman_bench import command
from leadsman_bench.operating._engines import BLOCKS, HELD, Publisher
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
    blocks = EngineBlocks(secret=b"s", model="m")
    with zmq.Context() as context:
        publisher = Publisher(context, "127.0.0.1", 3)
        known = []
        for _ in range(4 * HELD):
            payload = msgspec.msgpack.encode([1.0, [publisher.event()], 0])
            blocks.resolve(decode_batch(payload, "w").events)
            known.append(blocks.known)
        publisher.close()

    assert known[HELD - 1] == HELD * BLOCKS
    assert set(known[2 * HELD :]) == {HELD * BLOCKS, (HELD + 1) * BLOCKS}
    assert not blocks.counts
    assert blocks.waiting == 0
