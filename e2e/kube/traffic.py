"""A steady load of streamed completions at a gateway, in a process of its own.

Open loop: a request is sent at its time, whatever has become of those before. Each that is over is
one JSON line: when it was sent, what was answered, by whom, and whether the answer came whole. Told
to stop, it sends no more and waits for all that are under way.

Run as a program: traffic.py URL MODEL RATE SEED.
"""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import count

import aiohttp
from leadsman_bench.processes import dying_with_parent

REASON = "x-llm-d-request-dropped-reason"
TOPICS = 12
ALONE = 0.4
PATIENCE = 60.0


@dataclass(kw_only=True)
class Sent:
    """One request. at: seconds on the machine's monotonic clock. status: None without an answer."""

    number: int
    at: float
    status: int | None = None
    served_by: str | None = None
    reason: str | None = None
    is_whole: bool = False
    problem: str | None = None

    @property
    def is_lost(self):
        """Neither answered whole nor refused with a reason."""
        return not self.is_whole and self.reason is None


class Traffic:
    """A load that runs. `sent` is what has become of it, once it was stopped."""

    def __init__(self, url, model, folder, rate, seed):
        self.sent = []
        self._log = folder / f"traffic-{time.monotonic_ns()}.jsonl"
        with self._log.open("wb") as out:
            load = [sys.executable, __file__, url, model, str(rate), str(seed)]
            self._process = subprocess.Popen(dying_with_parent(load), stdout=out)

    def so_far(self):
        """Read what is over by now."""
        lines = self._log.read_text().splitlines()
        return [Sent(**json.loads(line)) for line in lines if line.endswith("}")]

    def stop(self):
        """Send no more, and wait until every answer has come."""
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0
        self.sent = self.so_far()

    def lost(self):
        """List what should have been served or refused, and was neither."""
        return [one for one in self.sent if one.is_lost]

    def served(self):
        """Count whole answers by engine."""
        return Counter(one.served_by for one in self.so_far() if one.is_whole)


@contextlib.contextmanager
def steady(url, model, folder, *, rate=8.0, seed=7):
    """Keep up a load until left; then all answers are there."""
    traffic = Traffic(url, model, folder, rate, seed)
    try:
        yield traffic
    finally:
        traffic.stop()


async def main(url, model, rate, seed):
    """Send until told to stop."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    rng = random.Random(seed)
    began, under_way = time.monotonic(), set()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as http:
        for number in count():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(began + number / rate - time.monotonic()):
                    await told.wait()
            if told.is_set():
                break
            one = Sent(number=number, at=time.monotonic())
            task = asyncio.create_task(_send(http, url, _body(model, rng, f"{seed}.{number}"), one))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)


def _body(model, rng, name):
    """Ask about one of a few topics, whose beginning is cached, or about one of its own."""
    own = rng.random() < ALONE
    topic = name if own else f"{name.partition('.')[0]}-{rng.randrange(TOPICS)}"
    return {
        "model": model,
        "prompt": f"{topic} is the topic. " * rng.choice([20, 60, 120]) + f"Question {name}?",
        "max_tokens": rng.choice([4, 16, 32]),
        "stream": True,
    }


async def _send(http, url, body, one):
    try:
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            one.status = answer.status
            one.served_by = answer.headers.get("x-served-by")
            one.reason = answer.headers.get(REASON)
            said = await answer.read()
            one.is_whole = answer.status == 200 and said.rstrip().endswith(b"data: [DONE]")
            if not one.is_whole:
                one.problem = said[-300:].decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as error:
        one.problem = repr(error)
    print(json.dumps(asdict(one)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
