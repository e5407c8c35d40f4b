"""The buffer in front of one channel: gathers small batches, keeps order, and never waits.

Rows leave when ``batch_size`` of them are there, when ``batch_timeout_ms`` is over, or at once when the receiver is
idle; and never more than the receiver has credit for. So a flood travels in few large batches, and a trickle
does not wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from task_manager.exchange.channels import Channel
from weir.errors import WireLimitError
from weir.records import Element, EndOfStream, Idle, Watermark, batch_bytes


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When gathered rows leave; from config.json."""

    rows_max: int
    timeout_ms: float
    #: Rows that have waited longer for credit hold their sender back.
    age_ms_max: float = float("inf")


class ChannelWriter:
    """Used by the sending subtask's thread only."""

    def __init__(self, channel: Channel, policy: BatchPolicy) -> None:
        self.channel = channel
        self._clock = channel.gate.clock
        self._policy = policy
        self._pending: deque[Element] = deque()
        self._rows = 0
        #: The batch added last, with its bytes, if they were given.
        self._measured: tuple[pa.RecordBatch, int] | None = None
        self._ended = False
        #: (rows, monotonic second of their coming) of the rows that wait, oldest first.
        self._arrivals: deque[tuple[int, float]] = deque()
        #: Monotonic seconds at which the oldest pending rows must leave; infinity when there are none.
        self.deadline_s = float("inf")
        self.bytes_sent = 0
        self.batches_sent = 0

    @property
    def is_full(self) -> bool:
        """Whether a whole batch waits for credit, or rows have done so for long: the subtask must not add more.

        Without the second, a slow receiver of small batches would let whole batches gather in front of every channel,
        and watermarks and barriers with them.
        """
        return self._rows >= self._policy.rows_max or (
            self._rows > 0 and self.age_s(self._clock.monotonic_s()) * 1e3 > self._policy.age_ms_max
        )

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
        """Whether everything was sent."""
        return not self._pending

    @property
    def has_ended(self) -> bool:
        """Whether the end of the stream was queued, or sent: nothing can follow."""
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
            self._rows += element.num_rows
            self._measured = None if size_bytes is None else (element, size_bytes)
        elif (
            isinstance(element, Watermark | Idle)
            and self._pending
            and isinstance(self._pending[-1], Watermark | Idle)
        ):
            # Only the newest of these counts, so a stalled channel does not gather them.
            self._pending.pop()
        self._pending.append(element)

    def pump(self, now_s: float, *, everything: bool = False) -> None:
        """Send what is due and has credit; with ``everything``, whatever has credit."""
        gate = self.channel.gate
        while self._pending:
            if not isinstance(self._pending[0], pa.RecordBatch):
                self.channel.send(self._pending.popleft())
                continue
            has_control_behind = len(self._pending) > 1 and not isinstance(self._pending[-1], pa.RecordBatch)
            due = everything or has_control_behind or self.is_full or gate.idle or now_s >= self.deadline_s
            if not due or not self._send_rows():
                break
        gate.wake_on_release = bool(self._pending)
        # A release may have come before the flag was set: look once more.
        if gate.wake_on_release and gate.is_empty:
            self.pump(now_s, everything=everything)
        if not self._pending:
            gate.check()

    def take_back(self) -> list[Element]:
        """Empty the buffer: what was not sent yet was promised to nobody and can go elsewhere."""
        elements = list(self._pending)
        self._pending.clear()
        self._arrivals.clear()
        self._rows = 0
        self.deadline_s = float("inf")
        self._ended = self._ended and not any(isinstance(element, EndOfStream) for element in elements)
        return elements

    def _send_rows(self) -> bool:
        """Send one batch of leading rows; False without credit."""
        gate = self.channel.gate
        batch = self._gather(min(gate.rows_free, self._policy.rows_max))
        if batch is None:
            return False
        batch, size_bytes = self._cut(batch)
        if not gate.has_room(size_bytes):
            self._put_back(batch)
            return False
        self.channel.send(batch, size_bytes)
        self.batches_sent += 1
        self.bytes_sent += size_bytes
        self._forget_arrivals(batch.num_rows)
        self.deadline_s = (
            self._clock.monotonic_s() + self._policy.timeout_ms / 1e3 if self._rows else float("inf")
        )
        return True

    def _forget_arrivals(self, rows: int) -> None:
        """The oldest rows were sent."""
        while rows > 0:
            waiting, since_s = self._arrivals.popleft()
            rows -= waiting
        if rows < 0:
            self._arrivals.appendleft((-rows, since_s))

    def _gather(self, rows_max: int) -> pa.RecordBatch | None:
        """Take up to ``rows_max`` leading rows as one batch of one schema."""
        parts: list[pa.RecordBatch] = []
        rows = 0
        while rows < rows_max and self._pending:
            head = self._pending[0]
            if not isinstance(head, pa.RecordBatch) or (parts and not head.schema.equals(parts[0].schema)):
                break
            self._pending.popleft()
            if head.num_rows > rows_max - rows:
                self._pending.appendleft(head.slice(rows_max - rows))
                head = head.slice(0, rows_max - rows)
            parts.append(head)
            rows += head.num_rows
        if not parts:
            return None
        self._rows -= rows
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Put rows back until the batch fits into a message; returns it and its bytes."""
        limit = self.channel.batch_bytes_max
        measured, self._measured = self._measured, None
        size_bytes = measured[1] if measured is not None and measured[0] is batch else batch_bytes(batch)
        while limit is not None and size_bytes > limit:
            if batch.num_rows == 1:
                raise WireLimitError(
                    f"a record of {size_bytes} bytes is larger than a message may be: raise "
                    f"taskManager.message_bytes_max ({limit})"
                )
            middle = batch.num_rows // 2
            self._put_back(batch.slice(middle))
            batch = batch.slice(0, middle)
            size_bytes = batch_bytes(batch)
        return batch, size_bytes

    def _put_back(self, batch: pa.RecordBatch) -> None:
        self._pending.appendleft(batch)
        self._rows += batch.num_rows
