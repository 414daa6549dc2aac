"""A picker that is told of a Redis follows its pool there."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from kube.redis_server import RedisServer, needs_redis
from leadsman.records import WorkerSeen
from leadsman_cli.main import main
from leadsman_cli.picker import PickerPlan, follow, picker
from leadsman_fleet.redis_ends import RedisPublisher
from leadsman_fleet.redis_keeper import RedisKeeper
from leadsman_fleet.redis_log import Names, RedisLog, connected

from tests.settings import SETTINGS

PATIENCE = 20.0


@needs_redis
async def test_a_picker_follows_its_pool_through_redis(tmp_path):
    redis = RedisServer(tmp_path)
    redis.start()
    async with AsyncExitStack() as stack:
        stack.callback(redis.stop)
        logs = [RedisLog(redis=connected(redis.url), names=Names(pool="ns/chat")) for _ in range(2)]
        for log in logs:
            stack.push_async_callback(log.close)
        publisher, keeper = RedisPublisher(logs[0]), RedisKeeper(logs[1])
        tasks = [asyncio.create_task(one.run()) for one in (publisher, keeper)]
        publisher.publish(WorkerSeen(worker="w", endpoint="10.0.0.1:8000", settings=SETTINGS))
        http = await stack.enter_async_context(aiohttp.ClientSession())

        parts = picker(PickerPlan(models=(), secret=b""), http, (redis.url, "ns/chat"))
        follow(stack, parts)
        async with asyncio.timeout(PATIENCE):
            while not parts.service.workers.any_ready():  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.01)

        assert list(parts.fleet.workers) == ["w"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_picker_that_is_told_of_no_stream_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("LEADSMAN_REDIS_URL", raising=False)

    with pytest.raises(SystemExit) as stopped:
        main(["extproc", "--pool", "ns/chat"])

    assert stopped.value.code == 2
    assert "--fleet where LEADSMAN_REDIS_URL is not set" in capsys.readouterr().err


def test_a_url_that_is_none_is_an_error_of_its_own(capsys, tmp_path):
    config = tmp_path / "picker.yaml"
    config.write_text("{}")

    status = main(
        ["extproc", "--fleet", "redis://h:port", "--pool", "ns/chat", "--config", str(config)]
    )

    assert status == 1
    assert "the URL of Redis is none" in capsys.readouterr().err
