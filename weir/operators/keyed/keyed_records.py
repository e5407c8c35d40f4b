"""Runs keyed operators with declared states: per record and per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.key_context import KeyContext
from weir.author.operator import OperatorContext
from weir.errors import WeirError
from weir.operators.keyed.row_times import RowTimes
from weir.operators.side_rows import SideDicts
from weir.operators.stateless.functions import FlatMapOperator, value_bytes
from weir.operators.user_operator import OutputChecker
from weir.rows.frames import frame_of
from weir.rows.python_values import python_times
from weir.rows.records import BATCH_BYTES_MAX, EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, user_columns
from weir.rows.side_outputs import SideRows
from weir.specs import FlatMapSpec, SideOutput
from weir.state.handles.block import Cursor

_TIME_COLUMNS = (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)

#: ``process(key, row, context)`` returns rows, or None.
RecordFunction = Callable[[tuple[Any, ...], dict[str, Any], KeyContext], Iterable[Mapping[str, Any]] | None]
BatchFunction = Callable[[pa.RecordBatch, KeyContext], Iterable[pa.RecordBatch] | None]


class Records(FlatMapOperator):
    """Calls a function for every row. States are read and written once for all keys of a batch."""

    def __init__(
        self,
        function: RecordFunction,
        schema: pa.Schema,
        key_columns: tuple[str, ...],
        cursor: Cursor,
        context: KeyContext,
        sides: Sequence[SideOutput] = (),
    ) -> None:
        super().__init__(FlatMapSpec(lambda row: (), schema))
        self._record_function = function
        self._key_columns = key_columns
        self._cursor = cursor
        self._context = context
        self._sides = SideDicts(sides)
        #: Rows of the last batch that were processed.
        self.taken = 0

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._sides.open(context)

    def run(
        self, batch: pa.RecordBatch, times: RowTimes | None = None
    ) -> Iterator[pa.RecordBatch | SideRows]:
        """What the function makes of a batch as users see it; :meth:`KeyContext.begin` was called.

        With ``times`` it ends after a row with which a timer has become due; :attr:`taken` says after how many.

        Raises:
            UserFunctionError: the function raised, or returned something else than rows as declared.
        """
        rows = _rows(batch)
        self.taken = len(rows)
        keys = self._context.keys(batch)
        self._cursor.block = keys.distinct
        columns = [[row[name] for row in rows] for name in self._key_columns]
        results: list[Any] = []
        origins: list[int] = []
        size_bytes = 0
        self._sides.forget()
        cursor, context, function = self._cursor, self._context, self._record_function
        long_names = self._long_names
        index = 0
        try:
            for index, (position, key, row) in enumerate(
                zip(keys.inverse.tolist(), zip(*columns, strict=True), rows, strict=True)
            ):
                cursor.index = position
                context.row_index = index
                if times is not None:
                    times.move(index)
                made = function(key, row, context)
                for result in made if made is not None else ():
                    if isinstance(result, dict):
                        # The function may change its dict, and yield it again.
                        result = result.copy()
                        # ``_long_bytes`` by hand: a call less for each row.
                        for name in long_names:
                            value = result.get(name)
                            size_bytes += len(value) if type(value) is str else value_bytes(value)
                    elif isinstance(result, SideRows):
                        if self._sides.add(result, index):
                            yield from self._built_sides(batch)
                        continue
                    # What is no dict is refused when it is built.
                    results.append(result)
                    origins.append(index)
                if len(results) >= self._batch_size or size_bytes >= BATCH_BYTES_MAX:
                    yield self._built(batch, results, origins)
                    results, origins, size_bytes = [], [], 0
                if times is not None and times.is_due_after(index):
                    self.taken = index + 1
                    break
        except Exception as error:
            # What our own code says is about the store, not about the row.
            if isinstance(error, WeirError):
                raise
            self._row_index = index
            raise self._error(f"process raised {type(error).__name__}: {error}") from error
        cursor.index = None
        # Before states are written: a row that is put aside for what it returned changes nothing.
        built = self._built(batch, results, origins) if results else None
        sides = list(self._built_sides(batch))
        context.end()
        if built is not None:
            yield built
        yield from sides

    def _built_sides(self, batch: pa.RecordBatch) -> Iterator[SideRows]:
        return self._sides.built(
            lambda origins: [batch.column(name).take(pa.array(origins, pa.int64())) for name in _TIME_COLUMNS]
        )

    def _built(self, batch: pa.RecordBatch, results: list[Any], origins: list[int]) -> pa.RecordBatch:
        names = self._names
        for result, origin in zip(results, origins, strict=True):
            if not isinstance(result, dict) or result.keys() != names:
                self._row_index = origin
                self._check_row(result)
        self._row_index = None
        return self._gather(batch, results, origins)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The user columns of each row; Polars makes dicts five times faster than Arrow."""
    return frame_of(python_times(batch.select(user_columns(batch.schema)))).to_dicts()


class Batches:
    """Calls a function with each batch; checks what it returns."""

    def __init__(self, function: BatchFunction, checker: OutputChecker, context: KeyContext) -> None:
        self._checker = checker
        self._function = function
        self._context = context
        #: Rows of the last batch that were processed.
        self.taken = 0

    def run(
        self, batch: pa.RecordBatch, times: RowTimes | None = None
    ) -> Iterator[pa.RecordBatch | SideRows]:
        """What the function makes of a batch as users see it; :meth:`KeyContext.begin` was called.

        With ``times`` it ends before a row at which it may not be as it was for an earlier row of the same key;
        :attr:`taken` says after how many.

        Raises:
            UserFunctionError: it returned something else than batches as declared.
        """
        self.taken = batch.num_rows
        if times is not None:
            self.taken = times.begin_together(self._context.keys(batch))
            if self.taken < batch.num_rows:
                batch, hashes = batch.slice(0, self.taken), self._context.keys(batch).hashes[: self.taken]
                self._context.begin(batch, hashes)
        made = self._function(batch, self._context)
        yield from self._checker.each("process_batch", () if made is None else made, batch)
        self._context.end()


def known_hashes(batch: pa.RecordBatch, name: str) -> np.ndarray | None:
    """The column of key hashes that an exchange has added; None: there is none."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index).to_numpy(zero_copy_only=True)
