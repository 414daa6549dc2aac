"""What every test needs."""

import asyncio

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("leadsman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leadsman")


@pytest.fixture(scope="session", autouse=True)
def no_event_loop_by_accident() -> None:
    """Keep asyncio from making a loop that nobody closes.

    looptime asks for the current loop around each test; asyncio then makes one for the main
    thread, unless somebody has said that there is none.
    """
    asyncio.set_event_loop(None)
