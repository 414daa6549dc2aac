"""What every test needs."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("leadsman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leadsman")


def pytest_configure():
    """Refuse to test what was compiled before its source was last changed."""
    root = Path(__file__).parent.parent
    layers = ("core", "engines", "fleet", "extproc")
    for compiled in [path for layer in layers for path in root.glob(f"{layer}/*/**/*.so")]:
        source = compiled.with_name(compiled.name.split(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            raise pytest.UsageError(f"{compiled} is older than its source: run make install")


@pytest.fixture(scope="session", autouse=True)
def no_event_loop_by_accident() -> None:
    """Keep asyncio from making a loop that nobody closes.

    looptime asks for the current loop around each test; asyncio then makes one for the main
    thread, unless somebody has said that there is none.
    """
    asyncio.set_event_loop(None)
