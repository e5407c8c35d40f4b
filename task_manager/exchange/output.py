"""The sending side of a subtask: tells all of its edges, and waits when there is no credit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from task_manager.exchange.channels import Channel
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import ChannelWriter
from task_manager.progress import ChannelQueue
from weir.clock import Clock
from weir.plan.graph import Edge
from weir.rows.records import Block, ControlElement, EndOfStream, Idle, Watermark

#: Waiting for credit, look again this often; releases end the wait at once.
_WAIT_S = 0.5


class Output:
    """Everything that leaves one subtask; used by its thread only."""

    def __init__(self, edges: Sequence[OutputEdge], wait: Callable[[float], None], clock: Clock) -> None:
        """``wait`` sleeps until a release or a command comes, at most this many seconds.

        It may carry out :meth:`reroute` before it returns, and raises CancelledError when the subtask is to stop.
        """
        self._edges = list(edges)
        self._main = [edge for edge in self._edges if not edge.edge.output]
        #: Whether another stage takes what leaves the last step.
        self.has_channels = bool(self._main)
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
        #: More rows than are wanted wait for credit, as of the last look.
        self.is_over = False

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
        """Send a batch on every edge of the chain's end; waits before it while earlier rows hold it up.

        That is back-pressure. A subtask that can do something else meanwhile calls :meth:`has_room` first.
        """
        self._emit(self._main, Block(batch), 0, batch.num_rows, batch.num_rows)

    def emit_block(self, block: Block, start: int, stop: int, rows: int) -> None:
        """Emit rows of a block, as :meth:`emit`; the end of the block is not part of it.

        Args:
            block: of which rows are due.
            start: number of the first row that is due.
            stop: number of the first one after it that is not.
            rows: how many of them count; at least one.
        """
        self._emit(self._main, block, start, stop, rows)

    def divide(self, block: Block) -> None:
        """Divide a block of which :meth:`emit_block` will send rows; called while there is nothing to send."""
        for edge in self._main:
            edge.divide(block)

    def late_columns_but(self) -> Collection[str] | None:
        """Returns columns whose values blocks must not lack; None: blocks that lack any are of no use."""
        if len(self._edges) != 1 or len(self._main) != 1 or not self._main[0].divides_late:
            return None
        return self._main[0].edge.key_columns

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """Emit a batch, as :meth:`emit`, on the edges of a side output."""
        self._emit(self._sides[output], Block(batch), 0, batch.num_rows, batch.num_rows)

    def _emit(self, edges: Sequence[OutputEdge], block: Block, start: int, stop: int, rows: int) -> None:
        self._await_room()
        self.rows += rows
        self.batches += 1
        all_left = True
        for edge in edges:
            all_left = edge.add(block, start, stop, holds=self.is_held) and all_left
        if all_left:
            self._is_clear = self._is_all_sent()
        else:
            self._send()

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
        """Send a control element, as :meth:`broadcast`, on the channels of these side outputs only."""
        for edge in self._edges:
            if edge.edge.output in sides:
                edge.tell(element)
        self._is_clear = False
        self.pump()

    def pump(self) -> float:
        """Send what is due and has credit; returns the monotonic second of the next need (infinity: none)."""
        if self._is_clear or not self._edges:
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

        No channel ends before all rows were sent on all of them: a reroute meanwhile finds all of them open.
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

    def has_room(self) -> bool:
        """Return whether rows may come without that they wait; sends what has credit by now."""
        if self.is_over:
            self._send()
        return not self.is_over

    def wait_for_room(self, timeout_s: float) -> None:
        """Sleep until a release or a command comes, as what was sent last has to wait."""
        began_s = self._clock.monotonic_s()
        if self.is_held:
            self.let_go()
        self._wait(min(timeout_s, _WAIT_S))
        self.waited_s += self._clock.monotonic_s() - began_s

    def send_rest(self) -> bool:
        """Send what has credit; whether everything has left. :meth:`wait_for_room` until then."""
        self.is_held = False
        now_s = self._clock.monotonic_s()
        for edge in self._edges:
            edge.pump(now_s, everything=True)
        return self._is_all_sent()

    def _await_room(self) -> None:
        if self.is_over:
            self._settle(lambda writer: not writer.holds_up)
            self.is_over = False

    def _send(self) -> None:
        """Send what is due and has credit, and look whether too much is left."""
        now_s = self._clock.monotonic_s()
        is_over = False
        for edge in self._edges:
            edge.pump(now_s, holds=self.is_held)
            is_over = edge.holds_up() or is_over
        self.is_over = is_over
        self._is_clear = not is_over and self._is_all_sent()

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
        if self.is_held:
            return False
        for edge in self._edges:
            for writer in edge.writers:
                if not writer.is_empty:
                    return False
        return True
