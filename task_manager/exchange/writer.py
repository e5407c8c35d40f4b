"""The buffer in front of one channel: gathers small batches, keeps order, and never waits.

Rows leave when ``batch_size`` of them are there, when ``batch_timeout_ms`` is over, or at once when the receiver is
idle; and never more than the receiver has credit for. So a flood travels in few large batches, and a trickle
does not wait.

Whatever is bounded by rows is bounded by bytes too: a full buffer, a batch that is joined from small ones, and a batch
that leaves. Only a single row may be larger.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from task_manager.exchange.channels import Channel
from weir.errors import WireLimitError
from weir.rows.records import (
    JOINED_BYTES,
    WATERMARK_MAX_MS,
    Barrier,
    ControlElement,
    Element,
    EndOfStream,
    Idle,
    Watermark,
    batch_bytes,
    rough_bytes,
)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When gathered rows leave; from config.json."""

    rows_max: int
    timeout_ms: float
    #: Rows that have waited longer for credit hold their sender back.
    age_ms_max: float = float("inf")
    #: So do rows of this many bytes.
    bytes_max: float = float("inf")
    #: A barrier that has waited longer for the credit of the rows before it takes them along without.
    barrier_ms_max: float = float("inf")

    @property
    def whole_rows_max(self) -> int:
        """A batch of so many rows leaves as it is: halves of a large one mostly have a few more than ``rows_max``."""
        return self.rows_max + self.rows_max // 8


@dataclass(slots=True)
class _Waiting:
    """Rows that were not sent yet; never changed. To make a frozen one costs three times as much."""

    batch: pa.RecordBatch
    #: What they occupy, see ``rough_bytes``.
    size_bytes: int
    #: Whether that is more than an upper bound.
    is_exact: bool
    #: What is left of a batch that had too many bytes.
    is_rest: bool = False


class ChannelWriter:
    """Used by the sending subtask's thread only."""

    def __init__(self, channel: Channel, policy: BatchPolicy) -> None:
        self.channel = channel
        self._clock = channel.gate.clock
        self._policy = policy
        self._whole_rows_max = policy.whole_rows_max
        self._pending: deque[_Waiting | ControlElement] = deque()
        self._rows = 0
        self._bytes = 0
        self._ended = False
        #: Rows went without credit, and may not have been finished since.
        self._went_ahead = False
        #: (rows, monotonic second of their coming) of the rows that wait, oldest first.
        self._arrivals: deque[tuple[int, float]] = deque()
        #: Monotonic seconds at which the oldest pending rows must leave; infinity when there are none.
        self.deadline_s = float("inf")
        self.bytes_sent = 0
        #: Since when a barrier waits here, on the monotonic clock; infinity: none does.
        self._barrier_s = float("inf")

    @property
    def is_full(self) -> bool:
        """Return whether a whole batch waits for credit, or rows have done so for long: the subtask must not add more.

        Without the second, a slow receiver of small batches would let whole batches gather in front of every channel,
        and watermarks and barriers with them.
        """
        policy = self._policy
        if self._rows >= policy.rows_max or self._bytes >= policy.bytes_max:
            return True
        return self._rows > 0 and self.age_s(self._clock.monotonic_s()) * 1e3 > policy.age_ms_max

    @property
    def holds_up(self) -> bool:
        """Return whether the subtask must not add more: it is full, or as many rows wait as may be in flight besides.

        Also as long as barriers have taken far more rows along than the receiver has credit for: it may take none for
        long, and each checkpoint would hand it more.
        """
        if self._went_ahead:
            self._went_ahead = self.channel.gate.is_overdrawn
            if self._went_ahead:
                return True
        return self._rows > 0 and (self._rows >= self.channel.gate.rows_max or self.is_full)

    @property
    def batch_bytes_max(self) -> int:
        """Rows of more bytes are cut before they leave."""
        channel = self.channel
        return (
            self._within_message(channel.gate.bytes_max) if channel.shares_memory else self._joined_bytes_max
        )

    @property
    def _joined_bytes_max(self) -> int:
        """Rows are joined, and cut, to batches of at most so many bytes."""
        return self._within_message(self.channel.gate.batch_bytes_max)

    def _within_message(self, size_bytes: int) -> int:
        limit = self.channel.batch_bytes_max
        return size_bytes if limit is None else min(limit, size_bytes)

    @property
    def rows(self) -> int:
        """Rows that wait here."""
        return self._rows

    def age_s(self, now_s: float) -> float:
        """How long the oldest row has waited here; 0: none waits. Also read by other threads."""
        try:
            return now_s - self._arrivals[0][1]
        except IndexError:
            return 0.0

    @property
    def is_empty(self) -> bool:
        """Return whether everything was sent."""
        return not self._pending

    @property
    def has_ended(self) -> bool:
        """Return whether the end of the stream was queued, or sent: nothing can follow."""
        return self._ended

    def add(self, element: Element, size_bytes: int | None = None) -> None:
        """Queue rows or a control element after what is there already; :meth:`pump` sends.

        Nothing can follow the end of the stream; a second end is ignored.

        ``size_bytes``: ``batch_bytes`` of a batch, or nearly, where it is known already.
        """
        if self._ended:
            return
        if isinstance(element, EndOfStream):
            self._ended = True
        if isinstance(element, pa.RecordBatch):
            now_s = self._clock.monotonic_s()
            if not self._rows:
                self.deadline_s = now_s + self._policy.timeout_ms / 1e3
            self._arrivals.append((element.num_rows, now_s))
            self._append(element, size_bytes)
            return
        if isinstance(element, Barrier):
            self._barrier_s = min(self._barrier_s, self._clock.monotonic_s())
        elif isinstance(element, Watermark) and element.time_ms != WATERMARK_MAX_MS:
            self._forget_older()
        self._pending.append(element)

    def _forget_older(self) -> None:
        """Drop what a newer watermark replaces, but for the oldest: it leaves, however fast the newer ones follow.

        Rows between which watermarks stand cannot be joined, and must not be more than wait for credit.
        """
        told = [item for item in self._pending if isinstance(item, Watermark | Idle)]
        for item in told[1:]:
            self._pending.remove(item)

    def send_at_once(self, batch: pa.RecordBatch, size_bytes: int) -> bool:
        """Send rows as they are, if nothing waits before them or holds them up; False: :meth:`add` is to take them.

        What :meth:`add` and :meth:`pump` would do, in a third of the calls, which are what a small batch costs.
        """
        channel, rows = self.channel, batch.num_rows
        if self._pending or self._ended or rows > self._whole_rows_max:
            return False
        limit = channel.batch_bytes_max
        if (limit is not None and size_bytes > limit) or not channel.gate.lets_pass(rows, size_bytes):
            return False
        channel.send(batch, size_bytes)
        self.bytes_sent += size_bytes
        return True

    def pump(self, now_s: float, *, everything: bool = False) -> None:
        """Send what is due and has credit; with ``everything``, whatever has credit."""
        gate = self.channel.gate
        while self._pending:
            head = self._pending[0]
            if not isinstance(head, _Waiting):
                self._pending.popleft()
                if isinstance(head, Barrier):
                    self._barrier_s = float("inf")
                self.channel.send(head)
                continue
            has_control_behind = len(self._pending) > 1 and not isinstance(self._pending[-1], _Waiting)
            due = everything or has_control_behind or self.is_full or gate.idle or now_s >= self.deadline_s
            if not due or not self._send_rows():
                if (now_s - self._barrier_s) * 1e3 < self._policy.barrier_ms_max:
                    break
                self._send_without_credit()
        gate.wake_on_release = bool(self._pending)
        # A release may have come before the flag was set: look once more.
        if gate.wake_on_release and gate.is_empty:
            self.pump(now_s, everything=everything)
        if not self._pending:
            gate.check()

    def send_now(self) -> bool:
        """Send what waits whether or not there is credit, but for barriers, which are dropped.

        Returns:
            Whether the end of the stream was among it: it is not sent, and rows may follow again.

        Raises:
            ConnectionLostError: the receiver is gone.
            WireLimitError: a row is larger than a message may be.
        """
        ends = False
        while self._pending:
            if isinstance(self._pending[0], _Waiting):
                self._send_without_credit()
                continue
            element = self._pending.popleft()
            if isinstance(element, EndOfStream):
                ends, self._ended = True, False
            elif isinstance(element, Watermark | Idle):
                self.channel.send(element)
        self.deadline_s = self._barrier_s = float("inf")
        return ends

    def _send_without_credit(self) -> None:
        """Send one batch of leading rows."""
        self._went_ahead = True
        item = self._gather(self._rows, self._joined_bytes_max)
        assert item is not None, "rows wait"
        batch, size_bytes = self._cut(item)
        self._check_size(size_bytes)
        self._send(batch, size_bytes)
        self._forget_arrivals(batch.num_rows)

    def _append(self, batch: pa.RecordBatch, size_bytes: int | None) -> None:
        """Put rows after those that wait."""
        item = _measured(batch, size_bytes)
        self._pending.append(item)
        self._rows += batch.num_rows
        self._bytes += item.size_bytes

    def _send_rows(self) -> bool:
        """Send one batch of leading rows; False without credit."""
        gate = self.channel.gate
        item = self._gather(gate.rows_free, self._joined_bytes_max)
        if item is None:
            return False
        batch, size_bytes = self._cut(item)
        self._check_size(size_bytes)
        if not gate.has_room(size_bytes):
            self._put_back(_Waiting(batch, size_bytes, is_exact=True))
            return False
        self._send(batch, size_bytes)
        self._forget_arrivals(batch.num_rows)
        self.deadline_s = (
            self._clock.monotonic_s() + self._policy.timeout_ms / 1e3 if self._rows else float("inf")
        )
        return True

    def _check_size(self, size_bytes: int) -> None:
        limit = self.channel.batch_bytes_max
        if limit is not None and size_bytes > limit:
            raise WireLimitError(
                f"a record of {size_bytes} bytes is larger than a message may be: raise "
                f"taskManager.message_bytes_max ({limit})"
            )

    def _send(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        self.channel.send(batch, size_bytes)
        self.bytes_sent += size_bytes

    def _forget_arrivals(self, rows: int) -> None:
        """The oldest rows were sent."""
        while rows > 0 and self._arrivals:
            waiting, since_s = self._arrivals.popleft()
            rows -= waiting
        if rows < 0:
            self._arrivals.appendleft((-rows, since_s))

    def _gather(self, rows_free: int, bytes_max: int) -> _Waiting | None:
        """Take leading rows as one batch of one schema, at most as many as are free and the policy lets leave together.

        Joined ones have ``bytes_max`` at most.
        """
        parts: list[_Waiting] = []
        rows_max = self._leading_rows_max(rows_free)
        rows = size_bytes = 0
        # Small batches are joined: a message costs the same whatever is in it. Large ones would only be copied.
        while rows < rows_max and size_bytes < JOINED_BYTES and self._pending:
            head = self._pending[0]
            if not isinstance(head, _Waiting):
                break
            if parts and (
                head.size_bytes >= JOINED_BYTES
                or size_bytes + head.size_bytes > bytes_max
                or not head.batch.schema.equals(parts[0].batch.schema)
            ):
                break
            self._pending.popleft()
            self._bytes -= head.size_bytes
            if head.batch.num_rows > rows_max - rows:
                head, rest = _split(head, rows_max - rows)
                self._pending.appendleft(rest)
                self._bytes += rest.size_bytes
            parts.append(head)
            rows += head.batch.num_rows
            size_bytes += head.size_bytes
        if not parts:
            return None
        self._rows -= rows
        if len(parts) == 1:
            return parts[0]
        joined = pa.concat_batches([item.batch for item in parts])
        return _Waiting(joined, size_bytes, all(item.is_exact for item in parts))

    def _leading_rows_max(self, rows_free: int) -> int:
        """How many rows may leave together: the first batch whole, if it has hardly more than others."""
        head, rows_max = self._pending[0] if self._pending else None, self._policy.rows_max
        first = head.batch.num_rows if isinstance(head, _Waiting) else 0
        return min(rows_free, first if rows_max < first <= self._whole_rows_max else rows_max)

    def _cut(self, item: _Waiting) -> tuple[pa.RecordBatch, int]:
        """Put rows back from a batch that has too many bytes, but for one row; returns the rest and its bytes."""
        batch = item.batch
        size_bytes = item.size_bytes if item.is_exact else batch_bytes(batch)
        if not item.is_rest and size_bytes <= self.batch_bytes_max:
            return batch, size_bytes
        bytes_max = self._joined_bytes_max
        while size_bytes > bytes_max and batch.num_rows > 1:
            rows = min(max(1, batch.num_rows * bytes_max // size_bytes), batch.num_rows - 1)
            rest = _measured(batch.slice(rows))
            rest.is_rest = True
            self._put_back(rest)
            batch = batch.slice(0, rows)
            size_bytes = batch_bytes(batch)
        return batch, size_bytes

    def _put_back(self, item: _Waiting) -> None:
        self._pending.appendleft(item)
        self._rows += item.batch.num_rows
        self._bytes += item.size_bytes


def _measured(batch: pa.RecordBatch, size_bytes: int | None = None) -> _Waiting:
    """``size_bytes``: of the rows, if it is known."""
    if size_bytes is not None:
        return _Waiting(batch, size_bytes, is_exact=True)
    return _Waiting(batch, *rough_bytes(batch))


def _split(item: _Waiting, rows: int) -> tuple[_Waiting, _Waiting]:
    """The first rows, and the others; bytes are shared by rows."""
    batch = item.batch
    share = item.size_bytes * rows // batch.num_rows
    first = _Waiting(batch.slice(0, rows), share, is_exact=False, is_rest=item.is_rest)
    return first, _Waiting(batch.slice(rows), item.size_bytes - share, is_exact=False, is_rest=item.is_rest)
