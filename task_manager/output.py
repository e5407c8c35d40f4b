"""The sending side of a subtask: spreads batches over channels and gathers small ones into mini-batches.

Rows leave a channel's buffer when ``batch_size`` of them are there, when ``batch_timeout_ms`` is over, or at once
when the receiver is idle. So a flood travels in few large batches, and a trickle does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from task_manager.channels import Channel, element_bytes
from weir.graph import Exchange
from weir.keys import hash_keys, key_bytes, key_groups, partition
from weir.records import KEY_HASH_COLUMN, ControlElement, batch_bytes


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When gathered rows leave; from config.json."""

    rows_max: int
    timeout_ms: float


class ChannelWriter:
    """The buffer in front of one channel."""

    def __init__(self, channel: Channel, policy: BatchPolicy) -> None:
        self.channel = channel
        self._policy = policy
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        #: Monotonic seconds at which the buffered rows must leave; infinity when there are none.
        self.deadline_s = float("inf")
        #: Seconds that sends waited for credit, since the start.
        self.waited_s = 0.0
        self.bytes_sent = 0
        self.batches_sent = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows; sends when there are enough of them, or when the receiver is idle. May wait for credit."""
        if not self._pending and (batch.num_rows >= self._policy.rows_max or self.channel.gate.idle):
            self._send(batch)
            return
        if not self._pending:
            self.deadline_s = time.monotonic() + self._policy.timeout_ms / 1e3
            self.channel.gate.wake_when_idle = True
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        if self._pending_rows >= self._policy.rows_max or self.channel.gate.idle:
            self.flush()

    def flush_if_due(self, now_s: float) -> None:
        """Send buffered rows if their time is over or the receiver is idle; never waits for credit."""
        gate = self.channel.gate
        if not self._pending:
            gate.check()
        elif gate.idle or (now_s >= self.deadline_s and gate.has_room(sum(map(batch_bytes, self._pending)))):
            self.flush()
        elif now_s >= self.deadline_s:
            # No credit: the credit that makes the receiver idle wakes the subtask; look again after a time-out.
            self.deadline_s = now_s + max(self._policy.timeout_ms, 1.0) / 1e3

    def flush(self) -> None:
        """Send buffered rows now; may wait for credit."""
        if not self._pending:
            return
        batches, self._pending, self._pending_rows = self._pending, [], 0
        self.deadline_s = float("inf")
        self.channel.gate.wake_when_idle = False
        self._send(batches[0] if len(batches) == 1 else pa.concat_batches(batches))

    def send_control(self, element: ControlElement) -> None:
        """Send a control element behind everything that was appended; may wait for credit."""
        self.flush()
        self.waited_s += self.channel.send(element)

    def _send(self, batch: pa.RecordBatch) -> None:
        self.waited_s += self.channel.send(batch)
        self.batches_sent += 1
        self.bytes_sent += element_bytes(batch)


class OutputEdge:
    """All channels from one subtask to the next stage."""

    def __init__(
        self,
        exchange: Exchange,
        writers: Sequence[ChannelWriter],
        key_columns: tuple[str, ...] = (),
        group_to_subtask: np.ndarray | None = None,
    ) -> None:
        """``group_to_subtask`` is needed with HASH: int32, shape (max_parallelism,), values < len(writers)."""
        self.writers = list(writers)
        self._exchange = exchange
        self._key_columns = key_columns
        self._group_to_subtask = group_to_subtask
        self._next = 0

    def emit(self, batch: pa.RecordBatch) -> None:
        """Spread one batch; may wait for credit."""
        if self._exchange is Exchange.HASH:
            self._emit_hashed(batch)
        elif self._exchange is Exchange.ROUND_ROBIN:
            self.writers[self._next].append(batch)
            self._next = (self._next + 1) % len(self.writers)
        else:
            for writer in self.writers:
                writer.append(batch)

    def _emit_hashed(self, batch: pa.RecordBatch) -> None:
        assert self._group_to_subtask is not None
        hashes = hash_keys(key_bytes(batch, self._key_columns))
        batch = _with_key_hash(batch, hashes)
        if len(self.writers) == 1:
            self.writers[0].append(batch)
            return
        groups = key_groups(hashes, len(self._group_to_subtask))
        order, offsets = partition(groups, self._group_to_subtask, len(self.writers))
        ordered = batch.take(pa.array(order))
        for index, writer in enumerate(self.writers):
            rows = int(offsets[index + 1] - offsets[index])
            if rows:
                writer.append(ordered.slice(int(offsets[index]), rows))


def _with_key_hash(batch: pa.RecordBatch, hashes: np.ndarray) -> pa.RecordBatch:
    """Set the key hash column, replacing one from an earlier exchange by other columns."""
    column = pa.array(hashes, type=pa.uint64())
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    field = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
    if index >= 0:
        return batch.set_column(index, field, column)
    return batch.append_column(field, column)


class Output:
    """Everything that leaves one subtask."""

    def __init__(self, edges: Sequence[OutputEdge]) -> None:
        self._edges = list(edges)
        self._writers = [writer for edge in edges for writer in edge.writers]
        self.rows = 0
        self.batches = 0

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch on every edge; may wait for credit (that is back-pressure)."""
        self.rows += batch.num_rows
        self.batches += 1
        for edge in self._edges:
            edge.emit(batch)

    def broadcast(self, element: ControlElement) -> None:
        """Send a control element on every channel, behind all rows; may wait for credit."""
        for writer in self._writers:
            writer.send_control(element)

    def flush_if_due(self) -> float:
        """Send what is due; gives the monotonic second at which the next rows are due (infinity: none)."""
        if not self._writers:
            return float("inf")
        now_s = time.monotonic()
        for writer in self._writers:
            writer.flush_if_due(now_s)
        return min(writer.deadline_s for writer in self._writers)

    @property
    def has_channels(self) -> bool:
        """Whether another stage follows."""
        return bool(self._writers)

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for credit since the start."""
        return sum(writer.waited_s for writer in self._writers)

    @property
    def bytes_sent(self) -> int:
        """Bytes of batches sent since the start."""
        return sum(writer.bytes_sent for writer in self._writers)

    def cancel(self) -> None:
        """Let a blocked sender go; called from another thread."""
        for writer in self._writers:
            writer.channel.gate.cancel()

    def close(self) -> None:
        """Free all channels."""
        for writer in self._writers:
            writer.channel.close()
