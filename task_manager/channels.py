"""Bounded, credit-controlled links between subtasks.

A producer takes a credit before it sends an element and gets it back when the consumer has *finished* the element,
so ``outstanding == 0`` means that the receiver is idle, and the sum of credits bounds the consumer's inbox.
Inside one process a batch is handed over by reference (:class:`LocalChannel`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from weir.errors import WeirError
from weir.records import Element, batch_bytes

#: How long a blocked thread sleeps before it looks again whether it was cancelled; credits wake it at once.
_RECHECK_S = 0.5


class CancelledError(WeirError):
    """The subtask was told to stop while it waited."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bound of what one channel may hold: a single element always passes."""

    elements_max: int
    bytes_max: int


class Wakeable(Protocol):
    """Something that sleeps until there is work; see :class:`Inbox`."""

    def wake(self) -> None:
        """End the sleep; may be called from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """One element in an inbox. The consumer calls ``release`` once, when it has finished with it."""

    channel_index: int
    element: Element
    release: Callable[[], None]


class Inbox:
    """Input of one subtask: elements of all channels in arrival order. One consumer, many producers."""

    def __init__(self) -> None:
        self._elements: deque[Delivery] = deque()
        self._condition = threading.Condition(threading.Lock())
        self._woken = False

    def __len__(self) -> int:
        return len(self._elements)

    def put(self, delivery: Delivery) -> None:
        """Append; never blocks, because the producers' credits bound the inbox."""
        with self._condition:
            self._elements.append(delivery)
            self._condition.notify()

    def wake(self) -> None:
        """Let :meth:`poll` return, with or without an element."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next element; None after ``timeout_s`` or :meth:`wake`."""
        with self._condition:
            if not self._elements and not self._woken and timeout_s > 0:
                self._condition.wait(timeout_s)
            self._woken = False
            return self._elements.popleft() if self._elements else None


class CreditGate:
    """The sender's count of what the receiver has not finished yet. One sender; releases from any thread."""

    def __init__(self, limits: ChannelLimits, sender: Wakeable) -> None:
        self._limits = limits
        self._sender = sender
        self._condition = threading.Condition(threading.Lock())
        self._elements = 0
        self._bytes = 0
        self._cancelled = False
        self._error: WeirError | None = None
        #: Set by the sender while it holds rows back: the release that makes the receiver idle then wakes it.
        self.wake_when_idle = False

    @property
    def idle(self) -> bool:
        """Whether the receiver has finished everything that was sent."""
        return self._elements == 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether an element of this size could be sent now."""
        return self._elements == 0 or (
            self._elements < self._limits.elements_max and self._bytes + size_bytes <= self._limits.bytes_max
        )

    def acquire(self, size_bytes: int) -> float:
        """Take a credit, waiting for it if need be. Returns the seconds waited.

        Raises:
            CancelledError: the subtask was told to stop.
            ConnectionLostError: the channel is broken.
        """
        with self._condition:
            waited_s = 0.0
            if not self.has_room(size_bytes):
                began_s = time.monotonic()
                while not (self.has_room(size_bytes) or self._cancelled or self._error):
                    self._condition.wait(_RECHECK_S)
                waited_s = time.monotonic() - began_s
            if self._error is not None:
                raise self._error
            if self._cancelled:
                raise CancelledError("the subtask was cancelled")
            self._elements += 1
            self._bytes += size_bytes
            return waited_s

    def release(self, elements: int, size_bytes: int) -> None:
        """Give credits back; called by the receiving side."""
        with self._condition:
            self._elements -= elements
            self._bytes -= size_bytes
            self._condition.notify()
            wake = self._elements == 0 and self.wake_when_idle
        if wake:
            self._sender.wake()

    def fail(self, error: WeirError) -> None:
        """Break the channel: the sender's next (or present) :meth:`acquire` raises ``error``."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify()
        self._sender.wake()

    def cancel(self) -> None:
        """Let a waiting sender go; called when its subtask is to stop."""
        with self._condition:
            self._cancelled = True
            self._condition.notify()

    def check(self) -> None:
        """Raise what :meth:`fail` was given, if anything."""
        if self._error is not None:
            raise self._error


class Channel(Protocol):
    """The sending end of a link."""

    gate: CreditGate

    def send(self, element: Element) -> float:
        """Send one element in order, waiting for credit. Returns the seconds waited.

        Raises:
            CancelledError: the subtask was told to stop.
            ConnectionLostError: the receiver is gone.
        """
        ...

    def close(self) -> None:
        """Free the link; the end of the stream, if there is one, was sent before."""
        ...


class LocalChannel:
    """To a subtask of the same process: batches go by reference."""

    def __init__(self, gate: CreditGate, inbox: Inbox, channel_index: int) -> None:
        self.gate = gate
        self._inbox = inbox
        self._channel_index = channel_index

    def send(self, element: Element) -> float:
        """Send one element in order, waiting for credit; see :class:`Channel`."""
        size_bytes = element_bytes(element)
        waited_s = self.gate.acquire(size_bytes)
        gate = self.gate
        self._inbox.put(Delivery(self._channel_index, element, lambda: gate.release(1, size_bytes)))
        return waited_s

    def close(self) -> None:
        """Nothing to free."""


def element_bytes(element: Element) -> int:
    """What an element counts against the byte bound of a channel: the rows of a batch, nothing else."""
    return batch_bytes(element) if isinstance(element, pa.RecordBatch) else 0
