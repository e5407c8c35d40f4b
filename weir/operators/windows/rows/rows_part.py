"""The operator that leaves out rows before the exchange of windows that need the first rows of an order only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from typing_extensions import override

from weir.author.operator import Operator
from weir.keys import hashing as weir_keys
from weir.operators.keyed.row_ranks import row_ranks
from weir.operators.windows.panes.pane_times import panes_of
from weir.operators.windows.rows.best_kernels import unbeaten
from weir.rows.frames import frame_of
from weir.rows.records import EVENT_TIME_COLUMN, int64_column, plain_array, taken, watermarks_of
from weir.specs.row_order import OrderColumn
from weir.specs.window_parts import WindowRowsPartSpec

#: Of a batch whose groups need more than this share of its rows, or that keeps more than this share, all rows pass.
_NEEDED_SHARE, _KEPT_SHARE = 0.25, 0.75
#: Of so many rows of a group each better one is put in its place among those before. Where each row is better than
#: all before it, that takes as long as sorting from about 32 on, and six times as long with 256.
_WANTED_MAX = 64
#: Where more are left after the first column of an order, the others decide, too.
_LEFT_SHARE = 0.25
#: After a batch that passes so many others do without a look.
_PASSED = 15
_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class WindowRowsPartOperator(Operator):
    """Leaves out rows of a batch that enough others of their key and pane are before. Keeps nothing between batches.

    A row that is late stays, so that it is counted, and takes no place from others: it may be too late.
    """

    def __init__(self, spec: WindowRowsPartSpec) -> None:
        self._spec = spec
        panes = panes_of(spec.window)
        self._pane_ms, self._offset_ms = panes.pane_ms, panes.offset_ms
        self._passed = 0

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return one batch, with as many rows or fewer."""
        if batch.num_rows < max(self._spec.rows_min, 2):
            return (batch,)
        if self._passed > 0:
            self._passed -= 1
            return (batch,)
        column = watermarks_of(batch)
        late = None if column is None else column > int64_column(batch, EVENT_TIME_COLUMN)
        if late is None or not late.any():
            rows = self._unbeaten(batch)
        elif late.all():
            return (batch,)
        else:
            in_time = np.flatnonzero(~late)
            found = self._unbeaten(taken(batch, in_time))
            rows = np.sort(np.concatenate([np.flatnonzero(late), in_time[found]]))
        if len(rows) > _KEPT_SHARE * batch.num_rows:
            self._passed = _PASSED
            return (batch,)
        return (taken(batch, rows),)

    def _unbeaten(self, batch: pa.RecordBatch) -> np.ndarray:
        """Numbers of the rows that may be among the first of their windows, ascending; int64."""
        spec, count = self._spec, batch.num_rows
        groups, group_count = self._groups(batch)
        if not are_few(group_count, spec.rows, _NEEDED_SHARE * count):
            return np.arange(count)
        codes = order_codes(batch.column(spec.order[0].name), spec.order[0])
        if codes is None:
            return self._chosen(groups, group_count, -row_ranks(frame_of(self._ordered(batch)), spec.order))
        rows = self._chosen(groups, group_count, codes)
        if len(spec.order) > 1 and len(rows) > _LEFT_SHARE * count:
            ranks = row_ranks(frame_of(taken(self._ordered(batch), rows)), spec.order)
            rows = rows[self._chosen(groups[rows], group_count, -ranks)]
        return rows

    def _chosen(self, groups: np.ndarray, group_count: int, codes: np.ndarray) -> np.ndarray:
        return chosen_rows(groups, group_count, codes, self._spec.rows)

    def _ordered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select([each.name for each in self._spec.order])

    def _groups(self, batch: pa.RecordBatch) -> tuple[np.ndarray, int]:
        """The key and pane of each row, and how many there are; see :func:`group_numbers`."""
        panes = (int64_column(batch, EVENT_TIME_COLUMN) - self._offset_ms) // self._pane_ms
        return group_numbers([plain_array(panes), *map(batch.column, self._spec.key_columns)])


def group_numbers(columns: Sequence[pa.Array]) -> tuple[np.ndarray, int]:
    """Number the groups of rows that are equal in these columns.

    Rows of a pane come together mostly, and often those of a key: one of each run is looked at.

    Returns:
        The group of each row, as int64 from 0 on, and how many groups there are.
    """
    differs = np.zeros(len(columns[0]), dtype=np.bool_)
    differs[0] = True
    for column in columns:
        differs[1:] |= _differs_from_next(column)
    starts = np.flatnonzero(differs)
    if len(starts) == 1:
        return np.zeros(len(differs), dtype=np.int64), 1
    found = [column.take(plain_array(starts)) for column in columns]
    names = [str(number) for number in range(len(columns))]
    keys = weir_keys.key_bytes(pa.RecordBatch.from_arrays(found, names), names)
    firsts, _, inverse = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
    return inverse[np.cumsum(differs) - 1], len(firsts)


def are_few(group_count: int, wanted: int, places_max: float) -> bool:
    """Whether looking for so many rows of each group is quicker than sorting, and there are so many places at most."""
    return wanted <= _WANTED_MAX and group_count * wanted <= places_max


def chosen_rows(groups: np.ndarray, group_count: int, codes: np.ndarray, wanted: int) -> np.ndarray:
    """Return the numbers of the rows that fewer than ``wanted`` of their group have a higher code than; ascending."""
    rows = np.empty(len(groups), dtype=np.int64)
    best = np.empty((group_count, wanted), dtype=np.int64)
    counts = np.zeros(group_count, dtype=np.int64)
    return rows[: unbeaten(groups, codes, best, counts, rows)]


def _differs_from_next(column: pa.Array) -> np.ndarray:
    """Whether each value but the last differs from the one after it, or one of them is null; bool."""
    if not column.null_count and pat.is_integer(column.type):
        values = column.to_numpy(zero_copy_only=True)
        differs: np.ndarray = values[1:] != values[:-1]
    else:
        equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1)).fill_null(False)
        differs = ~equal.to_numpy(zero_copy_only=False)
    return differs


def order_codes(column: pa.Array, order: OrderColumn) -> np.ndarray | None:
    """Numbers of the values of a column: no row has a lower one than a row after it in the order has.

    Different values may have one number in common, as null has with another.

    Returns:
        int64, shape (rows,); None: values of this type have no numbers.
    """
    dtype, is_null = column.type, None
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
    if pat.is_floating(dtype):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # Both zeros are equal; bits of numbers below 0 go the other way, and NaN is above all.
        bits = (values + 0.0).view(np.int64)
        codes = np.where(np.isnan(values), _HIGHEST, np.where(bits < 0, bits ^ _HIGHEST, bits))
    elif pat.is_integer(dtype) or pat.is_boolean(dtype):
        whole = column.cast(pa.uint8()) if pat.is_boolean(dtype) else column
        values = whole.fill_null(0).to_numpy(zero_copy_only=False)
        if values.dtype == np.uint64:
            values = (values ^ np.uint64(1 << 63)).view(np.int64)
        codes = values.astype(np.int64, copy=False)
    elif pat.is_timestamp(dtype) or pat.is_date(dtype) or pat.is_time(dtype) or pat.is_duration(dtype):
        whole = column.view(pa.int32() if dtype.bit_width == 32 else pa.int64())
        codes = whole.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    else:
        return None
    if order.ascending:
        codes = ~codes
    if is_null is not None:
        codes = np.where(is_null, _HIGHEST if order.nulls_first else _LOWEST, codes)
    return codes
