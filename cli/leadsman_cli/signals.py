"""Waits for a process to be told to stop."""

import asyncio
import signal


class ToldToStop:
    """Listens for SIGTERM and SIGINT from when it is made; make it before saying to be ready."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told.set)

    async def wait(self, *tasks: asyncio.Task[None]) -> None:
        """Return once told; where a task ends before, with its result."""
        waiting = asyncio.create_task(self._told.wait())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in tasks:
            if task.done():
                task.result()
