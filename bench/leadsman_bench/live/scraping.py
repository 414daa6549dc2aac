"""What engines say of themselves while a policy runs: did the signals move that it reads?"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
from leadsman.units import Seconds

EVERY: Seconds = 0.5
NAMES = {
    "kv_pressure": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "queue_depth": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
}
"""AdmitPerf's names of signals, and what engines call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round over all engines at a Unix time: their means of each signal; None: nobody tells."""

    at: Seconds
    signals: dict[str, float | None]


@dataclass(slots=True)
class Scraper:
    """Asks engines twice a second. versions: of each, as it says itself; None: it does not."""

    engines: Sequence[str]
    samples: list[Sample] = field(default_factory=list)
    versions: list[str | None] = field(default_factory=list)

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=2.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            self.versions = [await _version(session, url) for url in self.engines]
            while True:
                pages = await asyncio.gather(*(_page(session, url) for url in self.engines))
                self.samples.append(Sample(at=time.time(), signals=signals(pages)))
                await asyncio.sleep(EVERY)


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/metrics") as answer:
            return await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    try:
        async with session.get(f"{url}/version") as answer:
            return str((await answer.json())["version"]) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
        return None


def signals(pages: Sequence[str]) -> dict[str, float | None]:
    """Give the mean of each signal over the engines that tell it, by their pages of metrics.

    Of several ranks on a page the mean is taken too: a share of a cache is no sum.
    """
    found: dict[str, float | None] = {}
    for signal, names in NAMES.items():
        values = [
            float(line.rpartition(" ")[2])
            for page in pages
            for line in page.splitlines()
            if line.partition("{")[0].partition(" ")[0] in names
        ]
        found[signal] = sum(values) / len(values) if values else None
    return found
