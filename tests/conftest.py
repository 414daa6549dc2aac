"""What every test needs."""

import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_event_loop_by_accident() -> None:
    """Keep asyncio from making a loop that nobody closes.

    looptime asks for the current loop around each test; asyncio then makes one for the main
    thread, unless somebody has said that there is none.
    """
    asyncio.set_event_loop(None)
