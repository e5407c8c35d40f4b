"""What comes behind the route markers of its channels, while key groups move to a subtask or away from it.

An owner's watermark stands still while they move, and rows are processed all the same. For most steps that is no
matter. But one that tells results early, or again for late rows, or fires timers between rows, would have rows before
what is due before them: it would tell fewer results, of more rows. So such a step takes nothing of a channel behind its
marker until its groups have moved, and the watermark goes on as ever: it cannot pass those of the markers.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from task_manager.exchange.inbox import Delivery
from weir.types import ChannelId


class BehindMarkers:
    """Used by the subtask's thread. What is put aside keeps its credit, so the senders' credits bound it."""

    def __init__(self) -> None:
        #: Channels whose marker has come; every element asks whether there are any.
        self.channels: set[ChannelId] = set()
        #: Groups come or go, or have; else nobody has to wait for all markers.
        self.groups_move = False
        self._aside: list[Delivery] = []

    def put_aside(self, delivery: Delivery) -> bool:
        """Keep an element that comes behind the marker of its channel; False: take it now."""
        if delivery.channel not in self.channels:
            return False
        self._aside.append(delivery)
        return True

    def awaits_any(self, open_channels: Iterable[ChannelId]) -> bool:
        """Return whether the marker of one of these is still to come."""
        return not self.channels.issuperset(open_channels)

    def let_go(self) -> list[Delivery]:
        """The groups have moved: what was put aside, in order.

        First what channels say before their rows: where each was at its marker, or that it has ended.
        """
        first, rest = list[Delivery](), list[Delivery]()
        have_rows = set[ChannelId]()
        for item in self._aside:
            if isinstance(item.element, pa.RecordBatch):
                have_rows.add(item.channel)
            (rest if item.channel in have_rows else first).append(item)
        self.channels, self._aside, self.groups_move = set(), [], False
        return first + rest
