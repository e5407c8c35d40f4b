"""What runs windows of the last rows of a key: each is told after so many further rows. Called by ``count_windows``."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from weir.keyed_process import KeyedProcess
from weir.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, int64_column, with_times
from weir.row_aggregates import RowAggregates
from weir.specs.windows import WINDOW_END, WINDOW_START, WindowAggregate
from weir.states import ValueState

if TYPE_CHECKING:
    from weir.operators.keyed.key_context import KeyContext

#: Rows of all windows that are put together at once, about: a row is in ``rows / slide`` of them.
_ROWS_MAX = 1 << 20
_KEY, _WINDOW = "_window_key", "_window_number"


class CountWindowProcess(KeyedProcess):
    """Keeps the rows of each key that its next window has, and how many rows have come."""

    seen = ValueState(pl.Int64, default=0)
    #: The rows in the order in which they came, as an Arrow IPC stream; none of a window that has just begun.
    kept = ValueState(bytes)

    def __init__(
        self,
        rows: int,
        slide: int,
        key_columns: tuple[str, ...],
        aggregates: tuple[WindowAggregate, ...],
        input_schema: pa.Schema,
        schema: pa.Schema,
    ) -> None:
        """``input_schema``: what is kept of rows; ``schema``: user columns of results."""
        self._rows, self._slide = rows, slide
        self._keys, self._schema = key_columns, schema
        self._columns = [name for name in input_schema.names if name not in key_columns]
        self._aggregates = RowAggregates(aggregates, schema)
        time = pl.col(EVENT_TIME_COLUMN)
        self._made = [time.min().alias(WINDOW_START), (time.max() + 1).alias(WINDOW_END)]
        self._made += self._aggregates.expressions

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterator[pa.RecordBatch]:
        """See :class:`KeyedProcess`."""
        keys = context.keys(batch)
        count = len(keys.distinct)
        seen = np.asarray(self.seen.get(keys.distinct), dtype=np.int64)
        added = np.bincount(keys.inverse, minlength=count)
        given = pl.DataFrame(batch.select([*self._columns, EVENT_TIME_COLUMN]))
        pieces = [given.with_columns(pl.Series(_KEY, keys.inverse, dtype=pl.Int64))]
        held = np.zeros(count, dtype=np.int64)
        for number, data in enumerate(self.kept.get(keys.distinct)):
            if data:
                frame = pl.read_ipc_stream(io.BytesIO(data))
                held[number] = frame.height
                pieces.append(frame.with_columns(pl.lit(number, dtype=pl.Int64).alias(_KEY)))
        # Those that were kept come first.
        rows = pl.concat([*pieces[1:], pieces[0]]).sort(_KEY, maintain_order=True)
        starts = np.concatenate([[0], np.cumsum(held + added)])
        _, firsts = np.unique(keys.inverse, return_index=True)
        key_rows = batch.select(list(self._keys)).take(pa.array(firsts))
        now_us = int(int64_column(batch, INGEST_TIME_COLUMN).max())
        for made in self._told(rows, key_rows, starts, seen, seen + added):
            yield with_times(made, int64_column(made, WINDOW_END) - 1, now_us)
        self.seen.put(keys.distinct, seen + added)
        # From the first row that the next window has.
        total = seen + added
        following = (total // self._slide + 1) * self._slide
        stay = np.minimum(held + added, np.maximum(total - (following - self._rows), 0))
        stops = starts[1:]
        rows = rows.drop(_KEY)
        self.kept.put(
            keys.distinct, [_encoded(rows[stop - n : stop]) for stop, n in zip(stops, stay, strict=True)]
        )

    def _told(
        self,
        rows: pl.DataFrame,
        key_rows: pa.RecordBatch,
        starts: np.ndarray,
        seen: np.ndarray,
        total: np.ndarray,
    ) -> Iterator[pa.RecordBatch]:
        """Results of the windows that are complete.

        Args:
            rows: what was kept and what has come, by key.
            key_rows: key columns of each key.
            starts: where the rows of each key begin, and end.
            seen: rows of each key before these.
            total: and with them.
        """
        told = total // self._slide - seen // self._slide
        of_key = np.repeat(np.arange(len(told)), told)
        if not len(of_key):
            return
        number = np.arange(len(of_key)) - np.repeat(np.cumsum(told) - told, told) + 1
        last = (seen[of_key] // self._slide + number) * self._slide
        stops = starts[of_key + 1] - (total[of_key] - last)
        begins = np.maximum(stops - self._rows, starts[of_key])
        lengths = stops - begins
        bounds = np.flatnonzero(np.diff(np.cumsum(lengths) // _ROWS_MAX)) + 1
        for start, stop in itertools.pairwise([0, *bounds.tolist(), len(of_key)]):
            if start == stop:
                continue
            part = slice(start, stop)
            index = np.repeat(begins[part] - np.cumsum(lengths[part]) + lengths[part], lengths[part])
            index += np.arange(len(index))
            window = pl.Series(_WINDOW, np.repeat(np.arange(stop - start), lengths[part]))
            taken = rows[index].with_columns(window)
            made = taken.group_by(_WINDOW, maintain_order=True).agg(self._made)
            yield self._result(made, key_rows.take(pa.array(of_key[part])))

    def _result(self, made: pl.DataFrame, keys: pa.RecordBatch) -> pa.RecordBatch:
        table = self._aggregates.checked(made).drop(_WINDOW).to_arrow(compat_level=pl.CompatLevel.oldest())
        columns = [
            keys.column(field.name)
            if field.name in self._keys
            else table.column(field.name).combine_chunks().cast(field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _encoded(rows: pl.DataFrame) -> bytes:
    if not rows.height:
        return b""
    sink = io.BytesIO()
    rows.rechunk().write_ipc_stream(sink, compat_level=pl.CompatLevel.oldest())
    return sink.getvalue()
