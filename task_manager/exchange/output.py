"""The sending side of a subtask: spreads batches over the channels of its edges, and waits when there is no credit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from task_manager.exchange.channels import Channel
from task_manager.exchange.divided_block import DividedBlock
from task_manager.exchange.watermark_order import WatermarkOrder
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from task_manager.subtasks.progress import ChannelQueue
from weir.clock import Clock
from weir.exchange import LateColumn, TextRoom, sent_columns, split_by_owner, split_picked, with_key_hash
from weir.graph import Edge, Exchange
from weir.records import (
    KEY_HASH_COLUMN,
    ControlElement,
    Element,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
    plain_array,
)
from weir.types import SubtaskId

#: Waiting for credit, look again this often; releases end the wait at once.
_WAIT_S = 0.5
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
    ) -> None:
        """``group_to_subtask`` is needed with HASH: int32, shape (max_parallelism,), keys of ``channels``."""
        self.edge = edge
        self._policy = policy
        self._group_to_subtask = group_to_subtask
        self._writers = {index: ChannelWriter(channel, policy) for index, channel in channels.items()}
        #: In the order in which they are pumped.
        self.writers = self._in_order()
        self._next = 0
        self._watermarks = WatermarkOrder()
        #: The latest block of :meth:`add_ahead`, as the table divides it.
        self._divided: DividedBlock | None = None

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
        self._watermarks.rows_come()
        batch = sent_columns(batch, self.edge)
        if self.edge.exchange is Exchange.HASH:
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
        assert self._group_to_subtask is not None
        self._watermarks.rows_come()
        batch = sent_columns(batch, self.edge)
        parts = split_picked(batch, rows, self.edge.key_columns, self._group_to_subtask, self._writers)
        for index, part, size_bytes in parts:
            self._writers[index].add(part, size_bytes)

    def add_late(self, batch: pa.RecordBatch, late: LateColumn) -> None:
        """As :meth:`add`, of rows that lack a column."""
        if not self.divides_late or len(self._writers) == 1:
            self.add(late.joined(batch))
            return
        self._watermarks.rows_come()
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
        self._watermarks.rows_come()
        if self._divided is None or self._divided.block is not block:
            assert self._group_to_subtask is not None
            in_order = sorted(self._writers, key=lambda index: not self._writers[index].channel.is_remote)
            self._divided = DividedBlock(block, self.edge, self._group_to_subtask, in_order)
        all_left = True
        unflushed: list[Channel] = []
        for index, rows, size_bytes in self._divided.between(first, end):
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

    def tell(self, element: ControlElement) -> None:
        """Queue a control element on every channel, after all rows; never waits."""
        if isinstance(element, Watermark | Idle):
            self._watermarks.tell(element, self.writers)
            return
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

        Rows that were not sent yet follow the new table. To a stage with key groups a route marker separates old from
        new rows on every channel, also of an input without keys: owners wait for those of all inputs. The end of the
        stream goes to retired consumers. Where the stream has ended already nothing follows. New consumers learn the
        watermark that the others have.
        """
        told = self._watermarks.take_back()
        unsent = {index: writer.take_back() for index, writer in self._writers.items()}
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
            for element in (self._watermarks.watermark, self._watermarks.idle):
                if element is not None:
                    writer.channel.send(element)
        self._add_again(unsent)
        if told is not None:
            self.tell(told)

    def _in_order(self) -> list[ChannelWriter]:
        """Those to other processes first: their rows have the longer way. Otherwise by consumer index."""
        by_index = [self._writers[index] for index in sorted(self._writers)]
        return sorted(by_index, key=lambda writer: not writer.channel.is_remote)

    def _add_again(self, unsent: Mapping[int, Sequence[Element]]) -> None:
        """Queue taken-back rows in order, and after all of them the end of the stream, if that was among them."""
        has_ended = False
        for index, elements in unsent.items():
            for element in elements:
                if isinstance(element, EndOfStream):
                    has_ended = True
                elif not isinstance(element, pa.RecordBatch):
                    # A barrier: its checkpoint was given up for the rescale.
                    continue
                elif self.edge.exchange is Exchange.HASH:
                    self._add_hashed(element, element.column(KEY_HASH_COLUMN).to_numpy())
                elif self.edge.exchange is Exchange.BROADCAST:
                    if index in self._writers:
                        self._writers[index].add(element)
                else:
                    self.add(element)
        if has_ended:
            self.tell(EndOfStream())

    def _add_hashed(self, batch: pa.RecordBatch, hashes: np.ndarray, late: LateColumn | None = None) -> None:
        """Queue each row where its hash (uint64, shape (rows,), also in the batch) leads.

        ``late``: a column that the batch lacks; there are several consumers.
        """
        assert self._group_to_subtask is not None
        if len(self._writers) == 1:
            next(iter(self._writers.values())).add(batch)
            return
        for index, rows, size_bytes in split_by_owner(
            batch, hashes, self._group_to_subtask, self._writers, late, self._room_for_texts
        ):
            self._writers[index].add(rows, size_bytes)

    def _room_for_texts(
        self, index: int, rows: pa.RecordBatch, place: int, size_bytes: int
    ) -> TextRoom | None:
        """See ``channels.Channel``; ``index``: of the consumer."""
        writer = self._writers.get(index)
        return None if writer is None else writer.channel.room_for_texts(rows, place, size_bytes)


class Output:
    """Everything that leaves one subtask; used by its thread only."""

    def __init__(self, edges: Sequence[OutputEdge], wait: Callable[[float], None], clock: Clock) -> None:
        """``wait`` sleeps until a release or a command comes, at most this many seconds.

        It may carry out :meth:`reroute` before it returns, and raises CancelledError when the subtask is to stop.
        """
        self._edges = list(edges)
        self._main = [edge for edge in self._edges if not edge.edge.output]
        #: By side output (``step/output``).
        self._sides: dict[str, list[OutputEdge]] = {}
        for edge in self._edges:
            if edge.edge.output:
                self._sides.setdefault(edge.edge.output, []).append(edge)
        self._wait = wait
        self._clock = clock
        self._finished = False
        #: What is sent to other processes waits for :meth:`let_go`: rows and the watermark after them are one message.
        self.is_held = False
        #: Everything was sent a moment ago: the next :meth:`pump` would find nothing, at the price of a small batch.
        self._is_clear = False
        self.rows = 0
        self.batches = 0
        #: Seconds spent waiting for credit.
        self.waited_s = 0.0

    @property
    def has_channels(self) -> bool:
        """Whether another stage takes what leaves the last step."""
        return bool(self._main)

    def consumers(self, edge: Edge) -> list[int]:
        """Subtask indices to which an edge leads now."""
        return [index for item in self._edges if item.edge == edge for index in item.consumer_indices]

    def queues(self) -> list[ChannelQueue]:
        """The channels on which rows wait, here or at the consumer; any thread may ask."""
        now_s = self._clock.monotonic_s()
        return [queue for edge in self._edges for queue in edge.queues(now_s)]

    @property
    def bytes_sent(self) -> int:
        """Bytes of batches sent on channels that are open."""
        return sum(writer.bytes_sent for edge in self._edges for writer in edge.writers)

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch on every edge of the chain's end; waits while a whole batch has no credit.

        That is back-pressure.
        """
        self._emit(self._main, batch)

    def emit_picked(self, batch: pa.RecordBatch, rows: np.ndarray) -> None:
        """As :meth:`emit`, of the rows with these numbers: int64, ascending, at least one."""
        if len(self._main) != 1:
            self.emit(batch.take(plain_array(rows)))
            return
        self.rows += len(rows)
        self.batches += 1
        self._main[0].add_picked(batch, rows)
        self._settle(lambda writer: not writer.is_full)

    def emit_ahead(self, block: pa.RecordBatch, first: int, end: int) -> None:
        """As :meth:`emit`, rows of a block of which the others come later: the end of them is not part of it."""
        self.rows += end - first
        self.batches += 1
        all_left = True
        for edge in self._main:
            all_left = edge.add_ahead(block, first, end, holds=self.is_held) and all_left
        if all_left:
            self._is_clear = self._is_all_sent()
        else:
            self._settle(lambda writer: not writer.is_full)

    def late_columns_but(self) -> Collection[str] | None:
        """Of which columns :meth:`emit_late` needs the values at once; None: it is of no use."""
        if len(self._edges) != 1 or len(self._main) != 1 or not self._main[0].divides_late:
            return None
        return self._main[0].edge.key_columns

    def emit_late(self, batch: pa.RecordBatch, late: LateColumn) -> None:
        """As :meth:`emit`, of rows that lack a column."""
        self.rows += batch.num_rows
        self.batches += 1
        for edge in self._main:
            edge.add_late(batch, late)
        self._settle(lambda writer: not writer.is_full)

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """As :meth:`emit`, on the edges of a side output."""
        self._emit(self._sides[output], batch)

    def _emit(self, edges: Sequence[OutputEdge], batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.batches += 1
        for edge in edges:
            edge.add(batch)
        self._settle(lambda writer: not writer.is_full)

    def broadcast(self, element: ControlElement, but: Collection[str] = ()) -> None:
        """Queue a control element on every channel, after all rows; does not wait.

        ``but``: not on those of these side outputs (``step/output``).
        """
        for edge in self._edges:
            if edge.edge.output not in but:
                edge.tell(element)
        self._is_clear = False
        self.pump()

    def tell_sides(self, sides: Collection[str], element: Watermark | Idle) -> None:
        """As :meth:`broadcast`, on the channels of these side outputs only."""
        for edge in self._edges:
            if edge.edge.output in sides:
                edge.tell(element)
        self._is_clear = False
        self.pump()

    def pump(self) -> float:
        """Send what is due and has credit; returns the monotonic second of the next need (infinity: none)."""
        if self._is_clear:
            # Only once: a broken channel is to be seen.
            self._is_clear = False
            return float("inf")
        now_s = self._clock.monotonic_s()
        next_s = float("inf")
        for edge in self._edges:
            edge.pump(now_s, holds=self.is_held)
            for writer in edge.writers:
                if writer.deadline_s <= now_s:
                    # No credit: the next release wakes the subtask.
                    continue
                next_s = min(next_s, writer.deadline_s)
        return next_s

    def let_go(self) -> None:
        """End a hold, and send what was held."""
        self.is_held = False
        for edge in self._edges:
            edge.flush()

    def finish(self) -> None:
        """Send everything and the end of the stream; waits for credit.

        No channel ends before all rows were sent on all of them: until then a reroute can move rows to any channel.
        """
        self.is_held = False
        self._settle(lambda writer: writer.is_empty, everything=True)
        self._finished = True
        self.broadcast(EndOfStream())

    def reroute(
        self,
        edge: Edge,
        version: int,
        group_to_subtask: np.ndarray | None,
        added: Mapping[int, Channel],
        retired: Sequence[int],
    ) -> None:
        """Switch one edge to other consumers."""
        self.is_held = False
        for output_edge in self._edges:
            if output_edge.edge == edge:
                output_edge.reroute(version, group_to_subtask, added, retired)
                if self._finished:
                    # A writer that has had the end already takes no second one.
                    output_edge.tell(EndOfStream())
        self._is_clear = False
        self.pump()

    def close(self) -> None:
        """Free all channels."""
        for edge in self._edges:
            for writer in edge.writers:
                writer.channel.close()

    def _settle(self, done: Callable[[ChannelWriter], bool], *, everything: bool = False) -> None:
        """Send until every writer is done, waiting for credit between tries."""
        while True:
            now_s = self._clock.monotonic_s()
            waiting = False
            for edge in self._edges:
                edge.pump(now_s, everything=everything, holds=self.is_held)
                waiting = waiting or not all(map(done, edge.writers))
            if not waiting:
                self._is_clear = self._is_all_sent()
                break
            if self.is_held:
                self.let_go()
            self._wait(_WAIT_S)
            # After each wait: a subtask that is held back for long shows it while it lasts.
            self.waited_s += self._clock.monotonic_s() - now_s

    def _is_all_sent(self) -> bool:
        return not self.is_held and all(writer.is_empty for edge in self._edges for writer in edge.writers)
