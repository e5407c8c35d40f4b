"""The last entries of the logs of all processes of a job, for the page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from control_plane.link.task_managers import TaskManagers
from weir.clock import Clock
from weir.errors import ConnectionLostError
from weir.process.log_tail import ENTRIES_MAX, LOG_TAIL
from weir.rpc import control_pb2

#: An answer of a task manager is good for so long, however many look.
_FRESH_S = 0.5


class LogTails:
    """Answers of all processes; used in the event loop. A task manager is asked once at a time."""

    def __init__(self, clock: Clock, task_managers: TaskManagers) -> None:
        self._clock, self._task_managers = clock, task_managers
        self._answers: dict[str, tuple[float, Sequence[str]]] = {}
        self._asking: dict[str, asyncio.Task[Sequence[str]]] = {}

    def own(self, entries_max: int) -> Sequence[str]:
        """Return entries of this process, oldest first."""
        return LOG_TAIL.last(entries_max)

    async def of(self, address: str, entries_max: int) -> Sequence[str]:
        """Return entries of a task manager, oldest first.

        Raises:
            KeyError: none of this address holds a lease.
            ConnectionLostError, HandshakeError: it does not answer, or refuses.
        """
        if address not in self._task_managers.clients:
            raise KeyError(address)
        known = self._answers.get(address)
        if known is None or self._clock.monotonic_s() - known[0] >= _FRESH_S:
            asking = self._asking.get(address)
            if asking is None:
                asking = self._asking[address] = asyncio.ensure_future(self._ask(address))
                asking.add_done_callback(lambda _: self._asking.pop(address, None))
            # Who goes away does not take the answer from others.
            entries = await asyncio.shield(asking)
        else:
            entries = known[1]
        return entries[max(len(entries) - entries_max, 0) :]

    async def _ask(self, address: str) -> Sequence[str]:
        client = self._task_managers.clients.get(address)
        if client is None:
            raise ConnectionLostError(f"task manager {address} is gone")
        reply = await client.log_tail(control_pb2.LogTailRequest(entries_max=ENTRIES_MAX))
        entries = list(reply.entries)
        # Only of those that are there.
        self._answers = {
            each: it for each, it in self._answers.items() if each in self._task_managers.clients
        }
        self._answers[address] = (self._clock.monotonic_s(), entries)
        return entries
