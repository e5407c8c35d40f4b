"""Calls an author's asynchronous function for many rows at a time, in an event loop with a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from weir import threads
from weir.author.operator import NEVER_US, OperatorContext, SetAside, TimedOperator, WaitingOperator
from weir.errors import UserFunctionError
from weir.operators.pauses import Pause
from weir.operators.stateless.functions import RowFunctionOperator
from weir.rows import row_watermarks
from weir.rows.python_values import row_dicts
from weir.rows.records import (
    BATCH_BYTES_MAX,
    EVENT_TIME_COLUMN,
    INGEST_TIME_COLUMN,
    WATERMARK_MIN_MS,
    int64_column,
    user_columns,
    watermarks_of,
)
from weir.specs import FlatMapSpec
from weir.specs.async_map import MapAsyncSpec

#: How long the subtask waits for a request when nothing else is to be done; rows that come meanwhile wait as long.
_WAIT_S = 0.002
#: A look whether a request has ended, whoever has set the event: it is set once for many.
_LOOK_S = 0.5


class Request:
    """A row for which the function is called."""

    __slots__ = (
        "batch",
        "error",
        "event_time_ms",
        "index",
        "ingest_time_us",
        "is_done",
        "result",
        "row",
        "watermark_ms",
    )

    def __init__(
        self,
        row: dict[str, Any],
        batch: pa.RecordBatch,
        index: int,
        event_time_ms: int,
        ingest_time_us: int,
        watermark_ms: int | None,
    ) -> None:
        self.row = row
        self.event_time_ms = event_time_ms
        self.ingest_time_us = ingest_time_us
        #: As of the row; None: its batch does not say.
        self.watermark_ms = watermark_ms
        #: Where the row comes from.
        self.batch = batch
        self.index = index
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


class RequestLoop:
    """The event loop. ``start`` and ``close`` are called by the subtask's thread."""

    def __init__(
        self, function: Callable[[dict[str, Any]], Awaitable[Any]], timeout_s: float, name: str
    ) -> None:
        self._function = function
        self._timeout_s = timeout_s
        #: Requests that have ended, in the order in which they did; appended by the loop.
        self.ended: deque[Request] = deque()
        #: Set when one has.
        self.has_ended = threads.event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threads.start(self._run, name)

    def start(self, requests: list[Request]) -> None:
        """Call the function for these rows, at once."""
        self._loop.call_soon_threadsafe(self._begin, requests)

    def close(self) -> None:
        """Cancel what is under way, and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LOOK_S * 10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _begin(self, requests: list[Request]) -> None:
        for request in requests:
            task = self._loop.create_task(self._call(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, request: Request) -> None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                request.result = await self._function(request.row)
        except BaseException as error:
            is_late = isinstance(error, TimeoutError) and limit.expired()
            request.error = LateError(f"took longer than {self._timeout_s:g} s") if is_late else error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            request.is_done = True
            self.ended.append(request)
            self.has_ended.set()


class LateError(Exception):
    """The time-out of a request; not one of the machine's, which would count as an outage."""


class AsyncMapOperator(RowFunctionOperator, TimedOperator, WaitingOperator):
    """Rows leave when the function has answered, with the times of their records.

    No more than ``in_flight_max`` rows are here at a time: a row that has its answer and waits for those before it
    counts. At a watermark and at the end everything is waited for, so that no row comes after a watermark that it was
    before. At a barrier, too, so that nothing is under way that a checkpoint would have to hold; what takes long is
    part of the checkpoint, as the row that it was.
    """

    def __init__(self, spec: MapAsyncSpec) -> None:
        super().__init__(FlatMapSpec(lambda row: (), spec.schema))
        self._spec = spec
        self._loop: RequestLoop | None = None
        #: With order: those under way, in the order of their rows.
        self._in_order: deque[Request] = deque()
        #: What is under way came after it.
        self._told_ms = WATERMARK_MIN_MS
        #: All that have not left, in the order of their rows.
        self._begun: dict[Request, None] = {}

    @property
    def _outstanding(self) -> int:
        return len(self._begun)

    def open(self, context: OperatorContext) -> None:
        """Start the event loop."""
        super().open(context)
        name = f"requests of {context.operator_name} {context.subtask_index}"
        self._loop = RequestLoop(self._spec.function, self._spec.timeout_ms / 1000, name)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Pause]:
        """Begin with the rows; what has its answer by then leaves, of this batch and of earlier ones."""
        requests = _requests(batch, enumerate(row_dicts(batch.select(user_columns(batch.schema)))))
        start = 0
        while start < len(requests):
            free = self._spec.in_flight_max - self._outstanding
            if free > 0:
                self._begin(requests[start : start + free])
                start += free
            else:
                self._wait(_LOOK_S)
                yield from self._answered()
                yield Pause(start)
        yield from self._answered()

    def due_us(self) -> int:
        """Now, while requests are under way: :meth:`on_time` waits for a moment."""
        return 0 if self._outstanding else NEVER_US

    def on_time(self) -> Iterator[pa.RecordBatch]:
        """What has its answer."""
        if self._outstanding:
            self._wait(_WAIT_S)
            yield from self._answered()

    def drain(self) -> Iterator[pa.RecordBatch | Pause]:
        """Wait for everything."""
        while self._outstanding:
            self._wait(_LOOK_S)
            yield from self._answered()
            yield Pause()

    def under_way(self) -> Iterator[pa.RecordBatch]:
        """Rows that have no answer yet, or one that has not left."""
        for _, requests in itertools.groupby(self._begun, lambda request: id(request.batch)):
            listed = list(requests)
            yield listed[0].batch.take(pa.array([request.index for request in listed]))

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch | Pause]:
        """Rows from before the watermark leave before it."""
        yield from self.drain()
        self._told_ms = time_ms

    def finish(self) -> Iterator[pa.RecordBatch | Pause]:
        """The last answers."""
        return self.drain()

    def process_apart(self, batch: pa.RecordBatch, set_aside: SetAside) -> Iterator[pa.RecordBatch]:
        """Process rows and put those aside whose call raises. Waits for the whole batch."""
        yield from self.drain()
        requests = _requests(batch, self._rows_apart(batch, set_aside))
        for start in range(0, len(requests), self._spec.in_flight_max):
            part = requests[start : start + self._spec.in_flight_max]
            self._begin(part)
            while not all(request.is_done for request in part):
                self._wait(_LOOK_S)
            self._forget()
            good = []
            for request in part:
                try:
                    self._check(request)
                    good.append(request)
                except UserFunctionError as error:
                    if not set_aside(batch.slice(request.index, 1), error):
                        raise
            if good:
                results, origins = [r.result for r in good], [r.index for r in good]
                yield from self._gather_apart(batch, results, origins, set_aside)

    def close(self) -> None:
        """Give up what is under way."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _rows_of(self, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        raise NotImplementedError("rows are sent many at a time")

    def _begin(self, requests: list[Request]) -> None:
        assert self._loop is not None
        self._begun.update(dict.fromkeys(requests))
        if self._spec.ordered:
            self._in_order.extend(requests)
        self._loop.start(requests)

    def _wait(self, seconds: float) -> None:
        """Wait until a request has ended, or for so long."""
        assert self._loop is not None
        if not self._loop.ended:
            self._loop.has_ended.wait(seconds)
        self._loop.has_ended.clear()

    def _forget(self) -> None:
        """Forget all requests: those that were begun have ended, and somebody else looks after them."""
        assert self._loop is not None
        self._loop.ended.clear()
        self._in_order.clear()
        self._begun.clear()

    def _answered(self) -> Iterator[pa.RecordBatch]:
        """Rows that may leave, in batches.

        Raises:
            UserFunctionError: a call raised, was late, or returned another row than declared.
        """
        assert self._loop is not None
        ended = self._loop.ended
        found = [ended.popleft() for _ in range(len(ended))]
        if self._spec.ordered:
            # What has ended only says that there is something to look at.
            found = []
            while self._in_order and self._in_order[0].is_done:
                found.append(self._in_order.popleft())
        for request in found:
            del self._begun[request]
        size_bytes = start = 0
        for position, request in enumerate(found, 1):
            self._check(request)
            size_bytes += self._long_bytes(request.result)
            if position == len(found) or size_bytes >= BATCH_BYTES_MAX:
                yield self._built(found[start:position])
                size_bytes, start = 0, position

    def _built(self, requests: list[Request]) -> pa.RecordBatch:
        times = [
            pa.array([request.event_time_ms for request in requests], pa.int64()),
            pa.array([request.ingest_time_us for request in requests], pa.int64()),
        ]
        made = self._build([request.result for request in requests], times)
        # Of a batch that does not say it no row is late.
        known = [request.watermark_ms for request in requests]
        if all(at is None for at in known):
            return made
        column = np.array([WATERMARK_MIN_MS if at is None else at for at in known], dtype=np.int64)
        made = row_watermarks.with_column(made, column)
        # Without order one may still come that time has not gone on for.
        return made if self._spec.ordered else row_watermarks.standing_still(made, self._told_ms)

    def _check(self, request: Request) -> None:
        """Raise what a call raised; the error has the row."""
        try:
            if request.error is None:
                self._check_row(request.result)
                return
            function = self._spec.function
            name = getattr(function, "__qualname__", type(function).__name__)
            if isinstance(request.error, LateError):
                raise self._error(f"function {name} {request.error}")
            told = f"function {name} raised {type(request.error).__name__}: {request.error}"
            raise self._error(told) from request.error
        except UserFunctionError as error:
            error.rows, error.row_index = request.batch.slice(request.index, 1), 0
            raise


def _requests(batch: pa.RecordBatch, rows: Iterable[tuple[int, dict[str, Any]]]) -> list[Request]:
    event_ms = int64_column(batch, EVENT_TIME_COLUMN).tolist()
    ingest_us = int64_column(batch, INGEST_TIME_COLUMN).tolist()
    column = watermarks_of(batch)
    watermarks_ms = [None] * batch.num_rows if column is None else column.tolist()
    return [
        Request(row, batch, index, event_ms[index], ingest_us[index], watermarks_ms[index])
        for index, row in rows
    ]
