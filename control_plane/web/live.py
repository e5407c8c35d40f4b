"""``/live``: what the page shows, once a second, to all who look; made once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import orjson

from control_plane.composition import ControlPlane
from control_plane.web.status_views import status_view

#: Pages that are open at a time; each is sent the whole status once a second.
VIEWERS_MAX = 32
_MARKS = 20
#: The newest ones: only these change.
_CHECKPOINTS = 3


class Live:
    """Streams of an HTTP server, in its event loop. Without viewers nothing is made."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._viewers = 0
        self._moment = b""
        #: Grows with each moment.
        self._number = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        control_plane.watcher.listeners.append(self._look)

    @property
    def is_full(self) -> bool:
        """Whether as many look as may."""
        return self._viewers >= VIEWERS_MAX

    def close(self) -> None:
        """Let all streams end, so that the server can."""
        self._is_closed = True
        self._changed.set()

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events, the first one at once; a viewer that is slow misses moments and queues none."""
        self._viewers += 1
        try:
            if self._viewers == 1:
                self._make()
            seen = -1
            while not self._is_closed:
                if seen != self._number:
                    seen = self._number
                    yield self._moment
                    continue
                await self._changed.wait()
        finally:
            self._viewers -= 1

    def _look(self) -> None:
        if self._viewers:
            self._make()
            self._changed.set()
            # Who waits is woken; the next moment is waited for anew.
            self._changed = asyncio.Event()

    def _make(self) -> None:
        # The page shows nothing by pairs of subtasks, which would be nine tenths of a job with 200 subtasks.
        status = status_view(self._control_plane, with_inputs=False).model_dump_json().encode()
        rest = orjson.dumps(self._rest())
        self._moment = b'data: {"status":%s,%s\n\n' % (status, rest[1:])
        self._number += 1

    def _rest(self) -> dict[str, Any]:
        control_plane = self._control_plane
        history, records = control_plane.watcher.history, control_plane.checkpointer.machine.records
        current = control_plane.rescaler.log.to_list()[:1]
        return {
            "point": history.latest(),
            "marks": [asdict(mark) for mark in list(history.marks)[-_MARKS:]],
            # A page has the earlier ones; to ask for all of them with each change would cost as much as the status.
            "checkpoints": [
                control_plane.checkpointer.view(record).model_dump() for record in records[:_CHECKPOINTS]
            ],
            # What changes when a page has to ask for the list again.
            "rescales_at": [str(value) for value in current[0].values()] if current else [],
            "profile_at": control_plane.profiler.version,
            "drains_at": [f"{it.task_manager} {it.state}" for it in control_plane.drainer.drains.values()],
        }
