"""Implements ``ports.Background`` with asyncio: tasks, the loop's clock and threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("control_plane")

Result = TypeVar("Result")


class LoopBackground:
    """The background of a process; used in the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the caller, as ``ports.Background`` says."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(seconds)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run work in a thread, as ``ports.Background`` says."""
        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """End everything that still waits; called when the process ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an action on task managers failed", exc_info=task.exception())
