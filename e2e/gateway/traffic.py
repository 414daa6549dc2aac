"""Requests that go on while something is done to the cluster, and waiting for what is to come."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from .cluster import PATIENCE, Answer, Cluster

CALLERS = 4
LONG = {"stream": True, "max_tokens": 1500, "ignore_eos": True}
"""An answer of a second or more."""


@contextlib.asynccontextmanager
async def traffic(cluster: Cluster) -> AsyncIterator[list[Answer]]:
    """Have callers ask, short and long, until left; each then gets its last answer."""
    answers: list[Answer] = []
    over = asyncio.Event()

    async def call(body: dict) -> None:
        while not over.is_set():
            answers.append(await cluster.ask(body=body))

    callers = [asyncio.create_task(call({})) for _ in range(CALLERS)]
    callers += [asyncio.create_task(call(LONG)) for _ in range(2)]
    try:
        yield answers
    finally:
        over.set()
        await asyncio.gather(*callers)


def failed(answers: list[Answer]) -> list[Answer]:
    """Give those that were not served whole."""
    return [
        one
        for one in answers
        if one.status != 200
        or one.is_cut
        or (one.headers["content-type"].startswith("text/event-stream") and not is_whole(one))
    ]


def is_whole(answer: Answer) -> bool:
    return answer.body.endswith(b"data: [DONE]\n\n")


async def until(is_so: Callable[[], bool], say: Callable[[], object] = lambda: None) -> None:
    """Wait until it is so; asking may block."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(is_so):  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(say()) from None


async def until_answered(
    cluster: Cluster, is_so: Callable[[Answer], bool], *, ask=None, **asked
) -> Answer:
    """Ask, for a completion by default, until the answer is as it should be; gives it."""
    ask = ask or cluster.ask
    answer = None
    try:
        async with asyncio.timeout(PATIENCE):
            while answer is None or not is_so(answer):
                answer = await ask(**asked)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(answer) from None
    return answer
