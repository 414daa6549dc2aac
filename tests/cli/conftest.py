"""An engine that answers a collector, and a whole `serve` in front of it."""

import asyncio
import json
import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from leadsman.budget import Budget
from leadsman_cli.config import Config
from leadsman_cli.serve import Plan, serving
from leadsman_extproc.settings import Settings
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.manifest import EndpointSpec

SERVING = HealthCheckResponse.SERVING
METRICS = """\
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1001",engine="0"} 1
"""
SCHEDULER = {"max_num_batched_tokens": 2048, "max_num_seqs": 16}
PAGES = {
    "/health": "",
    "/metrics": METRICS,
    "/version": {"version": "0.33.0"},
    "/v1/models": {"data": [{"id": "m", "max_model_len": 8192}]},
    "/server_info": {"vllm_config": {"scheduler_config": SCHEDULER}},
}


@pytest.fixture(autouse=True)
def logs_as_before():
    """Undo what a command does to the logs of its process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def answering():
    """Make a handler that answers with a page, whatever is asked."""

    def make(page, status=200):
        async def handle(_):
            body = page if isinstance(page, str) else json.dumps(page)
            return web.Response(text=body, status=status)

        return handle

    return make


@pytest.fixture
def pages():
    """What a vLLM answers, by path."""
    return PAGES


@pytest.fixture
async def engine(answering):
    app = web.Application()
    app.add_routes([web.get(path, answering(page)) for path, page in PAGES.items()])
    app.add_routes([web.post("/tokenize", answering({"count": 2, "tokens": [5, 6]}))])
    async with TestServer(app) as server:
        yield Endpoint(url=str(server.make_url("")).rstrip("/"))


@pytest.fixture
async def served(engine, request):
    """Serve that engine, by the settings that a test asks for, if any; the picker's port if ready.

    settings: of the picker, but for `budget`.
    """
    settings = dict(getattr(request, "param", {}))
    budget = settings.pop("budget", Budget())
    picker = Settings(listen="127.0.0.1:0", drain=0.0, **settings)
    config = Config(endpoints=(EndpointSpec(url=engine.url),), picker=picker, budget=budget)
    async with serving(Plan(config=config, endpoints=(engine,), models=())) as running:
        async with asyncio.timeout(20):
            while running.server.health.status("") != SERVING:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        yield running.server.port
