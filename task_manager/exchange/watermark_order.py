"""Keeps watermarks after the rows of all channels of an edge, not only of their own.

A row that waits for credit on one channel can go to another consumer when a rescale switches its sender. If that
consumer had the watermark already that came after the row, the row would be late there. So a watermark, and that
nothing comes for now, leaves on all channels of an edge when every row before it has left on its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from task_manager.exchange.writer import ChannelWriter, Passing
from weir.rows.records import Idle, Watermark


class WatermarkOrder:
    """The order on one edge whose rows may change their channel; used by the sending subtask's thread only."""

    def __init__(self) -> None:
        #: What went out last on all channels: a new one learns it.
        self.watermark: Watermark | None = None
        self.idle: Idle | None = None
        self._writers: list[ChannelWriter] = []
        #: Stands in the writers for what is to go out next.
        self._passing: Passing | None = None
        #: What is to go out after that; only the newest counts.
        self._next: Watermark | Idle | None = None

    def tell(self, element: Watermark | Idle, writers: Iterable[ChannelWriter]) -> None:
        """Send it on all channels as soon as all rows that wait in ``writers`` have left."""
        self._writers = list(writers)
        if self._passing is not None:
            self._next = element
            return
        waiting = [writer for writer in self._writers if not writer.is_empty]
        if not waiting:
            self._send(element)
            return
        self._passing = Passing(element, len(waiting), self._passed)
        for writer in waiting:
            writer.add_passing(self._passing)

    def rows_come(self) -> None:
        """Rows are queued: that nothing comes is not true any more."""
        self.idle = None
        if self._passing is not None and isinstance(self._passing.element, Idle):
            self._passing.element = None
        if isinstance(self._next, Idle):
            self._next = None

    def take_back(self) -> Watermark | Idle | None:
        """The writers were emptied; returns what has yet to go out."""
        passing, self._passing = self._passing, None
        latest, self._next = self._next, None
        return latest or (None if passing is None else passing.element)

    def _passed(self, passing: Passing) -> None:
        if passing is not self._passing:
            return
        self._passing = None
        if passing.element is not None:
            self._send(passing.element)
        latest, self._next = self._next, None
        if latest is not None:
            self.tell(latest, self._writers)

    def _send(self, element: Watermark | Idle) -> None:
        if isinstance(element, Watermark):
            self.watermark, self.idle = element, None
        else:
            self.idle = element
        for writer in self._writers:
            if not writer.has_ended:
                # Whatever waits there came later.
                writer.channel.send(element)
