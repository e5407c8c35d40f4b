"""The last entries of the logs of all processes of a job, for the page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from control_plane.link.task_managers import TaskManagers
from weir.clock import Clock
from weir.errors import ConnectionLostError
from weir.process.log_tail import ENTRIES_MAX, LOG_TAIL, LogEntry
from weir.rpc import control_pb2

#: An answer of a task manager is good for so long, however many look.
_FRESH_S = 0.5


class LogTails:
    """Answers of all processes; used in the event loop. A task manager is asked once at a time."""

    def __init__(self, clock: Clock, task_managers: TaskManagers) -> None:
        self._clock, self._task_managers = clock, task_managers
        self._answers: dict[str, tuple[float, Sequence[LogEntry]]] = {}
        self._asking: dict[str, asyncio.Task[Sequence[LogEntry]]] = {}

    def own(self, entries_max: int, *, with_audit: bool) -> Sequence[str]:
        """Return the last entries of this process, oldest first.

        Args:
            entries_max: so many at most.
            with_audit: also those that tell who did what.
        """
        return _shown(LOG_TAIL.last(ENTRIES_MAX), entries_max, with_audit=with_audit)

    async def of(self, address: str, entries_max: int, *, with_audit: bool) -> Sequence[str]:
        """Return the last entries of a task manager, as :meth:`own` does.

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
        return _shown(entries, entries_max, with_audit=with_audit)

    async def _ask(self, address: str) -> Sequence[LogEntry]:
        client = self._task_managers.clients.get(address)
        if client is None:
            raise ConnectionLostError(f"task manager {address} is gone")
        reply = await client.log_tail(control_pb2.LogTailRequest(entries_max=ENTRIES_MAX))
        audit = set(reply.audit_places)
        entries = [LogEntry(text, place in audit) for place, text in enumerate(reply.entries)]
        # Only of those that are there.
        self._answers = {
            each: it for each, it in self._answers.items() if each in self._task_managers.clients
        }
        self._answers[address] = (self._clock.monotonic_s(), entries)
        return entries


def _shown(entries: Sequence[LogEntry], entries_max: int, *, with_audit: bool) -> Sequence[str]:
    texts = [entry.text for entry in entries if with_audit or not entry.is_audit]
    return texts[max(len(texts) - entries_max, 0) :]
