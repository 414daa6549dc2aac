"""The reader of a Mooncake's master, held against vLLM's own keys, and a real master's listing."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from leadsman.fleet import Fleet
from leadsman.keys import block_keys, namespace_seed
from leadsman_engines.block_names import BlockNames
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_events import AllBlocksCleared
from leadsman_engines.mooncake_master import TIER, MooncakeMaster
from leadsman_engines.profile import SharedStore

from .mooncake import PROMPTS, SIZE, Master, objects, stored

A, B, SALTED = PROMPTS
PATIENCE = 20.0


class Followed:
    """A reader of a master, a vLLM whose events were heard, and what came of both."""

    def __init__(self, url, http, stored_as="llama-8b"):
        self.names, self.http, self.fleet = BlockNames(), http, Fleet()
        self.engine = EngineBlocks(secret=b"s", model="m", block_size=SIZE, names=self.names)
        store = SharedStore(mooncake=url, model="m", stored_as=stored_as, block_size=SIZE)
        self.reader = MooncakeMaster(
            store, lambda said: self.fleet.apply(said, 7.0), lambda: 7.0, self.names
        )

    async def read(self):
        await self.reader.read(self.http)
        self.fleet.index.check()

    def held(self, prompt):
        seed = namespace_seed(secret=b"s", model="m", cache_salt=prompt["salt"])
        keys = block_keys(np.array(prompt["tokens"], dtype=np.uint32), SIZE, seed)
        return self.fleet.index.reach(self.reader.worker, keys, TIER)


@pytest.fixture
def master():
    return Master()


@pytest.fixture
async def followed(master):
    async with TestServer(master.app()) as server, aiohttp.ClientSession() as http:
        yield Followed(str(server.make_url("/")), http)


@pytest.mark.parametrize("how", ["event", "bytes"])
async def test_what_an_engine_named_before_it_lost_it_is_found_in_the_store(followed, master, how):
    followed.engine.resolve([stored(one, how) for one in (A, B, SALTED)] + [AllBlocksCleared()])
    master.keys = objects(A, B, SALTED)

    await followed.read()

    assert [followed.held(one) for one in (A, B, SALTED)] == [6, 6, 4]
    assert followed.reader.seen.chunks == 6 + 3 + 4
    assert followed.reader.seen.unused == {"unnamed": 0, "partial": 0}


async def test_what_no_engine_named_is_counted_and_credits_nothing(followed, master):
    followed.engine.resolve([stored(A)])
    master.keys = objects(A, B)

    await followed.read()

    assert (followed.held(A), followed.held(B)) == (6, 3)
    assert followed.reader.seen.unused == {"unnamed": 3, "partial": 0}


async def test_a_block_counts_once_every_rank_has_put_its_part(followed, master):
    followed.engine.resolve([stored(A)])
    late = A["keys"][1][2]
    master.keys = objects(A) - {late}
    await followed.read()
    before, seen = followed.held(A), followed.reader.seen

    master.keys.add(late)
    await followed.read()

    assert (before, followed.held(A)) == (2, 6)
    assert (seen.chunks, seen.unused["partial"]) == (5, 1)


async def test_what_left_the_store_is_no_more_there(followed, master):
    followed.engine.resolve([stored(A), stored(B)])
    master.keys = objects(A, B)
    await followed.read()

    master.keys -= objects(B) - objects(A)
    await followed.read()
    left = followed.held(A), followed.held(B)
    master.keys.clear()
    await followed.read()

    assert left == (6, 3)
    assert (followed.held(A), followed.reader.seen.chunks) == (0, 0)


@pytest.mark.parametrize(
    "alter",
    [
        lambda key: key.replace("llama-8b@", "llama-8b-instruct@"),
        lambda key: key.replace("llama-8b@", "other@llama-8b@"),
        lambda key: key.replace("group:0", "group:1"),
        lambda key: key.replace("@pp_rank:0", ""),
        lambda key: key.rpartition("@")[2] + "_k",
        lambda key: key.rpartition("@")[0] + "@no-hash-at-all-0",
    ],
)
async def test_keys_of_others_are_left_alone(followed, master, alter):
    followed.engine.resolve([stored(A)])
    master.keys = {alter(key) for key in objects(A)}

    await followed.read()

    assert (followed.held(A), followed.reader.seen.chunks) == (0, 0)


@pytest.mark.parametrize(
    ("what", "value", "said"), [("status", 503, "503"), ("role", "standby", "'standby'")]
)
async def test_a_master_that_cannot_say_changes_nothing(followed, master, what, value, said):
    followed.engine.resolve([stored(A)])
    master.keys = objects(A)
    await followed.read()

    setattr(master, what, value)
    master.keys.clear()
    reading = asyncio.create_task(followed.reader.run(followed.http, 0.01))
    async with asyncio.timeout(PATIENCE):
        while followed.reader.seen.problem is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
    reading.cancel()

    assert said in followed.reader.seen.problem
    assert (followed.held(A), followed.reader.seen.chunks) == (6, 6)


async def test_a_name_is_known_as_long_as_the_store_has_it(followed, master):
    followed.names._limit = 40
    followed.engine.resolve([stored(A)])
    master.keys = objects(A)
    for others in range(20):
        await followed.read()
        new = np.arange(10, dtype=np.uint64) + np.uint64(1000 + 10 * others)
        followed.names.note(new.tolist(), new)
    master.keys.clear()
    await followed.read()

    master.keys = objects(A)
    await followed.read()

    assert followed.held(A) == 6
    assert len(followed.names) <= 40


NAMES = st.integers(0, 2**64 - 1) | st.binary(min_size=8, max_size=32)


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**64 - 1))), st.integers(1, 12))
def test_the_newest_names_are_known_and_no_more_than_the_bound(told, limit):
    names, expected = BlockNames(limit), {}
    for name, key in told:
        names.note([name], np.array([key], dtype=np.uint64))
        short = name if isinstance(name, int) else int.from_bytes(name[-8:], "big")
        expected.pop(short, None)
        expected[short] = key

        assert len(names) <= limit

    newest = list(expected)[len(expected) - (limit // 2) :] if limit > 1 else []
    assert {name: names.get(name) for name in newest} == {name: expected[name] for name in newest}


PUT = """
import sys
import time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
if store.setup(sys.argv[2], "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]):
    sys.exit("no setup")
for line in sys.stdin:
    what, key = line.split()
    done = store.put(key, bytes(64)) if what == "put" else store.remove(key, True)
    print(f"done {done}", flush=True)
"""


def free_port():
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class RealMaster:
    """A mooncake_master, and a client that puts and removes."""

    def __init__(self, stack):
        [folder] = find_spec("mooncake").submodule_search_locations
        rpc, self.page = free_port(), free_port()
        command = [Path(folder) / "mooncake_master", f"--rpc_port={rpc}"]
        command += [f"--metrics_port={self.page}", "--default_kv_lease_ttl=0"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._begin(stack, command, **quiet)
        self.wait()
        command = [sys.executable, "-c", PUT, f"127.0.0.1:{rpc}", f"127.0.0.1:{free_port()}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.client = self._begin(stack, command, **pipes, stderr=subprocess.DEVNULL)

    def _begin(self, stack, command, **rest):
        path = os.pathsep.join(sys.path)
        environment = os.environ | {"PYTHONPATH": path}
        process = stack.enter_context(subprocess.Popen(command, env=environment, **rest))
        stack.callback(process.kill)
        return process

    def wait(self):
        for _ in range(200):
            with closing(socket.socket()) as one:
                if one.connect_ex(("127.0.0.1", self.page)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError

    def tell(self, what, keys):
        for key in sorted(keys):
            self.client.stdin.write(f"{what} {key}\n")
            self.client.stdin.flush()
            while not (said := self.client.stdout.readline()).startswith("done"):
                assert said, "the client ended"
            assert said == "done 0\n"


@pytest.fixture
def real():
    if find_spec("mooncake") is None:
        pytest.skip("needs pip install mooncake-transfer-engine-non-cuda, 46 MB")
    try:
        CDLL("libibverbs.so.1")
    except OSError as error:
        pytest.skip(f"needs apt's libibverbs1: {error}")
    with ExitStack() as stack:
        yield RealMaster(stack)


async def test_a_real_master_lists_what_was_put_until_it_is_removed(real):
    async with aiohttp.ClientSession() as http:
        followed = Followed(f"http://127.0.0.1:{real.page}", http)
        followed.engine.resolve([stored(A), AllBlocksCleared()])
        await followed.read()
        empty = followed.held(A)
        real.tell("put", objects(A) | {"somebody's"})
        await followed.read()
        full = followed.held(A)
        real.tell("remove", {A["keys"][0][4]})
        await followed.read()

    assert (empty, full, followed.held(A)) == (0, 6, 4)
