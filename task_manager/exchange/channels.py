"""Bounded, credit-controlled links between subtasks: what a sender needs of each, and the link within one process.

Batches take credit (``credits.py``) and give it back when the consumer has *finished* them, so the credits bound the
consumer's inbox. Control elements are small and rare and travel without. Inside one process a batch is handed over
by reference (:class:`LocalChannel`); a link to another process is ``peer_link.RemoteChannel``.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from task_manager.exchange.credits import CreditGate
from task_manager.exchange.inbox import Delivery, no_release
from task_manager.exchange.inbox import Inbox
from weir.rows.block import TextRoom
from weir.rows.records import Element, batch_bytes
from weir.types import ChannelId


class Channel(Protocol):
    """The sending end of a link."""

    gate: CreditGate
    #: Whether the consumer is in another process.
    is_remote: bool
    #: Bytes that one batch may have; larger ones must be cut. None: any.
    batch_bytes_max: int | None

    @property
    def shares_memory(self) -> bool:
        """Return whether the consumer reads large batches where they lie: they are there as soon as they are sent."""

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """Send one element after all earlier ones; never waits. The sender has looked at the gate before.

        To another process it goes with the next :meth:`flush`.

        ``size_bytes``: ``batch_bytes`` of a batch, or nearly, where the sender knows it already.

        Raises:
            ConnectionLostError: the receiver is gone.
        """

    def room_for_texts(self, rows: pa.RecordBatch, place: int, size_bytes: int) -> TextRoom | None:
        """Room for a column of texts of these rows, which lack it, from where they need not be copied; None: nowhere.

        Args:
            rows: they are sent next, with that column.
            place: of the column.
            size_bytes: room for the texts.
        """

    def flush(self) -> None:
        """Let what was sent go; called when nothing more is sent for now."""

    def close(self) -> None:
        """Free the link; the end of the stream, if there is one, was sent before."""


class LocalChannel:
    """A channel to a subtask of the same process: batches go by reference."""

    def __init__(self, gate: CreditGate, inbox: Inbox, channel: ChannelId) -> None:
        self.gate = gate
        self.is_remote = False
        self.shares_memory = True
        self.batch_bytes_max: int | None = None
        self._inbox = inbox
        self._channel = channel

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """Send one element; see :class:`Channel`."""
        if isinstance(element, pa.RecordBatch):
            size_bytes = batch_bytes(element) if size_bytes is None else size_bytes
            self.gate.take(element.num_rows, size_bytes)
            self._inbox.put(Delivery(self._channel, element, self._release_one, size_bytes))
        else:
            self._inbox.put(Delivery(self._channel, element, no_release))

    def _release_one(self) -> None:
        self.gate.release(1, self._inbox.busy_share)

    def room_for_texts(self, rows: pa.RecordBatch, place: int, size_bytes: int) -> TextRoom | None:
        """Return None: batches go by reference."""
        return None

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to free."""
