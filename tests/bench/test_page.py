"""The live page in a real headless Chromium."""

import re
from contextlib import asynccontextmanager

import msgspec
import pytest
from leadsman_bench.seeing.browser import browser, missing
from leadsman_bench.seeing.drawn import drawn
from leadsman_bench.seeing.shown import shown
from leadsman_extproc.explaining import Explained
from leadsman_fleet.page import server
from leadsman_fleet.page.history import MOST_POINTS
from leadsman_fleet.page.shown import Point

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True}
HOURS, TICKS = 24, 3600


@pytest.fixture(scope="module")
def site():
    """Three engines after a burst: some requests wait, some were refused."""
    made = shown(120, engines=3, rate=8.0)
    for point in drawn(300):
        made.history.served(point)
    return made


@asynccontextmanager
async def looking(site, **context):
    """The page with all that it fetched; whatever goes wrong in it fails the test."""
    wrong = []
    page_ = server.Page(lambda: {"default": site})
    async with server.serving(page_, "127.0.0.1:0") as port, browser() as chromium:
        page = await (await chromium.new_context(**context)).new_page()
        page.fetched = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: page.fetched.append(request.url))
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_selector("#workers tbody tr")
        yield page
    assert wrong == []


async def text(page, selector):
    return re.sub(r"\s+", " ", await page.inner_text(selector))


async def test_the_page_shows_the_fleet_the_predictions_and_the_refusals(site):
    async with looking(site) as page:
        rows = [await text(page, f"#workers tbody tr >> nth={i}") for i in range(3)]
        figures, reasons = await text(page, "#figures"), await text(page, "#reasons tbody")
        bounds = await page.get_attribute("#scatter", "data-bounds")
        fetched = {url.split("/")[2] for url in page.fetched}
        here = page.url.split("/")[2]

    assert all("live" in row and "tokens" in row and "GPU" in row for row in rows)
    assert "workers ready 3 of 3" in figures
    assert "would wait too long" in reasons
    assert "30" in bounds.split()
    assert fetched == {here}


async def test_a_request_that_is_found_is_explained_as_the_command_does(site):
    [found, *_] = site.find("would_wait")
    told = msgspec.json.decode(site.explain(found.request), type=Explained)

    async with looking(site) as page:
        await page.fill("#like", "would_wait")
        await page.click("#search button")
        await page.click("#found li button >> nth=0")
        await page.wait_for_selector("dialog[open]")
        title, screen = await text(page, "#explained-title"), await text(page, "#screen")

    assert title == found.request
    for line in (told.verdict, told.asked, *told.because, *told.then):
        assert re.sub(r"\s+", " ", line) in screen
    for priced in told.prices:
        assert " ".join(cell for cell in priced.cells if cell) in screen


async def test_everything_can_be_done_by_keyboard(site):
    async with looking(site) as page:
        active = "document.activeElement"
        while await page.evaluate(f"{active}.id") != "like":
            await page.keyboard.press("Tab")
        await page.keyboard.type("would_wait")
        await page.keyboard.press("Enter")
        await page.wait_for_function(f"() => {active}.closest('#found') !== null")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("dialog[open]")
        await page.keyboard.press("Escape")
        await page.wait_for_selector("dialog[open]", state="detached")
        back = await page.evaluate(f"{active}.closest('#found') !== null")
        while await page.evaluate(f"{active}.id") != "scatter":
            await page.keyboard.press("Tab")
        await page.keyboard.press("ArrowLeft")
        latest = await text(page, "#picked")
        await page.keyboard.press("ArrowLeft")
        before = await text(page, "#picked")
        outline = await page.evaluate(f"getComputedStyle({active}).outlineStyle")
        while await page.evaluate(f"{active}.closest('#workers tbody') === null"):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        chosen = await page.get_attribute("#workers tr:nth-child(2) button", "aria-pressed")

    assert (back, outline, chosen) == (True, "solid", "true")
    assert latest.startswith("r299 on w3: predicted")
    assert before.startswith("r298 on w2")


async def test_a_phone_shows_all_of_it_without_scrolling_sideways(site):
    async with looking(site, **PHONE) as page:
        wide, room = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        small = await page.evaluate(
            """[...document.querySelectorAll("button, input, select")]
              .map((one) => [one.outerHTML, one.getBoundingClientRect()])
              .filter(([, { width, height }]) => width && (width < 24 || height < 24))
              .map(([html]) => html)"""
        )
        label = await page.evaluate(
            "getComputedStyle(document.querySelector('#workers td'), '::before').content"
        )

    assert wide <= room
    assert small == []
    assert label == '"Worker"'


async def test_dark_and_light_can_both_be_read(site):
    contrasts = """() => {
      const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number)
        .map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (node) => { for (; node; node = node.parentElement) {
        const paint = getComputedStyle(node).backgroundColor;
        if (!/, 0\\)$|^color/.test(paint)) return paint; } };
      return [...document.querySelectorAll("h1, h2, dt, dd, th, td *, label, p, button")]
        .filter((node) => node.offsetParent && node.textContent.trim())
        .map((node) => [light(getComputedStyle(node).color), light(behind(node))])
        .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
    }"""
    grounds, marks = set(), set()
    async with looking(site) as page:
        for scheme in ("dark", "light"):
            await page.emulate_media(color_scheme=scheme)
            await page.wait_for_timeout(100)
            assert min(await page.evaluate(contrasts)) >= 4.5
            grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
            marks.add(await page.evaluate("leadsman.scatter.canvas.toDataURL()"))

    assert (len(grounds), len(marks)) == (2, 2)


async def test_a_mark_is_hollow_where_the_cache_was_not_as_credited(site):
    middles = {}
    async with looking(site) as page:
        for matched in (True, False):
            middles[matched] = await page.evaluate(
                """(matched) => {
                  const { scatter, store } = leadsman, ring = store.points;
                  ring.came = 0;
                  ring.add(["x", 1e9, "w", 0.3, 2.0, null, null, null, null, matched]);
                  scatter.show(ring, []);
                  const { x, y } = scatter.scale(), at = [x(0.3) | 0, y(2.0) | 0];
                  const seen = (...place) => [...scatter.to.getImageData(...place, 1, 1).data];
                  return [seen(...at), seen(at[0] + 3, at[1])].map((pixel) => pixel.slice(0, 3));
                }""",
                matched,
            )

    blue = pytest.approx([31, 111, 235], abs=3)
    assert middles[True] == [blue, blue]
    assert middles[False] == [[255, 255, 255], blue]


async def test_what_is_new_appears_by_itself_and_as_text_alone(site):
    evil = "<img src=x onerror=alert(1)>"
    site = server.Site(fleet=site.fleet, clock=site.clock, find=site.find, explain=site.explain)
    async with looking(site) as page:
        shown_before = await page.evaluate("leadsman.store.points.came")
        site.history.served(
            Point(request=evil, at=1.0, worker=evil, predicted=1.0, actual=2.0, predicted_wait=0.5)
        )
        await page.wait_for_function(f"() => leadsman.store.points.came === {shown_before + 1}")
        await page.click("#predictions summary")
        await page.wait_for_selector("#latest tbody tr")
        row = await text(page, "#latest tbody tr:first-child")
        images = await page.evaluate("document.images.length")

    assert row.startswith(f"{evil} {evil} 1.00 s 2.00 s")
    assert images == 0


async def test_a_day_of_traffic_leaves_no_more_behind_than_an_hour(site):
    """Ten points and all workers a second; every hour two workers go and others come."""
    hour = """([hour, ticks]) => {
      const names = Array.from({ length: 8 }, (_, k) => `w${2 * hour + k}:8000`);
      const speed = { curve: [0.05, 1e-4, 1e-10], curve_from: "own", now: [0, 0.01, 1e-4, 1e-10],
        now_from: "own", step_tokens: 8192, samples: [[1000, 0.2]] };
      const told = Array.from({ length: 60 }, (_, i) => JSON.stringify({
        workers: names.map((worker) => ({ worker, model: "m", ready: true, trust: "live",
          reason: "history is complete", unheard: 0.1, queued_tokens: i, queued_requests: 1,
          wait: i % 7, in_flight: 3, slots: 8, running: 2, waiting: 1,
          cache: [{ tier: "GPU", tokens: i, room: 40000 }] })),
        speeds: i ? {} : Object.fromEntries(names.map((name) => [name, speed])),
        points: Array.from({ length: 10 }, (_, k) => [`r${hour}-${i}-${k}`, 2e9, names[k % 8],
          1 + k, 1.1 + k, 30, 1, 1, 20, k > 0]),
        buckets: [{ at: 0, admitted: 9, refused: { overloaded: i % 10 } }] }));
      for (let i = 0; i < ticks; i++) {
        const tick = JSON.parse(told[i % 60]);
        tick.at = 2e9 + hour * 3600 + i;
        tick.buckets[0].at = tick.at - tick.at % 10;
        leadsman.take(tick);
      }
      return new Promise(requestAnimationFrame).then(() => leadsman.draw());
    }"""
    sizes, nodes = [], []
    async with looking(site) as page:
        cdp = await page.context.new_cdp_session(page)
        await page.evaluate("leadsman.source.close()")
        for number in range(HOURS):
            await page.evaluate(hour, [number, TICKS])
            if number in (1, HOURS - 1):
                await cdp.send("HeapProfiler.collectGarbage")
                sizes.append((await cdp.send("Runtime.getHeapUsage"))["usedSize"])
                counters = await cdp.send("Memory.getDOMCounters")
                nodes.append((counters["nodes"], counters["jsEventListeners"]))
        kept = await page.evaluate(
            """(({ points, buckets, speeds }) =>
              [points.came, points.length, buckets.length, points.names.length, speeds.size]
            )(leadsman.store)"""
        )

    came, points, buckets, names, speeds = kept
    assert came >= HOURS * TICKS * 10
    assert (points, speeds) == (MOST_POINTS, 8)
    assert buckets <= 361
    assert names < 4096
    assert sizes[1] < sizes[0] + 1_000_000
    assert nodes[1][0] <= nodes[0][0] + 50
    assert nodes[1][1] <= nodes[0][1] + 10
