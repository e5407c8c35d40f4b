"""Bounded, credit-controlled links between subtasks: what a sender needs of each, and the link within one process.

Batches take credit (:class:`CreditGate`) and give it back when the consumer has *finished* them, so the credits bound
the consumer's inbox. Control elements are small and rare and travel without. Inside one process a batch is handed over
by reference (:class:`LocalChannel`); a link to another process is ``peer_link.RemoteChannel``.

Three bounds of what was sent and is not finished yet hold at once: elements, bytes, and *time*: rows in flight are
limited to what the receiver finishes in ``in_flight_ms``, as measured. A slow receiver so gets small batches, which
keeps latency and the length of a rescale short; a fast one is limited by elements and bytes only. A single row always
passes.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from task_manager.exchange.inbox import Delivery, Inbox, no_release
from weir.clock import Clock
from weir.errors import WeirError
from weir.rows.late_column import TextRoom
from weir.rows.records import Element, batch_bytes
from weir.types import ChannelId

#: A receiver with fewer batches in flight gets the next one at once, however few rows it has.
IDLE_BATCHES = 16
#: But only half as many if these are more bytes: larger batches then pay.
_IDLE_BYTES = 64 << 10
#: Rows in flight before anything is known of the receiver.
_ROWS_AT_FIRST = 128.0
#: How much a measurement may raise the bound at once, and lower it.
_GROWTH_MAX, _SHRINK_MAX = 4.0, 0.5
#: Intervals shorter than this say little about the receiver's rate.
_MEASURE_S_MIN = 0.0005
#: A receiver is not taken to be faster than this many times what it was seen to do.
_BUSY_SHARE_MIN = 0.02


class CancelledError(WeirError):
    """The subtask was told to stop while it waited."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bounds of what one channel may hold; from config.json."""

    elements_max: int
    bytes_max: int
    in_flight_ms: float


#: How many times as much as may be in flight may have been sent without credit.
_OVERDRAWN = 2


class Wakeable(Protocol):
    """Something that sleeps until there is work."""

    def wake(self) -> None:
        """End the sleep; may be called from any thread."""


class CreditGate:
    """The credit of a sender, whose thread takes it; the receiving side releases it from any thread."""

    def __init__(self, limits: ChannelLimits, sender: Wakeable, clock: Clock) -> None:
        #: Times of the whole channel.
        self.clock = clock
        self._limits = limits
        self._sender = sender
        self._lock = threading.Lock()
        #: (rows, bytes, monotonic second of sending) of every batch in flight, oldest first.
        self._in_flight: deque[tuple[int, int, float]] = deque()
        self._rows = 0
        self._bytes = 0
        self._rows_max = _ROWS_AT_FIRST
        self._measured_rows = 0
        self._measuring_since_s = 0.0
        self._error: WeirError | None = None
        #: Set by the sender while it holds rows back: every release then wakes it.
        self.wake_on_release = False

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is in flight: whatever comes next has credit, and no release will come."""
        return not self._in_flight

    @property
    def idle(self) -> bool:
        """Return whether the receiver has nothing to do, or so little that waiting for more rows would not pay.

        Credits come back gathered, so a few batches in flight may well be finished already.
        """
        batches = len(self._in_flight)
        return batches < IDLE_BATCHES // 2 or (batches < IDLE_BATCHES and self._bytes < _IDLE_BYTES)

    @property
    def rows_free(self) -> int:
        """How many rows may be sent now; 0: wait for a release. At least 1 when the receiver is idle."""
        if not self._in_flight:
            return max(1, int(self._rows_max))
        if len(self._in_flight) >= self._limits.elements_max or self._bytes >= self._limits.bytes_max:
            return 0
        return max(0, int(self._rows_max) - self._rows)

    @property
    def rows_max(self) -> int:
        """How many rows may be in flight, as the receiver is measured."""
        return max(1, int(self._rows_max))

    @property
    def is_overdrawn(self) -> bool:
        """Return whether twice as much is in flight as may be: it went without credit, ahead of barriers."""
        batches, limits = len(self._in_flight), self._limits
        if batches < 2:
            return False
        return (
            batches > _OVERDRAWN * limits.elements_max
            or self._rows > _OVERDRAWN * self.rows_max
            or self._bytes > _OVERDRAWN * limits.bytes_max
        )

    @property
    def rows(self) -> int:
        """Rows in flight."""
        return self._rows

    def age_s(self, now_s: float) -> float:
        """How long the oldest batch in flight is so; 0: there is none. Any thread may ask."""
        try:
            return now_s - self._in_flight[0][2]
        except IndexError:
            return 0.0

    @property
    def bytes_max(self) -> int:
        """Bytes that may be in flight."""
        return self._limits.bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """Rows of more bytes are to be cut: two batches are in flight at a time, so that the receiver need not wait.

        Not where memory is shared, and all of them fit: the next batch is at the receiver as soon as this one is done.
        """
        return max(1, self._limits.bytes_max // 2)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a batch of this size keeps the byte bound; anything fits when the receiver is idle."""
        return not self._in_flight or self._bytes + size_bytes <= self._limits.bytes_max

    def lets_pass(self, rows: int, size_bytes: int) -> bool:
        """Return whether a batch may be sent as it is and at once: the receiver is idle, and every bound holds.

        One call for what :attr:`idle`, :attr:`rows_free`, :attr:`batch_bytes_max` and :meth:`has_room` say.
        """
        batches = len(self._in_flight)
        if size_bytes > self._limits.bytes_max // 2:
            return False
        if not batches:
            return rows <= self._rows_max
        is_idle = batches < IDLE_BATCHES // 2 or (batches < IDLE_BATCHES and self._bytes < _IDLE_BYTES)
        return (
            is_idle
            and batches < self._limits.elements_max
            and self._rows + rows <= self._rows_max
            and self._bytes + size_bytes <= self._limits.bytes_max
        )

    def take(self, rows: int, size_bytes: int) -> None:
        """Note a batch as sent; the caller has looked at :attr:`rows_free` and :meth:`has_room`.

        Raises:
            ConnectionLostError: the channel is broken.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            now_s = self.clock.monotonic_s()
            if not self._in_flight:
                self._measuring_since_s = now_s
                self._measured_rows = 0
            self._in_flight.append((rows, size_bytes, now_s))
            self._rows += rows
            self._bytes += size_bytes

    def release(self, batches: int, busy_share: float = 1.0) -> None:
        """The receiver has finished the oldest batches; called by the receiving side.

        ``busy_share``: part of the receiver's time that goes into rows, 0 to 1. One that mostly waits can take more
        rows than it gets, however long the way to it and back is.
        """
        with self._lock:
            for _ in range(min(batches, len(self._in_flight))):
                rows, size_bytes, _ = self._in_flight.popleft()
                self._rows -= rows
                self._bytes -= size_bytes
                self._measured_rows += rows
            self._measure(busy_share)
        if self.wake_on_release:
            self._sender.wake()

    def fail(self, error: WeirError) -> None:
        """Break the channel: the sender's next :meth:`take` or :meth:`check` raises ``error``."""
        self._error = self._error or error
        self._sender.wake()

    def check(self) -> None:
        """Raise what :meth:`fail` was given, if anything."""
        if self._error is not None:
            raise self._error

    def _measure(self, busy_share: float) -> None:
        """Bound the rows in flight by what the receiver finishes in ``in_flight_ms``."""
        now_s = self.clock.monotonic_s()
        elapsed_s = now_s - self._measuring_since_s
        if elapsed_s < _MEASURE_S_MIN or not self._measured_rows:
            if not self._in_flight:
                # Finished sooner than can be measured: it takes more.
                self._rows_max = min(self._rows_max * _GROWTH_MAX, 1e9)
            return
        busy_s = elapsed_s * max(busy_share, _BUSY_SHARE_MIN)
        wanted = self._measured_rows / busy_s * self._limits.in_flight_ms / 1e3
        self._rows_max = min(max(wanted, self._rows_max * _SHRINK_MAX, 1.0), self._rows_max * _GROWTH_MAX)
        self._measuring_since_s = now_s
        self._measured_rows = 0


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
