"""The operators of one stage, called in turn; what leaves the last one goes to the output.

Used by the subtasks of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from weir.author.operator import (
    NEVER_US,
    AheadFilter,
    HoldsRows,
    InTimeOperator,
    Operator,
    OperatorContext,
    SecondOperator,
    TimeAssigner,
    TimedOperator,
    WaitingOperator,
)
from weir.errors import UserFunctionError
from weir.operators.ahead import looked_ahead
from weir.operators.chain_life import ChainLife
from weir.operators.chain_ports import BlockOutput, ChainOutput, RowIsolation
from weir.operators.parts_in_time import PartsInTime
from weir.operators.pauses import Pause
from weir.operators.step_errors import name_step
from weir.operators.step_flow import ChainPauses, WaitingRows, holds_back
from weir.operators.time_order import time_order_of
from weir.rows import fired_rows, row_watermarks
from weir.rows.late_column import LateColumn
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, Block, watermarks_of
from weir.rows.row_watermarks import RowWatermarks, TimeCuts
from weir.rows.side_outputs import SideRows, output_id
from weir.state.tables.opened import StateTables

#: No operator can yield it, whatever its author wrote.
_END: Any = object()
#: What it may yield. A tuple: a union would be made anew for every batch.
_OUTPUTS = (pa.RecordBatch, SideRows, Pause)
#: Rows between which an operator is told of watermarks are looked at so many at a time.
_ROWS_IN_TIME = 2_048
OutputT = TypeVar("OutputT", bound=ChainOutput)


class OperatorChain(ChainLife, Generic[OutputT]):
    """Runs one subtask's operators; all methods are called by the subtask's thread."""

    def __init__(
        self,
        operators: Sequence[tuple[Operator, OperatorContext]],
        output: OutputT,
        check_cancelled: Callable[[], None],
        tables: StateTables,
        isolation: RowIsolation | None = None,
    ) -> None:
        """``check_cancelled`` raises CancelledError when the subtask is to stop; called between outputs.

        ``isolation``: puts rows aside that make steps raise.
        """
        super().__init__(operators, tables)
        self.output = output
        self._timed = [
            (index, operator)
            for index, (operator, _) in enumerate(self._operators)
            if isinstance(operator, TimedOperator)
        ]
        #: Whether :meth:`due_us` may ever say when.
        self.is_timed = bool(self._timed)
        #: Operators after which event time is another one, and the watermarks that those after them know.
        self._assigners = {
            index: operator
            for index, (operator, _) in enumerate(self._operators)
            if isinstance(operator, TimeAssigner)
        }
        self._assigned_ms = dict.fromkeys(self._assigners, WATERMARK_MIN_MS)
        #: Side outputs (``step/output``) of steps before one that assigns event times: theirs are other watermarks.
        self.early_sides = frozenset(
            output_id(context.operator_name, output)
            for _, context in self._operators[: min(self._assigners, default=0)]
            for output in context.sides_read
        )
        #: Before which rows each is to be told of the watermark; known when they are open.
        self._cuts = [TimeCuts.NONE] * len(self._operators)
        wanted = self._operators[0][1].row_watermarks if self._operators else RowWatermarks.NONE
        self._has_row_watermarks = wanted is not RowWatermarks.NONE
        self._has_all = wanted >= RowWatermarks.ALL
        #: Rows that entered each operator.
        self.rows_into = [0] * len(self._operators)
        #: Whether rows say where other splits or inputs are behind theirs.
        self.tells_ahead = wanted is RowWatermarks.SPLITS
        self._check_cancelled, self.isolation = check_cancelled, isolation
        # What has several inputs comes first.
        first, last = (self._operators[0][0], self._operators[-1][0]) if self._operators else (None, None)
        self._last_filter = last if isinstance(last, AheadFilter) else None
        self._holder = first if isinstance(first, HoldsRows) else None
        #: Brings rows into the order of time before they come here; None: nothing does.
        self.order = time_order_of(self._operators[0][1]) if self._operators else None
        self._takes_blocks = output if isinstance(output, BlockOutput) else None
        #: What is on its way between the operators.
        self.pauses = ChainPauses(self._operators)
        self._flows = self.pauses.flows

    @property
    def rows_into_last(self) -> int:
        """Rows that entered the last operator: what a sink received; 0 if there is none."""
        return self.rows_into[-1] if self.rows_into else 0

    def open(self) -> None:
        """Open all operators, and ask which rows each of them minds."""
        super().open()
        if self.order is not None:
            self.order.open()
        if self._has_row_watermarks:
            self._cuts = [
                operator.time_cuts if isinstance(operator, InTimeOperator) else TimeCuts.NONE
                for operator, _ in self._operators
            ]

    @property
    def minds_time(self) -> bool:
        """Return whether some operator makes something else of rows if the watermark stands still meanwhile."""
        return self.order is not None or any(cuts & TimeCuts.BY_MOMENT for cuts in self._cuts)

    @property
    def holds_time(self) -> bool:
        """Return whether the first operator holds rows back: the watermark stands still, and the chain is not idle."""
        return self._holder is not None and self._holder.holds_time

    @property
    def is_full(self) -> bool:
        """Return whether it holds so many that no more should be sent."""
        return self._holder is not None and self._holder.is_full

    def release(self, watermark_ms: int) -> None:
        """Let the first operator process what it need not hold any more; ``watermark_ms``: of all inputs."""
        if self._holder is not None and self._holder.may_release:
            self._isolate_timers()
            self._send_on(0, None, self._holder.release, watermark_ms)

    def process(self, batch: pa.RecordBatch, start: int = 0, input_index: int = 0) -> None:
        """Send one batch through the operators from index ``start`` on; may wait for credit.

        ``input_index``: the input of the first operator that the rows came from.
        """
        if start == len(self._operators):
            self.output.emit(batch)
            return
        flow = self._flows[start]
        flow.given, flow.taken = batch, batch.num_rows
        # Rows that are held back are as of a time that has not come here.
        is_told = self._cuts[start] and not (start == 0 and self.holds_time)
        if is_told and (column := watermarks_of(batch)) is not None:
            for first in range(0, batch.num_rows, _ROWS_IN_TIME):
                stop = first + _ROWS_IN_TIME
                part = batch.slice(first, _ROWS_IN_TIME)
                self._process_in_time(part, column[first:stop], start, input_index, first)
        else:
            self._process(batch, start, input_index)
        flow.given = None

    def process_of(self, batch: pa.RecordBatch, input_index: int) -> None:
        """Process a batch with all operators."""
        self.process(batch, 0, input_index)

    def _process_in_time(
        self, batch: pa.RecordBatch, column: np.ndarray, start: int, input_index: int, offset: int
    ) -> None:
        """Process a batch with an operator that is told of the watermark between rows, where something is due.

        ``offset``: of the first row in what the operator is given.
        """
        operator = self._operators[start][0]
        assert isinstance(operator, InTimeOperator)
        flow = self._flows[start]
        parts = PartsInTime(operator, self._cuts[start], batch, column, flow.reached_ms)
        first = 0
        while first < batch.num_rows:
            flow.taken = offset + first
            if parts.tells_before(first):
                self._tell_one(start, parts.as_of_ms(first))
            # What is due fires before a row that may be put aside, and not with it.
            stop = first + 1 if self._is_isolated(start) else parts.stop(first, flow.told_ms)
            flow.taken, flow.all_taken_ms = offset + stop, parts.as_of_ms(stop - 1)
            self._process(batch.slice(first, stop - first), start, input_index)
            flow.reached_ms = max(flow.reached_ms, parts.as_of_ms(stop - 1))
            flow.all_taken_ms = WATERMARK_MIN_MS
            first = stop

    def _is_isolated(self, index: int) -> bool:
        """Return whether rows of an operator may be put aside."""
        operator, context = self._operators[index]
        return self.isolation is not None and self.isolation.concerns(operator, context.operator_name)

    def _tell_one(self, index: int, time_ms: int) -> None:
        """Tell one operator of the watermark, if it has risen."""
        if time_ms > self._flows[index].told_ms:
            self._flows[index].told_ms = time_ms
            self._isolate_timers()
            self._send_in_order(index, self._operators[index][0].on_watermark, time_ms, time_ms)

    def _send_in_order(self, index: int, call: Callable[..., Any], time_ms: int, *given: object) -> None:
        """Send on what leaves because a watermark comes: each row as of its own time."""
        if self._has_all and index not in self._assigners:

            def in_order() -> Any:
                made = call(*given)
                return fired_rows.fired_in_order(made, time_ms - 1) if made else made

            self._send_on(index, None, in_order)
        elif isinstance(self._operators[index][0], InTimeOperator):
            self._send_on(index, None, lambda: fired_rows.told_in_order(call(*given) or ()))
        else:
            self._send_on(index, None, call, *given)

    def _process(self, batch: pa.RecordBatch, start: int, input_index: int) -> None:
        operator, context = self._operators[start]
        if self._has_row_watermarks and operator.knows_rows_by_time:
            parts = row_watermarks.alike(batch)
            if len(parts) > 1:
                flow = self._flows[start]
                flow.taken -= batch.num_rows
                for part in parts:
                    flow.taken += part.num_rows
                    self._process(part, start, input_index)
                return
        self.rows_into[start] += batch.num_rows
        # What a step has put together is not what rows came to it.
        isolation = None if isinstance(operator, SecondOperator) else self.isolation
        if operator is self._last_filter and isolation is None and self._send_picked(batch):
            return
        if isolation is not None and isolation.concerns(operator, context.operator_name):
            self._isolate_timers()
            self._send_on(start, batch, isolation.process, operator, context, batch, input_index)
        elif operator.tells_inputs_apart:
            self._send_on(start, batch, operator.process_input, input_index, batch)
        else:
            self._send_on(start, batch, operator.process, batch)

    def _send_picked(self, batch: pa.RecordBatch) -> bool:
        """Send what the last filter keeps without a copy of it; False: it is to make one."""
        if self._last_filter is None or self._takes_blocks is None:
            return False
        mask = self._last_filter.kept_ahead(batch)
        if mask is None:
            return False
        self._check_cancelled()
        numbers = mask.nonzero()[0]
        if len(numbers) == batch.num_rows:
            self.output.emit(batch)
        elif len(numbers):
            self._takes_blocks.emit_block(Block(batch, numbers), 0, batch.num_rows, len(numbers))
        return True

    def look_ahead(self, batch: pa.RecordBatch, late: LateColumn | None = None) -> Block | None:
        """What the first operators, as far as they only drop rows, leave of rows that come later.

        None: there is nothing to know before, or rows are isolated, which is done when they come.
        ``late``: a column that they lack.
        """
        if self.isolation is not None:
            return None
        return looked_ahead(self.operators, batch, late)

    def process_block(self, block: Block, start: int, stop: int) -> None:
        """Rows of a block are due: those that are left go on to the operators after its filters, or leave.

        Args:
            block: what :meth:`look_ahead` returned; or one of which a column comes late.
            start: number of the first row that is due.
            stop: number of the first one after it that is not.
        """
        if block.late is not None:
            block = self.look_ahead(block.columns, block.late) or block
        entered, rows = block.passed(start, stop)
        for index, count in enumerate(entered):
            self.rows_into[index] += count
        self._check_cancelled()
        if rows and block.filters == len(self._operators) and self._takes_blocks is not None:
            self._takes_blocks.emit_block(block, start, stop, rows)
        elif (rows or block.late is not None) and (batch := block.window(start, stop)).num_rows:
            # A late column is read in any case: it may make rows bad, also those that filters drop.
            self.process(batch, block.filters)

    def on_watermark(self, time_ms: int) -> None:
        """Tell every operator of a new watermark, in order, up to the first that assigns event times."""
        self._isolate_timers()
        self._tell(0, time_ms)

    def _tell(self, start: int, time_ms: int) -> None:
        for index in range(start, len(self._operators)):
            self._tell_one(index, time_ms)
            if index in self._assigners:
                return

    @property
    def assigns_times(self) -> bool:
        """Return whether consumers get other watermarks than this chain."""
        return bool(self._assigners)

    def tell_assigned(self) -> int:
        """Tell operators after those that assign event times of their watermarks, where these have risen.

        Called after rows. Returns the watermark of what leaves the chain.
        """
        self._isolate_timers()
        time_ms = WATERMARK_MIN_MS
        for index, operator in self._assigners.items():
            time_ms = operator.watermark_ms
            if time_ms > self._assigned_ms[index]:
                self._assigned_ms[index] = time_ms
                self._tell(index + 1, time_ms)
        return time_ms

    @property
    def assigned_ms(self) -> int:
        """The watermark of what leaves the chain, when those before it were told; see :meth:`tell_assigned`."""
        return next(reversed(self._assigners.values())).watermark_ms

    @property
    def idle_at_s(self) -> float:
        """Monotonic second from which on consumers are not to wait for the watermark, unless rows come."""
        if not self._assigners:
            return float("inf")
        return next(reversed(self._assigners.values())).idle_at_s

    def drain(self, until_s: float | None = None) -> None:
        """Key groups may move, or a barrier is about to be passed on: let operators emit what is under way.

        ``until_s``: what takes longer, by the monotonic clock, stays where :meth:`park` finds it; None: nothing does.
        """
        self.pauses.drain(lambda index: self._send_on(index, None, self._operators[index][0].drain), until_s)

    def park(self, *, with_first: bool) -> list[WaitingRows]:
        """Rows that are on their way between operators, or within one, in the order in which they are to be resumed.

        Called where a barrier is passed on. Operators tell what they have begun to tell, up to the next pause, so that
        their state is that after it. ``with_first``: also those that the first one was given and has not taken.
        """
        for index in self.pauses.unfinished():
            operator, flow = self._operators[index][0], self._flows[index]
            assert flow.outputs is not None
            is_drained = holds_back(operator) and not isinstance(operator, WaitingOperator)
            outputs = itertools.chain(flow.outputs, operator.drain()) if is_drained else flow.outputs
            self._pass_on(index, outputs, is_drawn=True)
        return self.pauses.park(with_first=with_first)

    def resume(self, rows: Sequence[WaitingRows]) -> None:
        """Let operators take what :meth:`park` returned before a restart; called before anything else.

        Raises:
            CheckpointError: a step that they wait for is not here any more.
        """
        for index in self.pauses.bring_back(rows):
            self._tell_one(index, self._flows[index].reached_ms)
            self._take_waiting(index)

    def due_us(self) -> int:
        """Wall clock (epoch µs) at which an operator has something to do, 0: now; ``NEVER_US`` if none has."""
        due_us = NEVER_US
        for index, operator in self._timed:
            try:
                due_us = min(due_us, operator.due_us())
            except BaseException as error:
                name_step(error, self._operators[index][1].operator_name)
                raise
        return due_us

    def on_time(self) -> None:
        """Let operators do what is due by the clock, in order."""
        self._isolate_timers()
        for index, operator in self._timed:
            self._send_on(index, None, operator.on_time)

    def _isolate_timers(self) -> None:
        if self.isolation is not None:
            for index, operator in self._timed:
                operator.set_aside = self.isolation.timers_of(operator, self._operators[index][1])

    def _send_on(
        self,
        index: int,
        batch: pa.RecordBatch | None,
        call: Callable[..., Iterable[pa.RecordBatch]],
        *given: object,
    ) -> None:
        """What an operator yields goes through those after it; only what it raises itself gets its name.

        ``call`` is its method, which gets what is ``given``; ``batch``: the rows among that.
        """
        # naming_step by hand: a context manager is a dozen calls, for every operator and batch.
        try:
            made = call(*given)
            if type(made) is tuple and not made:
                return
            outputs = self._iterate(index, made)
        except BaseException as error:
            context = self._operators[index][1]
            name_step(error, context.operator_name, is_sink=context.is_sink, batch=batch)
            raise
        self._flows[index].begin(outputs, batch)
        self._pass_on(index, outputs)

    def _pass_on(self, index: int, outputs: Iterator[Any], *, is_drawn: bool = False) -> None:
        """Send on what an operator yields; ``is_drawn``: up to a pause, and the operator after it gets it later."""
        flow = self._flows[index]
        while True:
            try:
                out = next(outputs, _END)
                if out is not _END and not isinstance(out, _OUTPUTS):
                    step, kind = self._operators[index][1].operator_name, type(out).__name__
                    raise UserFunctionError(f"step {step!r} yielded {kind}, not a pyarrow.RecordBatch")
            except BaseException as error:
                context = self._operators[index][1]
                name_step(error, context.operator_name, is_sink=context.is_sink, batch=flow.batch)
                raise
            flow.at_pause = None
            if out is _END:
                flow.outputs = None
                return
            self._check_cancelled()
            if isinstance(out, Pause):
                if self.pauses.is_over():
                    flow.outputs = None
                    return
                flow.at_pause = out.rows
                if is_drawn:
                    return
                self.pauses.pause(index, self.pauses.now_s())
            elif (rows := self._told(index, flow.batch, out)) is not None:
                if is_drawn and index + 1 < len(self._operators):
                    self._flows[index + 1].waiting.append(rows)
                else:
                    self._hand_on(rows, index + 1)

    def _told(
        self, index: int, batch: pa.RecordBatch | None, out: pa.RecordBatch | SideRows
    ) -> pa.RecordBatch | None:
        """Rows that an operator has yielded, as they go to the next one; side rows leave here."""
        if self._has_row_watermarks:
            out = self._in_time(index, batch, out)
        if isinstance(out, SideRows):
            self._emit_side(self._operators[index][1], out)
            return None
        return out if out.num_rows else None

    def _hand_on(self, rows: pa.RecordBatch, index: int) -> None:
        """Rows go into an operator: all at once, or where somebody minds in parts that do not take long."""
        if self.pauses.on_pause is None or index == len(self._operators):
            self.process(rows, index)
        else:
            self._flows[index].waiting.append(rows)
            self._take_waiting(index)

    def _take_waiting(self, index: int) -> None:
        flow, now_s = self._flows[index], self.pauses.now_s
        while flow.waiting:
            part = flow.next_part()
            began_s = now_s()
            self.process(part, index)
            ended_s = now_s()
            flow.parts.took(part.num_rows, ended_s - began_s)
            self.pauses.pause(index - 1, ended_s)

    def _in_time(
        self, index: int, batch: pa.RecordBatch | None, out: pa.RecordBatch | SideRows
    ) -> pa.RecordBatch | SideRows:
        """What an operator yielded, with what the watermark is as of its rows, where the job needs that."""
        if index in self._assigners:
            return out
        if batch is not None:
            out = row_watermarks.carried_out(batch, out)
            tells_again = self._cuts[index] & TimeCuts.EACH_LATE and isinstance(out, pa.RecordBatch)
            return row_watermarks.told_again(out, self._flows[index].told_ms) if tells_again else out
        before_ms = max(self._flows[index].told_ms, self._flows[index].reached_ms)
        return fired_rows.fired_out(out, before_ms) if self._has_all else out

    def _emit_side(self, context: OperatorContext, out: SideRows) -> None:
        """What nobody reads is dropped."""
        if out.output in context.sides_read and out.rows.num_rows:
            self.output.emit_side(output_id(context.operator_name, out.output), out.rows)

    def _iterate(self, index: int, outputs: Iterable[pa.RecordBatch] | None) -> Iterator[Any]:
        """What an operator returned; a sink yields nothing, and need not say so."""
        if outputs is None and self._operators[index][1].is_sink:
            return iter(())
        return iter(outputs)  # type: ignore[arg-type]

    def finish(self) -> None:
        """The input has ended: let operators emit what they hold, and flush."""
        self._isolate_timers()
        for index, (operator, _) in enumerate(self._operators):
            self._send_in_order(index, operator.finish, WATERMARK_MAX_MS)
        self.flush()
