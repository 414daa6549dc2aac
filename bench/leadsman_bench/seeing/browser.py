"""A real headless Chromium, where the machine has one, driven by Playwright.

Debian's `chromium-headless-shell` (or `chromium`) is taken: Playwright's own cannot be had from a
package registry.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.async_api import Browser

NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def missing() -> str | None:
    """Say what is missing for a browser; None: nothing."""
    if find_spec("playwright") is None:
        return "no playwright: pip install 'leadsman[dev]'"
    if _found() is None:
        return "no Chromium: apt-get install chromium-headless-shell"
    return None


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@asynccontextmanager
async def browser() -> AsyncIterator["Browser"]:
    """Run one until left. Raises OSError where there is none."""
    if (problem := missing()) is not None:
        raise OSError(problem)
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # Without a sandbox: it shows this machine's own page alone, and root may not have one.
        started = await playwright.chromium.launch(
            executable_path=_found(), args=["--no-sandbox", "--js-flags=--expose-gc"]
        )
        try:
            yield started
        finally:
            await started.close()
