"""`leadsman bench page`: frames a second that the live page draws, in a real headless Chromium.

The page holds as many points as it ever does, and gets more with every frame, so each frame draws
all of them anew. Frames are counted in the browser's own trace: those that its renderer drew.
Beside it, in the same browser, a page that changes only its colour: the most that there is here.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from leadsman.fleet import Fleet
from leadsman_fleet.page import server
from leadsman_fleet.page.history import MOST_POINTS, History

from leadsman_bench.seeing.browser import browser
from leadsman_bench.seeing.drawn import drawn

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FRAME: Final = "DirectRenderer::DrawFrame"
_EVERY_FRAME: Final = """
(seconds) => new Promise((done) => {
  const end = performance.now() + 1000 * seconds, step = STEP;
  let i = 0;
  const frame = () => {
    step(i++);
    performance.now() < end ? requestAnimationFrame(frame) : done();
  };
  requestAnimationFrame(frame);
})
"""
_POINTS: Final = """
(i) => leadsman.take({ at: 1e9 + i, workers: [], speeds: {}, buckets: [],
  points: Array.from({ length: 30 }, (_, k) => {
    const p = 10 ** (3 * Math.random() - 1.5);
    return [`n${i}-${k}`, 1e9 + i, `w${k % 8}`, p, p * (0.9 + 0.3 * Math.random()), 30, p, p, null,
      Math.random() > 0.02];
  }) })
"""
_COLOUR: Final = """(i) => { document.body.style.background = `rgb(${i % 256} 0 0)`; }"""


def main(argv: list[str]) -> int:
    """Measure, and print the figures; exit status 2 where there is no browser."""
    parser = argparse.ArgumentParser(prog="leadsman bench page", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of the two")
    arguments = parser.parse_args(argv)
    try:
        found = asyncio.run(measure(arguments.seconds))
    except OSError as error:
        print(f"leadsman bench page: {error}", file=sys.stderr)
        return 2
    for name, value in found.items():
        print(f"{name:<32}{value:10.1f}")
    return 0


async def measure(seconds: float) -> Mapping[str, float]:
    """Draw for so long, twice."""
    history = History()
    for point in drawn(MOST_POINTS):
        history.served(point)
    history.news()
    site = server.Site(fleet=Fleet(), clock=time.monotonic, history=history, find=lambda _: ())
    shown = server.Page(lambda: {"bench": site})
    async with server.serving(shown, "127.0.0.1:0") as port, browser() as chromium:
        page = await chromium.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_function(f"() => leadsman?.store?.points.length === {MOST_POINTS}")
        rate = await _rate(chromium, page, _POINTS, seconds)
        blank = await chromium.new_page()
        most = await _rate(chromium, blank, _COLOUR, seconds)
    return {"points": MOST_POINTS, "frames a second": rate, "of a page that is empty": most}


async def _rate(chromium: "Browser", page: "Page", step: str, seconds: float) -> float:
    await chromium.start_tracing(page=page, categories=["viz"])
    await page.evaluate(_EVERY_FRAME.replace("STEP", step.strip()), seconds)
    trace: Mapping[str, Any] = msgspec.json.decode(await chromium.stop_tracing())
    frames: int = sum(event["name"] == FRAME for event in trace["traceEvents"])
    return frames / seconds
