"""Rows and their columns as aggregates take them in, as arrays for kernels, and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from weir.errors import WeirError
from weir.rows.records import EVENT_TIME_COLUMN
from weir.specs.aggregate_functions import AnyAggregate

#: Event times of rows that have none, or whose times nobody asks for.
NO_TIMES = np.empty(0, dtype=np.int64)


class Cells(NamedTuple):
    """Accumulators of entries."""

    #: int64, shape (entries, cells).
    integers: np.ndarray
    #: Bits of the cells that have a value, uint8, shape (entries, ceil(cells / 8)).
    presence: np.ndarray

    @property
    def floats(self) -> np.ndarray:
        """The same memory as float64."""
        return self.integers.view(np.float64)


class FoldRows(NamedTuple):
    """Rows that an aggregate takes in."""

    #: The aggregated column; None for a bare count.
    column: pa.Array | None
    #: uint8, 0 for rows that do not count; of length 0: all do. What a part makes of it, see ``parts``.
    mask: np.ndarray
    #: Event times, ms; int64. Of length 0: there are none.
    times_ms: np.ndarray


def event_times(batch: pa.RecordBatch) -> np.ndarray:
    """Event times of a batch, ms, int64; of length 0 if it has none, as outside a job."""
    index = batch.schema.get_field_index(EVENT_TIME_COLUMN)
    if index < 0:
        return NO_TIMES
    times_ms: np.ndarray = batch.column(index).to_numpy(zero_copy_only=True)
    return times_ms


def rows_that_count(column: pa.Array, mask: np.ndarray) -> np.ndarray:
    """uint8, 0 where null or masked; of length 0: all rows count."""
    if column.null_count == 0:
        return mask
    valid: np.ndarray = pc.cast(column.is_valid(), pa.uint8()).to_numpy(zero_copy_only=True)
    return valid if not len(mask) else valid & mask


def numbers(
    aggregate: AnyAggregate, column: pa.Array | None, mask: np.ndarray, target: pa.DataType
) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column as int64 or float64, and which of its rows count.

    Raises:
        WeirError: an integer does not fit 64 bits.
    """
    assert column is not None, "only a count goes without a column, which the graph checks"
    valid = rows_that_count(column, mask)
    try:
        cast = column if column.type == target else column.cast(target, safe=target == pa.int64())
    except pa.ArrowInvalid as error:
        raise WeirError(
            f"aggregate {name_of(aggregate)}: {error}; cast the column to float64 first"
        ) from error
    if cast.null_count:
        cast = cast.fill_null(0)
    return cast.to_numpy(zero_copy_only=True), valid


def name_of(aggregate: AnyAggregate) -> str:
    """Return a name of an aggregate, for messages."""
    return f"{aggregate.output!r} ({aggregate.function} of {aggregate.column!r})"


def array_of(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    """An array that is null where ``valid`` is 0 or False."""
    values = np.ascontiguousarray(values)
    return pa.array(values) if valid.all() else pa.array(values, mask=valid == 0)


def words(
    aggregate: AnyAggregate, column: pa.Array | None, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values of any type that has 8 bytes at most, as int64, and which rows count."""
    assert column is not None, "only a count goes without a column, which the graph checks"
    dtype = column.type
    if pat.is_floating(dtype):
        values, valid = numbers(aggregate, column, mask, pa.float64())
        return np.ascontiguousarray(values).view(np.int64), valid
    return numbers(aggregate, as_numbers(column), mask, pa.int64())


def as_numbers(column: pa.Array) -> pa.Array:
    """Booleans, dates and times as int64; numbers as they are."""
    dtype = column.type
    if pat.is_boolean(dtype):
        return column.cast(pa.int64())
    if pat.is_temporal(dtype):
        found = column.view(pa.int32() if dtype.bit_width == 32 else pa.int64())
        return found.cast(pa.int64())
    return column


def from_words(values: np.ndarray, valid: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """What :func:`words` took: numbers as int64 or float64, others of their own type."""
    values = np.ascontiguousarray(values)
    if pat.is_floating(dtype):
        return array_of(values.view(np.float64), valid)
    found = array_of(values, valid)
    if pat.is_boolean(dtype):
        return found.cast(pa.bool_())
    if pat.is_temporal(dtype):
        return (found.cast(pa.int32()) if dtype.bit_width == 32 else found).view(dtype)
    return found


def lists_of(values: np.ndarray, counts: np.ndarray) -> pa.Array:
    """A list of each row's first ``counts`` values; ``values`` has the shape (rows, size)."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    flat = values[np.arange(values.shape[1]) < counts[:, None]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(flat)))
