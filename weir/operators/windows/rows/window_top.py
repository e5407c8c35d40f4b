"""The first rows of each window in an order: chosen in each subtask first, then of all.

Of one column whose largest values count, the state of a window are its rows as a chunk of Arrow IPC. Of other orders,
or where columns divide the rows of a window, it is a value of ``weir.state.handles.stored_rows``: there may be many
groups.
"""

from __future__ import annotations

import dataclasses
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
from weir.operators.keyed.row_ranks import sorted_rows
from weir.operators.keyed.state_codec import kept_form
from weir.operators.windows.rows.exact_places import exact_places
from weir.operators.windows.rows.row_chunks import chunk_of_rows, rows_of_chunk
from weir.operators.windows.rows.rows_part import are_few, chosen_rows, group_numbers, order_codes
from weir.rows.frames import frame_of
from weir.rows.records import EVENT_TIME_COLUMN, UNNAMED_COLUMN, int64_column, user_columns, with_times
from weir.specs import KeyedProcessSpec
from weir.specs.row_order import OrderColumn
from weir.specs.window_top import WindowTopPartSpec, WindowTopSpec
from weir.specs.windows import WINDOW_BOUNDS, WINDOW_END
from weir.state.handles.stored_rows import encoded_rows, read_rows, write_rows


def largest_rows(batch: pa.RecordBatch, by: str, rows: int, *, ties: bool) -> np.ndarray:
    """Numbers of the rows with the largest values of each window, ascending; int64.

    Args:
        batch: with both bounds of windows.
        by: the column; rows where it is null or NaN are never among them.
        rows: of each window.
        ties: also all rows whose value is that of the last of these. Else equal values go by the other columns, so that
            the result does not depend on the order in which rows come.
    """
    column = batch.column(by)
    codes = order_codes(column, OrderColumn(by)) if batch.num_rows else None
    is_value = column.is_valid().to_numpy(zero_copy_only=False)
    if codes is not None and pa.types.is_floating(column.type):
        is_value &= ~pc.is_nan(column).fill_null(False).to_numpy(zero_copy_only=False)
        # Above all numbers in an order, and here none of them.
        codes = np.where(is_value, codes, np.iinfo(np.int64).min)
    few = _unbeaten(batch, WINDOW_BOUNDS, codes, rows)
    if few is None:
        return _sorted_out(batch, by, rows, ties=ties)
    kept = is_value[few[0]]
    found: np.ndarray = few[0][kept]
    if not ties and np.bincount(few[1][kept], minlength=1).max() > rows:
        found = found[_sorted_out(batch.take(pa.array(found)), by, rows, ties=False)]
    return found


def _unbeaten(
    batch: pa.RecordBatch, names: Iterable[str], codes: np.ndarray | None, rows: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Numbers of the rows that fewer than ``rows`` of their group have a higher code than, and their groups; int64.

    None: values have no codes, or sorting all rows is quicker. ``names``: of the columns that say the group.
    """
    if codes is None:
        return None
    groups, count = group_numbers([batch.column(name) for name in names])
    if not are_few(count, rows, max(_NEEDED_MAX, batch.num_rows)):
        return None
    found = chosen_rows(groups, count, codes, rows)
    return found, groups[found]


def _sorted_out(batch: pa.RecordBatch, by: str, rows: int, *, ties: bool) -> np.ndarray:
    """Return what :func:`largest_rows` does, of values of any type and any number of rows."""
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


#: So many places are always made, however few rows there are.
_NEEDED_MAX = 1024

#: Of rows in an order: the group that they are in, and the place in it, from 0 on.
_GROUP, _PLACE = "\1group", "\1place"


def first_rows(
    rows: pl.DataFrame, groups: list[str], order: tuple[OrderColumn, ...], count: int, *, ties: bool
) -> pl.DataFrame:
    """The first rows of each group, those of a group together and in their order.

    Args:
        rows: of all groups; equal ones in the order go by the other columns, unless ``ties`` is there.
        groups: columns that say which group a row is in.
        order: of the rows of a group.
        count: of each group.
        ties: also all rows that are equal to the last of these in the order.

    Returns:
        Numbers of the rows in :data:`UNNAMED_COLUMN`, and their places from 0 on in :data:`_PLACE`, where equal ones
        have one place in common with ``ties``.
    """
    names = [each.name for each in order]
    others = [] if ties else [each for each in rows.columns if each not in (*groups, *names)]
    ordered = sorted_rows(rows.with_row_index(UNNAMED_COLUMN), order, before=groups, after=others)
    place = pl.int_range(pl.len(), dtype=pl.Int64).over(groups)
    placed = ordered.with_columns(place.alias(_PLACE))
    if ties:
        placed = placed.with_columns(pl.col(_PLACE).min().over([*groups, *names]))
    return placed.filter(pl.col(_PLACE) < count).select(UNNAMED_COLUMN, _PLACE)


class WindowTopPartOperator(Operator):
    """The operator that passes on a batch's rows that may be among the first of their windows. Keeps nothing."""

    def __init__(self, spec: WindowTopPartSpec) -> None:
        self._spec = spec

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        spec = self._spec
        if spec.order:
            groups = [*WINDOW_BOUNDS, *spec.key]
            first = spec.order[0]
            codes = order_codes(batch.column(first.name), first) if batch.num_rows else None
            # By the first column alone: few are left to sort.
            found = _unbeaten(batch, groups, codes, spec.rows)
            few = batch if found is None else batch.take(pa.array(found[0]))
            placed = None
            if found is not None:
                placed = exact_places(few, found[1], spec.order, spec.rows, ties=spec.ties)
            if placed is not None:
                yield few.take(pa.array(np.sort(placed[0])))
                return
            frame = frame_of(few.select(user_columns(few.schema)))
            rows = first_rows(frame, groups, spec.order, spec.rows, ties=spec.ties)[UNNAMED_COLUMN].sort()
            yield few.take(rows.to_arrow())
            return
        yield batch.take(pa.array(largest_rows(batch, spec.by, spec.rows, ties=spec.ties)))


class WindowTop(KeyedProcess):
    """Keeps the rows with the largest values of each window until the watermark has reached its end."""

    rows = ValueState(pl.Binary)

    def __init__(self, spec: WindowTopSpec) -> None:
        self._by, self._rows_max, self._ties = spec.by, spec.rows, spec.ties
        self._schema = spec.schema
        # Rows that another choice would keep are not there. Checkpoints of before do not say what was chosen.
        self.state_form = {
            "by": spec.by,
            "rows": spec.rows,
            "ties": spec.ties,
            "kept": kept_form(spec.schema),
        }

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
            *(self._kept(data) for data in self.rows.get(distinct).to_list() if data is not None),
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
                found = self._kept(data)
                by = [(self._by, "descending")]
                ordered = found.take(pc.sort_indices(found, sort_keys=by))
                ends_ms = np.full(ordered.num_rows, time_ms, dtype=np.int64)
                yield with_times(ordered.cast(self._schema), ends_ms, self._clock.now_us())
        self.rows.put(keys, [None] * batch.num_rows)

    def _kept(self, data: bytes) -> pa.RecordBatch:
        """Rows that are kept of a window; the job may have had their columns in another order."""
        return rows_of_chunk(data).select(self._schema.names)


class OrderedWindowTop(KeyedProcess):
    """Keeps the first rows of each window and group until the watermark has reached its end."""

    rows = ValueState(pl.Binary)
    #: The state of :class:`WindowTop` has other bytes.
    unsaid_form = "the largest rows of one column"

    def __init__(self, spec: WindowTopSpec) -> None:
        self._spec, self._schema, self._told_schema = spec, spec.schema, spec.told_schema
        order = [dataclasses.asdict(each) for each in spec.order]
        # Rows that another order would keep are not there.
        self.state_form = {
            **{"order": order, "rows": spec.rows, "ties": spec.ties, "columns": spec.schema.names},
            "kept": kept_form(spec.schema),
        }

    def open(self, context: OperatorContext) -> None:
        """Take the clock."""
        self._clock = context.clock

    def process_batch(self, batch: pa.RecordBatch, context: KeyContext) -> None:
        """Merge rows with those that are kept of their groups."""
        keys = context.keys(batch)
        distinct = keys.distinct
        given = batch.select(self._schema.names).cast(self._schema)
        groups, whole = self._kept(self.rows.get(distinct).to_list(), keys.inverse, given)
        numbers, _ = self._first(groups, whole)
        kept, of_group = whole.take(pa.array(numbers)), groups[numbers]
        encoded = encoded_rows(kept.columns)
        counts = np.bincount(of_group, minlength=len(distinct))
        orders = np.zeros(len(numbers), dtype=np.int64)
        starts, lengths = encoded.offsets[:-1].astype(np.int64), np.diff(encoded.offsets).astype(np.int64)
        # Each key of the batch has a row at least, and the groups are in their order.
        self.rows.put(distinct, write_rows(counts, orders, starts, lengths, encoded.data))
        ends_ms = int64_column(batch, WINDOW_END)[keys.first_rows]
        # Sessions leave when the watermark is above their end, which is their event time.
        due_ms = ends_ms + (int64_column(batch, EVENT_TIME_COLUMN)[keys.first_rows] == ends_ms)
        context.timers.register_ends(due_ms, distinct)

    def on_timers(self, batch: pa.RecordBatch, context: KeyContext) -> Iterator[pa.RecordBatch]:
        """Tell the rows of windows that are complete."""
        keys = context.keys(batch)
        nothing = self._schema.empty_table().to_batches()
        given = nothing[0] if nothing else pa.RecordBatch.from_pylist([], schema=self._schema)
        groups, whole = self._kept(self.rows.get(keys).to_list(), np.empty(0, dtype=np.int64), given)
        self.rows.put(keys, [None] * batch.num_rows)
        if not whole.num_rows:
            return
        numbers, places = self._first(groups, whole)
        told = whole.take(pa.array(numbers))
        if self._spec.rank is not None:
            told = told.append_column(self._told_schema.field(self._spec.rank), pa.array(places + 1))
        times_ms = (int64_column(batch, EVENT_TIME_COLUMN) - 1)[groups[numbers]]
        yield with_times(told.cast(self._told_schema), times_ms, self._clock.now_us())

    def _kept(
        self, values: list[bytes | None], of_given: np.ndarray, given: pa.RecordBatch
    ) -> tuple[np.ndarray, pa.RecordBatch]:
        """The group of each row (int64), and the rows: those that are kept, then the given ones."""
        stored = read_rows(values)
        if not len(stored.orders):
            return of_given, given
        columns = stored.decoded(np.arange(len(stored.orders)), self._schema.types)
        kept = pa.RecordBatch.from_arrays(columns, names=self._schema.names).cast(self._schema)
        return np.concatenate([stored.keys, of_given]), pa.concat_batches([kept, given])

    def _first(self, groups: np.ndarray, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the first rows of each group, and their places from 0 on, int64; see :func:`first_rows`."""
        spec = self._spec
        placed = exact_places(rows, groups, spec.order, spec.rows, ties=spec.ties)
        if placed is not None:
            return placed
        frame = frame_of(rows).with_columns(pl.Series(_GROUP, groups, pl.Int64))
        found = first_rows(frame, [_GROUP], spec.order, spec.rows, ties=spec.ties)
        return found[UNNAMED_COLUMN].to_numpy().astype(np.int64), found[_PLACE].to_numpy()


def make_window_top(spec: WindowTopSpec) -> KeyedProcessOperator:
    """The operator that chooses among what subtasks have chosen."""
    kind = OrderedWindowTop if spec.order else WindowTop
    made = KeyedProcessSpec(
        spec.key_columns, functools.partial(kind, spec), spec.told_schema, spec.states, spec.key_schema
    )
    return KeyedProcessOperator(made)
