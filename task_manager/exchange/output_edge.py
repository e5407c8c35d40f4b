"""The channels from one subtask to one consumer stage: which rows go to which of them, also after a rescale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from task_manager.exchange.channels import Channel
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from task_manager.progress import ChannelQueue
from weir.keys.division import (
    DividedBlock,
    HotRowCombiner,
    Part,
    PartLimits,
    divided,
    narrowed,
    split_by_owner,
    with_key_hash,
)
from weir.plan.graph import Edge, Exchange
from weir.rows import row_watermarks
from weir.rows.late_column import TextRoom
from weir.rows.records import (
    WATERMARK_MIN_MS,
    Block,
    ControlElement,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
    watermarks_of,
)
from weir.types import SubtaskId

#: After rows have waited for a consumer, rows of hot keys are added up in so many batches. It relieves a consumer that
#: cannot keep up; in all it costs about as much of the processor as it saves.
_RELIEVED_BATCHES = 64


class OutputEdge:
    """The channels from one subtask to one consumer stage, by the consumer's subtask index."""

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
        self._sent_columns = edge.sent_columns
        self._policy = policy
        self._combiner = combiner
        #: Batches in which rows of hot keys may still be added up.
        self._relieved = 0
        self._group_to_subtask = group_to_subtask
        self._writers = {index: ChannelWriter(channel, policy) for index, channel in channels.items()}
        self._put_in_order()
        self._next = 0
        #: What all channels were told last: a new one learns it.
        self._watermark: Watermark | None = None
        self._idle: Idle | None = None
        #: The highest watermark that rows have told one of several consumers.
        self._told_ms = WATERMARK_MIN_MS
        #: The latest block of which rows leave in windows, as the table divides it.
        self._divided: DividedBlock | None = None

    def holds_up(self) -> bool:
        """Return whether so many rows wait for credit that no more should be added; asked after :meth:`pump`."""
        for writer in self.writers:
            if writer.holds_up:
                self._relieved = _RELIEVED_BATCHES
                return True
        return False

    def _may_combine(self, rows: int) -> bool:
        """Return whether rows of hot keys among so many are to be looked for, because a consumer cannot keep up."""
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

    def add(self, block: Block, start: int, stop: int, *, holds: bool = False) -> bool:
        """Send rows of a block that are due, or queue them; never waits.

        What is divided by key, and has credit, leaves at once, in the order of :meth:`pump`.

        Args:
            block: with HASH all of it is divided at once.
            start: number of the first row that is due.
            stop: number of the first one after it that is not.
            holds: as for :meth:`pump`.

        Returns:
            Whether all of them left, so that :meth:`pump` has nothing to do with them.
        """
        self._idle = None
        if len(self._writers) > 1 and (column := watermarks_of(block.columns)) is not None:
            self._told_ms = max(self._told_ms, row_watermarks.highest_ms(column[start:stop]))
        if self._may_combine(stop - start):
            self._add_looked_at(block.window(start, stop))
            return False
        if self._is_divided:
            return self._send_parts(self._parts_of(block, start, stop), holds=holds)
        batch = narrowed(block.window(start, stop), self._sent_columns)
        if self.edge.exchange is Exchange.HASH:
            batch, _ = with_key_hash(batch, self.edge.key_columns)
        if self.edge.exchange is Exchange.ROUND_ROBIN:
            self._next = (self._next + 1) % len(self.writers)
            self.writers[self._next].add(batch)
        else:
            for writer in self._writers.values():
                writer.add(batch)
        return False

    def divide(self, block: Block) -> None:
        """Do what the first :meth:`add` of a part of this block would need time for."""
        if self._is_divided:
            self._divided = DividedBlock(block, self._split(block))

    @property
    def divides_late(self) -> bool:
        """Return whether a column that comes late is read as it is divided: it is none of the key, and all are sent."""
        return self.edge.exchange is Exchange.HASH and not self.edge.is_narrowed

    @property
    def _is_divided(self) -> bool:
        return self.edge.exchange is Exchange.HASH and len(self._writers) > 1

    def _parts_of(
        self, block: Block, start: int, stop: int
    ) -> Iterable[tuple[int, pa.RecordBatch, int | None]]:
        """Subtask index, rows, and about how many bytes they occupy; None: to be counted."""
        known = self._divided
        if known is None or known.block is not block:
            if stop - start == block.columns.num_rows:
                return [part[:3] for part in self._split(block)]
            known = self._divided = DividedBlock(block, self._split(block))
        return known.between(start, stop)

    def _send_parts(self, parts: Iterable[tuple[int, pa.RecordBatch, int | None]], *, holds: bool) -> bool:
        all_left = True
        unflushed: list[Channel] = []
        for index, rows, size_bytes in parts:
            writer = self._writers[index]
            channel = writer.channel
            if not channel.is_remote:
                while unflushed:
                    unflushed.pop().flush()
            if size_bytes is None or not writer.send_at_once(rows, size_bytes):
                writer.add(rows, size_bytes)
                all_left = False
            elif channel.is_remote and not holds:
                unflushed.append(channel)
        while unflushed:
            unflushed.pop().flush()
        return all_left

    def _split(self, block: Block) -> list[Part]:
        """The rows of each consumer, hashed; of several, those to other processes first."""
        assert self._group_to_subtask is not None
        edge, limits = self.edge, None
        if block.late is not None and self.divides_late:
            bytes_max = min(writer.batch_bytes_max for writer in self.writers)
            limits = PartLimits(self._policy.whole_rows_max, bytes_max)
        elif self._sent_columns is not None:
            whole = block.joined()
            block = Block(narrowed(whole.columns, self._sent_columns), whole.selection)
        table, consumers = self._group_to_subtask, self._in_order
        return divided(block, edge.key_columns, table, consumers, self._room_for_texts, limits)

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

        A watermark that rows have told some of the consumers comes to all of them before the marker: no owner of a key
        group is to know less of it than one that gets the group.
        """
        # Barriers among it are dropped: their checkpoint was given up for the rescale.
        ended = [writer.send_now() for writer in self.writers]
        known_ms = WATERMARK_MIN_MS if self._watermark is None else self._watermark.time_ms
        if self._told_ms > known_ms and self._idle is None:
            self._watermark = Watermark(self._told_ms)
            for writer in self.writers:
                if not writer.has_ended:
                    writer.channel.send(self._watermark)
        new = {index: ChannelWriter(channel, self._policy) for index, channel in added.items()}
        self._writers.update(new)
        self._put_in_order()
        if group_to_subtask is not None:
            for writer in self.writers:
                if not writer.has_ended:
                    writer.channel.send(RouteMarker(version))
        for index in retired:
            writer = self._writers.pop(index)
            if not writer.has_ended:
                writer.channel.send(EndOfStream())
            writer.channel.close()
        self._put_in_order()
        self._group_to_subtask = group_to_subtask
        self._divided = None
        self._next = 0
        for writer in new.values():
            for element in (self._watermark, self._idle):
                if element is not None:
                    writer.channel.send(element)
        if any(ended):
            self.tell(EndOfStream())

    def _put_in_order(self) -> None:
        """Put those to other processes first: their rows have the longer way. Otherwise they are by consumer index."""
        self._in_order = sorted(self._writers)
        self._in_order.sort(key=lambda index: not self._writers[index].channel.is_remote)
        #: In the order in which they are pumped.
        self.writers = [self._writers[index] for index in self._in_order]

    def _add_looked_at(self, batch: pa.RecordBatch) -> None:
        """Queue one batch, in which the rows of each hot key are added up."""
        assert self._group_to_subtask is not None
        assert self._combiner is not None
        batch, hashes = with_key_hash(narrowed(batch, self._sent_columns), self.edge.key_columns)
        block = self._combiner.combined(batch, hashes) or Block(batch)
        if len(self._writers) == 1:
            self.writers[0].add(block.rows())
            return
        for part in split_by_owner(block, hashes, self._group_to_subtask, self._in_order):
            self._writers[part.consumer].add(part.rows, part.size_bytes)

    def _room_for_texts(
        self, index: int, rows: pa.RecordBatch, place: int, size_bytes: int
    ) -> TextRoom | None:
        """Return room for texts, as ``channels.Channel`` says; ``index`` is the consumer's."""
        writer = self._writers.get(index)
        return None if writer is None else writer.channel.room_for_texts(rows, place, size_bytes)
