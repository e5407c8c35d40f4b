"""The inbox of one subtask, in which all its channels end: what lies in it, and how the subtask waits for it.

How much that is, the credits of the producers bound (``channels.py``).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from weir import threads
from weir.clock import Clock, SystemClock
from weir.rows.records import JOINED_BYTES, Barrier, Element, EndOfStream, Idle, Watermark
from weir.types import ChannelId

#: More elements than an inbox ever has.
_MANY = 1 << 62


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """The first delivery of a channel that was opened while its consumer ran; never sent over the wire."""


#: In place of rows of a delivery that were taken out of it.
GONE = Idle()


@dataclass(slots=True)
class Delivery:
    """An element in an inbox. The consumer calls ``release`` once, when it has finished with it.

    Nothing else changes it, but that the consumer takes rows out before it releases them (:data:`GONE`).
    """

    channel: ChannelId
    element: Element | ChannelOpened
    release: Callable[[], None]
    #: About how many bytes a batch occupies, for metrics.
    size_bytes: int = 0
    #: The checkpoint that holds these rows already, because its barrier has overtaken them; 0: none.
    in_checkpoint: int = 0

    def split(self, rows: int) -> Delivery:
        """Keep the first rows of a batch that has more; returns the others, which now have its credit."""
        batch = self.element
        assert isinstance(batch, pa.RecordBatch)
        first_bytes = self.size_bytes * rows // batch.num_rows
        rest = Delivery(
            self.channel, batch.slice(rows), self.release, self.size_bytes - first_bytes, self.in_checkpoint
        )
        self.element, self.release, self.size_bytes = batch.slice(0, rows), no_release, first_bytes
        return rest


def no_release() -> None:
    """Release of a control element: it took no credit."""


@dataclass(slots=True)
class RowsWanted:
    """How much may be joined with a batch; what is taken is taken off."""

    rows: int
    #: Until there are so many more it pays to join; the last batch may have more than these, but is not large itself.
    bytes: int

    def take(self, delivery: Delivery) -> bool:
        """Take a batch off what is wanted; False: it is too large, or enough is there."""
        assert isinstance(delivery.element, pa.RecordBatch)
        is_large = delivery.size_bytes >= JOINED_BYTES
        if delivery.element.num_rows > self.rows or self.bytes <= 0 or is_large:
            return False
        self.rows -= delivery.element.num_rows
        self.bytes -= delivery.size_bytes
        return True


def take_rows(
    deliveries: deque[Delivery],
    wanted: RowsWanted,
    schema: pa.Schema,
    edge_index: int | None = None,
    but: Collection[ChannelId] = (),
) -> list[Delivery]:
    """Take leading batches of one schema off a queue, as many as are wanted.

    Only batches of other inputs are passed by, and stay in their order: those of one input are one batch then, and not
    as many as arrived in turn with others.

    ``edge_index``: the only input that they may come from; None: any. ``but``: channels that they may not come from.
    """
    taken: list[Delivery] = []
    passed: list[Delivery] = []
    while deliveries:
        element = deliveries[0].element
        if not isinstance(element, pa.RecordBatch) or deliveries[0].channel in but:
            break
        if edge_index is not None and deliveries[0].channel.edge_index != edge_index:
            passed.append(deliveries.popleft())
            continue
        if element.schema is not schema and not element.schema.equals(schema):
            break
        if not wanted.take(deliveries[0]):
            break
        taken.append(deliveries.popleft())
    if passed:
        deliveries.extendleft(reversed(passed))
    return taken


class Wave(enum.Enum):
    """Why :meth:`Inbox.await_wave` returned."""

    WHOLE = enum.auto()
    #: Something is missing, perhaps everything.
    TORN = enum.auto()
    #: Somebody called :meth:`Inbox.wake`.
    WOKEN = enum.auto()
    #: The consumer has other things to do before the wave ends; what has come of it goes on waiting for the rest.
    DUE = enum.auto()


class Lender(Protocol):
    """The thread of a link that leads to one inbox only, and lets the consumer read from the connection."""

    #: How many channels come by it.
    channels: int

    def read(self, wait_s: float) -> None:
        """Put in the inbox what is here, or comes in so many seconds."""

    def give_back(self) -> None:
        """Let the thread read again."""


class Inbox:
    """Input of one subtask: elements of all channels in arrival order. One consumer, many producers."""

    def __init__(self, clock: Clock | None = None) -> None:
        """``clock`` tells what came together; None: the machine's."""
        self._elements: deque[Delivery] = deque()
        self._condition = threads.condition_of_one()
        self._woken = False
        #: The consumer lets elements gather: one more does not wake it before there are so many.
        self._enough = 0
        #: Elements that had gathered when the consumer looked last, and were not taken yet: it does not wait for these.
        self._gathered = 0
        #: The channels whose watermark of this wave has come, with the monotonic second of that, and those with a
        #: barrier; the consumer waits for so many.
        self._heard: tuple[dict[ChannelId, float], set[ChannelId]] = {}, set()
        self._wave_inputs, self._apart_s = 0, float("inf")
        #: The monotonic second at which what has come of a wave counts, also without the rest; infinity: there is none.
        self._wave_ends_s = float("inf")
        self._clock = clock or SystemClock()
        #: Written by the consumer: it looks at a link that is lent to it, see :meth:`await_round`.
        self.borrows = False
        self._lender: Lender | None = None
        #: Channels whose end has come, whether it was taken or not.
        self.ended: set[ChannelId] = set()
        #: When each barrier that lies here came, monotonic seconds, oldest first.
        self.barriers_s: deque[float] = deque()
        #: Part of the consumer's time that goes into rows (0 to 1); written by the consumer, read with each release.
        self.busy_share = 1.0

    def __len__(self) -> int:
        return len(self._elements)

    def take_all(self) -> list[Delivery]:
        """Take everything that is here, in order; never waits."""
        with self._condition:
            taken = list(self._elements)
            self._elements.clear()
            self.barriers_s.clear()
            self._heard[1].clear()
            self._gathered = 0
            return taken

    @property
    def is_lent(self) -> bool:
        """Return whether the consumer is the one to read from a link."""
        return self._lender is not None

    @property
    def is_woken(self) -> bool:
        """Return whether somebody called :meth:`wake`, and the consumer has not heard of it."""
        return self._woken

    @property
    def has_gathered(self) -> bool:
        """Return whether there is something left of what had gathered, which the consumer takes without waiting."""
        return bool(self._elements) and self._gathered > 0

    def put(self, delivery: Delivery) -> None:
        """Append; never blocks, because the producers' credits bound the inbox."""
        # ``with`` would be two calls of Python more, for every batch.
        condition = self._condition
        condition.acquire()
        try:
            self._elements.append(delivery)
            if not isinstance(delivery.element, pa.RecordBatch):
                self._hear(delivery)
            if len(self._elements) >= self._enough or (self._wave_inputs and self._is_wave_here()):
                condition.notify()
        finally:
            condition.release()

    def _hear(self, delivery: Delivery) -> None:
        watermarks, barriers = self._heard
        if isinstance(delivery.element, Watermark):
            watermarks[delivery.channel] = self._clock.monotonic_s()
        elif isinstance(delivery.element, Barrier):
            barriers.add(delivery.channel)
            self.barriers_s.append(self._clock.monotonic_s())
        elif isinstance(delivery.element, EndOfStream):
            self.ended.add(delivery.channel)
        elif isinstance(delivery.element, ChannelOpened):
            self.ended.discard(delivery.channel)

    def _is_wave_here(self) -> bool:
        watermarks, barriers = self._heard
        if len(barriers) >= self._wave_inputs:
            return True
        if len(watermarks) < self._wave_inputs:
            return False
        first_s = max(watermarks.values()) - self._apart_s
        return sum(heard_s >= first_s for heard_s in watermarks.values()) >= self._wave_inputs

    def wake(self) -> None:
        """Let :meth:`poll` or :meth:`wait` return."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def wait_for_one(self, timeout_s: float) -> bool:
        """Wait until there is an element, :meth:`wake`, or ``timeout_s``; True: others may gather after it.

        Not after :meth:`wake`; and what had gathered earlier is to be taken without another wait, because control
        elements cut it into many pieces.
        """
        with self._condition:
            if not self._elements and not self._woken and timeout_s > 0:
                self._condition.wait(timeout_s)
            return bool(self._elements) and not self._woken and self._gathered <= 0

    def await_round(self, wait_s: float, enough: int, late_s: float = 0.0, *, borrows: bool = True) -> int:
        """Sleep until ``enough`` elements are there, :meth:`wake`, or ``wait_s``; returns how many are.

        Not at all if there is something left that had gathered earlier. :meth:`wait_for_one` and :meth:`gather` wake
        the consumer for the first of them too.

        With ``borrows`` a link may be lent to the consumer from now on, which then is the one to read from it, until
        :meth:`stop_borrowing`. What comes by such a link may come ``late_s`` later than all else.
        """
        with self._condition:
            if self._elements and self._gathered > 0:
                return len(self._elements)
            self.borrows = self.borrows or borrows
            lender = self._lender
            others = enough if lender is None else enough - lender.channels
            if others > 0:
                self._gather(wait_s, others)
            if lender is None:
                # It may have been lent meanwhile.
                lender = self._lender
            if lender is None or self._woken:
                return len(self._elements)
        lender.read(0.0 if others > 0 else wait_s)
        if 0 < len(self._elements) < enough:
            lender.read(late_s)
        self._gathered = len(self._elements)
        return self._gathered

    def lend(self, lender: Lender) -> bool:
        """Let the consumer read from a link; False: it does not want to. Called by the link's thread."""
        with self._condition:
            if not self.borrows or self._lender is not None:
                return False
            self._lender = lender
            if self._enough < _MANY:
                # It may wait for what nobody else reads now.
                self._condition.notify()
            return True

    def take_back(self, lender: Lender) -> None:
        """The link is not lent any more; called by its thread."""
        with self._condition:
            if self._lender is lender:
                # Unless the consumer asks for it again: it may wait for something else.
                self._lender, self.borrows = None, False

    def stop_borrowing(self) -> None:
        """Let others read from all links again; called by the consumer before it waits in any other way."""
        with self._condition:
            self.borrows = False
            lender, self._lender = self._lender, None
        if lender is not None:
            lender.give_back()

    def gather(self, wait_s: float, enough: int = _MANY) -> None:
        """Let elements gather, until there are ``enough``, or :meth:`wake`."""
        with self._condition:
            self._gather(wait_s, enough)

    def await_wave(
        self,
        rest_s: float,
        timeout_s: float,
        wave_s: float,
        inputs: int,
        apart_s: float = float("inf"),
        due_s: float = float("inf"),
    ) -> Wave:
        """Sleep until so many channels have each brought a watermark, or each a barrier.

        Without all of them, what is there counts ``wave_s`` after the first of it came, but not before ``rest_s``.

        Args:
            rest_s: sleep so long where they do not all come.
            timeout_s: and so long until something comes.
            wave_s: and so long for the others.
            inputs: how many channels there are to wait for.
            apart_s: the first and the last watermark of a wave come within this time. One too many, between two
                waves, is no part of the next: otherwise its channel would be a wave behind for as long as others
                come sooner.
            due_s: the consumer has other things to do at this monotonic second, whatever it waits for.
        """
        with self._condition:
            if self._elements and self._gathered > 0:
                return Wave.WHOLE
            if not self._elements:
                self._wave_ends_s = float("inf")
            # Where all are idle, the first that is not makes a wave.
            inputs = max(1, inputs)
            self._wave_inputs, self._enough, self._apart_s = inputs, _MANY, apart_s
            self._wait_for_wave(rest_s)
            self._enough = 0
            if not self._elements:
                self._wait_for_wave(timeout_s)
            self._enough = _MANY
            is_due = bool(self._elements) and self._wait_for_rest(wave_s, due_s)
            is_whole = self._is_wave_here()
            self._wave_inputs = self._enough = 0
            if self._woken:
                self._woken = False
                return Wave.WOKEN
            if is_due and not is_whole:
                return Wave.DUE
            self._wave_ends_s = float("inf")
            self._gathered = len(self._elements)
            for channels in self._heard:
                if len(channels) >= inputs:
                    channels.clear()
            return Wave.WHOLE if is_whole else Wave.TORN

    def _wait_for_rest(self, wave_s: float, due_s: float) -> bool:
        """Wait for what is missing of a wave; returns whether the consumer has other things to do before it ends."""
        now_s = self._clock.monotonic_s()
        ends_s = self._wave_ends_s = min(self._wave_ends_s, now_s + wave_s)
        # Without a detour by the clock, which would round it.
        self._wait_for_wave(min(wave_s, ends_s - now_s, due_s - now_s))
        # A consumer that always has other things to do takes what has come all the same.
        return due_s < ends_s and self._clock.monotonic_s() < ends_s

    def _wait_for_wave(self, wait_s: float) -> None:
        if wait_s > 0 and not self._woken and not self._is_wave_here():
            self._condition.wait(wait_s)

    def rest(self, wait_s: float) -> None:
        """Sleep whatever comes, until :meth:`wake`; not at all if there is something left that had gathered earlier."""
        with self._condition:
            if not self._elements or self._gathered <= 0:
                self._gather(wait_s, _MANY)

    def _gather(self, wait_s: float, enough: int) -> None:
        if not self._woken and len(self._elements) < enough:
            self._enough = enough
            self._condition.wait(wait_s)
            self._enough = 0
        self._gathered = len(self._elements)

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next element; None after ``timeout_s`` or :meth:`wake`."""
        condition = self._condition
        condition.acquire()
        try:
            if not self._elements and not self._woken and timeout_s > 0:
                condition.wait(timeout_s)
            self._woken = False
            self._gathered -= 1
            if not self._elements:
                return None
            delivery = self._elements.popleft()
            if self.barriers_s and isinstance(delivery.element, Barrier):
                self.barriers_s.popleft()
            return delivery
        finally:
            condition.release()

    def poll_rows(
        self,
        wanted: RowsWanted,
        schema: pa.Schema,
        edge_index: int | None = None,
        but: Collection[ChannelId] = (),
    ) -> list[Delivery]:
        """The batches at the head that :func:`take_rows` takes; never waits."""
        if not self._elements:
            return []
        condition = self._condition
        condition.acquire()
        try:
            first = self._elements[0]
            taken = take_rows(self._elements, wanted, schema, edge_index, but)
            self._gathered -= len(taken)
            if taken and self._elements and self._elements[0] is first:
                # What was passed by has gathered, too: nothing more is waited for.
                self._gathered = max(self._gathered, 1)
            return taken
        finally:
            condition.release()

    def poll_watermark(self) -> Delivery | None:
        """The element at the head if it is a watermark; never waits."""
        # Nobody else takes anything away.
        if not self._elements or not isinstance(self._elements[0].element, Watermark):
            return None
        with self._condition:
            self._gathered -= 1
            return self._elements.popleft()

    def wait(self, timeout_s: float) -> None:
        """Sleep until :meth:`wake`, whatever elements are there; called by a sender that needs credit."""
        with self._condition:
            if not self._woken:
                # An element that arrives ends the sleep too; the caller looks again and comes back.
                self._condition.wait(timeout_s)
            self._woken = False
