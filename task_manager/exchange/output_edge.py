"""The channels from one subtask to one consumer stage: which rows go to which of them, also after a rescale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from task_manager.exchange.channels import Channel
from task_manager.exchange.divided_block import DividedBlock
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from task_manager.progress import ChannelQueue
from weir.keys.division import (
    HotRowCombiner,
    LateColumn,
    PartLimits,
    TextRoom,
    narrowed,
    split_by_owner,
    split_picked,
    with_key_hash,
)
from weir.plan.graph import Edge, Exchange
from weir.rows.records import (
    ControlElement,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
    plain_array,
)
from weir.types import SubtaskId

#: After rows have waited for a consumer, rows of hot keys are added up in so many batches. It relieves a consumer that
#: cannot keep up; in all it costs about as much of the processor as it saves.
_RELIEVED_BATCHES = 64
#: Of rows of which one in so many is sent, and more, all keys are hashed: that costs less than to gather keys first.
_PICKED_SHARE = 3


class OutputEdge:
    """All channels from one subtask to one consumer stage, by the consumer's subtask index."""

    def __init__(
        self,
        edge: Edge,
        channels: Mapping[int, Channel],
        policy: BatchPolicy,
        group_to_subtask: np.ndarray | None = None,
        combiner: HotRowCombiner | None = None,
    ) -> None:
        """``group_to_subtask`` is needed with HASH: int32, shape (max_parallelism,), keys of ``channels``.

        ``combiner``: adds up rows of hot keys; None: all rows are sent as they come.
        """
        self.edge = edge
        self._policy = policy
        self._combiner = combiner
        #: Batches in which rows of hot keys may still be added up.
        self._relieved = 0
        self._group_to_subtask = group_to_subtask
        self._writers = {index: ChannelWriter(channel, policy) for index, channel in channels.items()}
        #: In the order in which they are pumped.
        self.writers = self._in_order()
        self._next = 0
        #: What all channels were told last: a new one learns it.
        self._watermark: Watermark | None = None
        self._idle: Idle | None = None
        #: The latest block of :meth:`add_ahead`, as the table divides it.
        self._divided: DividedBlock | None = None

    def holds_up(self) -> bool:
        """Whether so many rows wait for credit that no more should be added; asked after :meth:`pump`."""
        for writer in self.writers:
            if writer.holds_up:
                self._relieved = _RELIEVED_BATCHES
                return True
        return False

    def _may_combine(self, rows: int) -> bool:
        """Whether rows of hot keys among so many are to be looked for, because a consumer cannot keep up."""
        if self._combiner is None or self._relieved == 0:
            return False
        self._relieved -= 1
        return self._combiner.is_due(rows)

    def queues(self, now_s: float) -> list[ChannelQueue]:
        """The channels on which rows wait; called by other threads."""
        queues = []
        for index, writer in list(self._writers.items()):
            gate = writer.channel.gate
            # One after the other: what is sent meanwhile may count twice, for the moment.
            if rows := writer.rows + gate.rows:
                age_s = max(writer.age_s(now_s), gate.age_s(now_s))
                queues.append(ChannelQueue(SubtaskId(self.edge.consumer_stage, index), rows, age_s))
        return queues

    def pump(self, now_s: float, *, everything: bool = False, holds: bool = False) -> None:
        """Send what is due and has credit; with ``everything``, whatever has credit.

        With ``holds``, what goes to other processes waits for :meth:`flush`.

        What goes to other processes goes before a consumer of this one is woken: that takes the GIL, for which whoever
        has written to a connection would wait.
        """
        writers = self.writers
        remote = 0
        for writer in writers:
            if not writer.channel.is_remote:
                break
            writer.pump(now_s, everything=everything)
            remote += 1
        if not holds:
            for writer in writers[:remote]:
                writer.channel.flush()
        for writer in writers[remote:]:
            writer.pump(now_s, everything=everything)

    def flush(self) -> None:
        """Let what was held go."""
        for writer in self.writers:
            if writer.channel.is_remote:
                writer.channel.flush()

    @property
    def consumer_indices(self) -> list[int]:
        """Subtask indices of the consumers."""
        return sorted(self._writers)

    def add(self, batch: pa.RecordBatch) -> None:
        """Queue one batch; never waits."""
        self._idle = None
        batch = narrowed(batch, self.edge.sent_columns)
        if self.edge.exchange is Exchange.HASH:
            if self._may_combine(batch.num_rows):
                self._add_looked_at(batch)
            else:
                self._add_hashed(*with_key_hash(batch, self.edge.key_columns))
        elif self.edge.exchange is Exchange.ROUND_ROBIN:
            self._next = (self._next + 1) % len(self.writers)
            self.writers[self._next].add(batch)
        else:
            for writer in self._writers.values():
                writer.add(batch)

    def add_picked(self, batch: pa.RecordBatch, rows: np.ndarray) -> None:
        """As :meth:`add`, of the rows with these numbers: int64, ascending, at least one."""
        is_divided = self.edge.exchange is Exchange.HASH and len(self._writers) > 1
        if not is_divided or _PICKED_SHARE * len(rows) < batch.num_rows:
            self.add(batch.take(plain_array(rows)))
            return
        if self._may_combine(len(rows)):
            self._add_looked_at(batch.take(plain_array(rows)))
            return
        assert self._group_to_subtask is not None
        self._idle = None
        batch = narrowed(batch, self.edge.sent_columns)
        parts = split_picked(batch, rows, self.edge.key_columns, self._group_to_subtask, self._writers)
        for index, part, size_bytes in parts:
            self._writers[index].add(part, size_bytes)

    def add_late(self, batch: pa.RecordBatch, late: LateColumn) -> None:
        """As :meth:`add`, of rows that lack a column."""
        if self._may_combine(batch.num_rows):
            self._add_looked_at(late.joined(batch))
            return
        if not self.divides_late or len(self._writers) == 1:
            self.add(late.joined(batch))
            return
        self._idle = None
        self._add_hashed(*with_key_hash(batch, self.edge.key_columns), late)

    @property
    def divides_late(self) -> bool:
        """Whether a column that comes late is read as it is divided: it is none of the key, and all are sent."""
        return self.edge.exchange is Exchange.HASH and not self.edge.is_narrowed

    def add_ahead(self, block: pa.RecordBatch, first: int, end: int, *, holds: bool = False) -> bool:
        """Send rows of a block of which the others come later, or queue them; never waits.

        With HASH the whole block is divided at once, and what has credit leaves at once, in the order of :meth:`pump`.

        Returns:
            Whether all of them left, so that :meth:`pump` has nothing to do with them.
        """
        if self.edge.exchange is not Exchange.HASH or len(self._writers) == 1:
            self.add(block.slice(first, end - first))
            return False
        self._idle = None
        divided = self._divide(block)
        all_left = True
        unflushed: list[Channel] = []
        for index, rows, size_bytes in divided.between(first, end):
            writer = self._writers[index]
            channel = writer.channel
            if not channel.is_remote:
                while unflushed:
                    unflushed.pop().flush()
            if not writer.send_at_once(rows, size_bytes):
                writer.add(rows, size_bytes)
                all_left = False
            elif channel.is_remote and not holds:
                unflushed.append(channel)
        while unflushed:
            unflushed.pop().flush()
        return all_left

    def divide_ahead(self, block: pa.RecordBatch) -> None:
        """Do what the first :meth:`add_ahead` of this block would need time for."""
        if self.edge.exchange is Exchange.HASH and len(self._writers) > 1:
            self._divide(block)

    def _divide(self, block: pa.RecordBatch) -> DividedBlock:
        divided = self._divided
        if divided is None or divided.block is not block:
            assert self._group_to_subtask is not None
            in_order = sorted(self._writers, key=lambda index: not self._writers[index].channel.is_remote)
            divided = self._divided = DividedBlock(block, self.edge, self._group_to_subtask, in_order)
        return divided

    def tell(self, element: ControlElement) -> None:
        """Queue a control element on every channel, after all rows; never waits."""
        if isinstance(element, Watermark):
            self._watermark, self._idle = element, None
        elif isinstance(element, Idle):
            self._idle = element
        for writer in self.writers:
            writer.add(element)

    def reroute(
        self,
        version: int,
        group_to_subtask: np.ndarray | None,
        added: Mapping[int, Channel],
        retired: Sequence[int],
    ) -> None:
        """Switch to other consumers at a batch boundary; see docs/design/0001.

        Rows that were not sent yet leave now, whether there is credit or not, for whom they were meant: later ones,
        which say how far time has come, may have reached the others. What waits for a consumer is bounded, so this
        is, too.

        To a stage with key groups a route marker separates old from new rows on every channel, also of an input without
        keys: owners wait for those of all inputs. The end of the stream goes to retired consumers. Where the stream has
        ended already nothing follows. New consumers learn the watermark that the others have.
        """
        # Barriers among it are dropped: their checkpoint was given up for the rescale.
        ended = [writer.send_now() for writer in self.writers]
        new = {index: ChannelWriter(channel, self._policy) for index, channel in added.items()}
        self._writers.update(new)
        self.writers = self._in_order()
        if group_to_subtask is not None:
            for writer in self.writers:
                if not writer.has_ended:
                    writer.channel.send(RouteMarker(version))
        for index in retired:
            writer = self._writers.pop(index)
            if not writer.has_ended:
                writer.channel.send(EndOfStream())
            writer.channel.close()
        self.writers = self._in_order()
        self._group_to_subtask = group_to_subtask
        self._divided = None
        self._next = 0
        for writer in new.values():
            for element in (self._watermark, self._idle):
                if element is not None:
                    writer.channel.send(element)
        if any(ended):
            self.tell(EndOfStream())

    def _in_order(self) -> list[ChannelWriter]:
        """Those to other processes first: their rows have the longer way. Otherwise by consumer index."""
        by_index = [self._writers[index] for index in sorted(self._writers)]
        return sorted(by_index, key=lambda writer: not writer.channel.is_remote)

    def _add_hashed(self, batch: pa.RecordBatch, hashes: np.ndarray, late: LateColumn | None = None) -> None:
        """Queue each row where its hash (uint64, shape (rows,), also in the batch) leads.

        ``late``: a column that the batch lacks; there are several consumers.
        """
        assert self._group_to_subtask is not None
        if len(self._writers) == 1:
            next(iter(self._writers.values())).add(batch)
            return
        limits = None
        if late is not None:
            bytes_max = min(writer.batch_bytes_max for writer in self.writers)
            limits = PartLimits(self._policy.whole_rows_max, bytes_max)
        for index, rows, size_bytes in split_by_owner(
            batch, hashes, self._group_to_subtask, self._writers, late, self._room_for_texts, limits
        ):
            self._writers[index].add(rows, size_bytes)

    def _add_looked_at(self, batch: pa.RecordBatch) -> None:
        """Queue one batch, in which the rows of each hot key are added up."""
        assert self._group_to_subtask is not None
        assert self._combiner is not None
        self._idle = None
        batch, hashes = with_key_hash(narrowed(batch, self.edge.sent_columns), self.edge.key_columns)
        combined = self._combiner.combined(batch, hashes)
        if combined is None:
            self._add_hashed(batch, hashes)
            return
        batch, rows = combined
        if len(self._writers) == 1:
            next(iter(self._writers.values())).add(batch.take(plain_array(rows)))
            return
        for index, part, size_bytes in split_picked(
            batch, rows, self.edge.key_columns, self._group_to_subtask, self._writers, hashes
        ):
            self._writers[index].add(part, size_bytes)

    def _room_for_texts(
        self, index: int, rows: pa.RecordBatch, place: int, size_bytes: int
    ) -> TextRoom | None:
        """See ``channels.Channel``; ``index``: of the consumer."""
        writer = self._writers.get(index)
        return None if writer is None else writer.channel.room_for_texts(rows, place, size_bytes)
