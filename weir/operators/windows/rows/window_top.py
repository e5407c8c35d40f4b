"""The rows with the largest values of each window, over all keys: chosen in each subtask first, then of all."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from weir.author.key_context import KeyContext
from weir.author.keyed_process import KeyedProcess
from weir.author.operator import Operator, OperatorContext
from weir.author.states import ValueState
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.windows.rows.row_chunks import chunk_of_rows, rows_of_chunk
from weir.rows.frames import frame_of
from weir.rows.records import EVENT_TIME_COLUMN, UNNAMED_COLUMN, int64_column, user_columns, with_times
from weir.specs import KeyedProcessSpec
from weir.specs.window_top import WindowTopPartSpec, WindowTopSpec
from weir.specs.windows import WINDOW_BOUNDS, WINDOW_END


def largest_rows(batch: pa.RecordBatch, by: str, rows: int, *, ties: bool) -> np.ndarray:
    """Numbers of the rows with the largest values of each window, ascending; int64.

    Args:
        batch: with both bounds of windows.
        by: the column; rows where it is null or NaN are never among them.
        rows: of each window.
        ties: also all rows whose value is that of the last of these. Else equal values go by the other columns, so that
            the result does not depend on the order in which rows come.
    """
    frame = frame_of(batch).with_row_index(UNNAMED_COLUMN)
    value, bounds = pl.col(by), list(WINDOW_BOUNDS)
    if frame.schema[by].is_float():
        value = value.fill_nan(None)
    is_one = all(frame.get_column(name).n_unique() == 1 for name in bounds)
    best = value.max() if rows == 1 else value.rank("min", descending=True)
    best = best if is_one else best.over(bounds)
    found = frame.filter(value.is_not_null() & (value == best if rows == 1 else best <= rows))
    if not ties:
        others = [name for name in user_columns(batch.schema) if name not in (by, *bounds)]
        found = found.sort([*bounds, by, *others], descending=[False, False, True, *([False] * len(others))])
        found = found.group_by(bounds, maintain_order=True).head(rows)
    numbers: np.ndarray = found.get_column(UNNAMED_COLUMN).sort().cast(pl.Int64).to_numpy()
    return numbers


class WindowTopPartOperator(Operator):
    """Of each batch, the rows that may be among the largest of their windows. Keeps nothing."""

    def __init__(self, spec: WindowTopPartSpec) -> None:
        self._spec = spec

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        spec = self._spec
        yield batch.take(pa.array(largest_rows(batch, spec.by, spec.rows, ties=spec.ties)))


class WindowTop(KeyedProcess):
    """Keeps the largest rows of each window until the watermark has reached its end."""

    rows = ValueState(pl.Binary)

    def __init__(self, spec: WindowTopSpec) -> None:
        self._by, self._rows_max, self._ties = spec.by, spec.rows, spec.ties
        self._schema = spec.schema

    def open(self, context: OperatorContext) -> None:
        """Take the clock."""
        self._clock = context.clock

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext) -> None:
        """Merge rows with those that are kept of their windows."""
        keys = context.keys(batch)
        distinct = keys.distinct
        plain = batch.select(self._schema.names)
        parts = [
            plain,
            *(rows_of_chunk(data) for data in self.rows.get(distinct).to_list() if data is not None),
        ]
        joined = pa.Table.from_batches([part.cast(self._schema) for part in parts]).combine_chunks()
        (whole,) = joined.to_batches()
        kept = whole.take(pa.array(largest_rows(whole, self._by, self._rows_max, ties=self._ties)))
        ends = kept.column(WINDOW_END).to_numpy()
        starts = kept.column(WINDOW_BOUNDS[0]).to_numpy()
        bounds = plain.take(pa.array(keys.first_rows)).select(list(WINDOW_BOUNDS)).to_pylist()
        values = []
        for window in bounds:
            start_ms, end_ms = (window[name] for name in WINDOW_BOUNDS)
            rows = np.flatnonzero((ends == end_ms) & (starts == start_ms))
            values.append(chunk_of_rows(kept.take(pa.array(rows))))
        self.rows.put(distinct, values)
        due_ms = np.array([window[WINDOW_END] for window in bounds], np.int64)
        # Sessions leave when the watermark is above their end, which is their event time.
        due_ms += int64_column(batch, EVENT_TIME_COLUMN)[keys.first_rows] == due_ms
        # Authors' timers are between the years 1 and 9999, rows need not be.
        context.timers.register_ends(due_ms, distinct)

    def on_timers(self, batch: pa.RecordBatch, context: KeyContext) -> Iterator[pa.RecordBatch]:
        """Tell the rows of windows that are complete."""
        keys = context.keys(batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN) - 1
        for data, time_ms in zip(self.rows.get(keys).to_list(), times_ms.tolist(), strict=True):
            if data is not None:
                found = rows_of_chunk(data)
                by = [(self._by, "descending")]
                ordered = found.take(pc.sort_indices(found, sort_keys=by))
                ends_ms = np.full(ordered.num_rows, time_ms, dtype=np.int64)
                yield with_times(ordered.cast(self._schema), ends_ms, self._clock.now_us())
        self.rows.put(keys, [None] * batch.num_rows)


def make_window_top(spec: WindowTopSpec) -> KeyedProcessOperator:
    """The operator that chooses among what subtasks have chosen."""
    made = KeyedProcessSpec(
        spec.key_columns, functools.partial(WindowTop, spec), spec.schema, spec.states, spec.key_schema
    )
    return KeyedProcessOperator(made)
