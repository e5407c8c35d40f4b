"""Values over frames of rows: those of a key that lie together, in their order. Pure.

Sums of floats are computed from the first row of a frame to its last one, running ones row by row: so they do not
depend on how rows were cut into batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import WeirError
from weir.specs.over import OverColumn, OverFunction

_INT64 = np.iinfo(np.int64)
#: Integers wrap around: floats of the same sums are farther away then, and nearer otherwise.
_WRAPPED = 2.0**62


class Values(NamedTuple):
    """A column as numbers."""

    #: int64 or float64; 0 where there is no value.
    numbers: np.ndarray
    #: bool.
    valid: np.ndarray


class Running(NamedTuple):
    """A running value after rows: its number, which counts if ``counts`` is above 0, and how many values it is of."""

    numbers: np.ndarray
    counts: np.ndarray


def values_of(column: pa.Array | None, count: int) -> Values:
    """A column as numbers; None: of ``count`` rows, which count whatever is in them.

    Raises:
        WeirError: an integer does not fit 64 bits; the message does not say which column.
    """
    if column is None:
        return Values(np.ones(count, dtype=np.int64), np.ones(count, dtype=np.bool_))
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        return Values(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False), valid)
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if not pa.types.is_integer(column.type):
        # Only whether it is there counts.
        return Values(np.ones(len(column), dtype=np.int64), valid)
    try:
        plain = column.fill_null(0).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise WeirError(f"{error}; cast the column to float64 first") from error
    return Values(plain.to_numpy(), valid)


def column_of(numbers: np.ndarray, valid: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """The opposite of :func:`values_of`: an array of a type, null where there is no value."""
    made = pa.array(numbers, mask=~valid)
    if pa.types.is_temporal(dtype):
        return made.cast(pa.int32()).view(dtype) if dtype.bit_width == 32 else made.view(dtype)
    return made.cast(dtype)


def key_starts(keys: np.ndarray) -> np.ndarray:
    """Return of each row the first one of its key; ``keys`` (int64) has those of a key together."""
    every = np.arange(len(keys))
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    starts: np.ndarray = np.maximum.accumulate(np.where(is_first, every, 0))
    return starts


def range_starts(keys: np.ndarray, times: np.ndarray, before: int) -> np.ndarray:
    """Return of each row the first of its key whose time is at most ``before`` earlier; times of a key ascend."""
    lowest = times - before
    moments = np.unique(np.concatenate([times, lowest]))
    places = keys * len(moments) + np.searchsorted(moments, times)
    found: np.ndarray = np.searchsorted(places, keys * len(moments) + np.searchsorted(moments, lowest))
    return found


def framed(function: OverFunction, values: Values, starts: np.ndarray, stops: np.ndarray) -> Running:
    """An aggregate of each row's frame, ``starts <= row < stops``; none is empty.

    Raises:
        WeirError: a sum of integers passes 64 bits; the message does not say of which column.
    """
    counts = np.concatenate([[0], np.cumsum(values.valid)])
    count = counts[stops] - counts[starts]
    numbers = values.numbers
    if function == "count":
        return Running(count, count)
    if function in ("sum", "mean") and numbers.dtype == np.int64:
        counted = np.where(values.valid, numbers, 0)
        sums = np.concatenate([[0], np.cumsum(counted)])
        found = sums[stops] - sums[starts]
        if _may_wrap(counted, int(count.max(initial=0))):
            bounds = np.stack([starts, stops], axis=1).ravel()
            about = np.add.reduceat(np.append(counted.astype(np.float64), 0.0), bounds)[::2]
            _check_wrapped(found, about)
        return Running(found, count)
    nothing: int | float = 0
    ufunc: np.ufunc = np.add
    if function in ("min", "max"):
        is_min, is_whole = function == "min", numbers.dtype == np.int64
        nothing = np.nan if not is_whole else _INT64.max if is_min else _INT64.min
        # NaN counts only if there is no other value, as in aggregates.
        ufunc = np.fmin if is_min else np.fmax
    padded = np.append(np.where(values.valid, numbers, nothing), nothing).astype(numbers.dtype)
    bounds = np.stack([starts, stops], axis=1).ravel()
    return Running(ufunc.reduceat(padded, bounds)[::2], count)


def running(
    function: OverFunction, values: Values, keys: np.ndarray, carried: Running, carried_keys: np.ndarray
) -> Running:
    """An aggregate of all rows of a key up to each row.

    Args:
        function: the aggregate.
        values: of rows, those of a key together.
        keys: of the rows; int64, ascending.
        carried: what the aggregate was of the rows before these,
        carried_keys: of which keys.

    Raises:
        WeirError: a sum of integers passes 64 bits; the message does not say of which column.
    """
    of = np.concatenate([carried_keys, keys])
    order = np.argsort(of, kind="stable")
    is_row = order >= len(carried_keys)
    numbers = np.concatenate([carried.numbers.astype(values.numbers.dtype), values.numbers])[order]
    valid = np.concatenate([carried.counts > 0, values.valid])[order]
    counts = np.concatenate([carried.counts, values.valid.astype(np.int64)])[order]
    frame = pl.DataFrame({"key": of[order], "count": counts, "valid": valid, "value": numbers})
    frame = frame.with_columns(value=pl.when("valid").then("value"))
    value = pl.col("value")
    if function == "min":
        made = value.cum_min().forward_fill()
    elif function == "max":
        made = value.cum_max().forward_fill()
    else:
        made = value.fill_null(0).cum_sum()
    told = frame.select(made.over("key").fill_null(0).alias("value"), pl.col("count").cum_sum().over("key"))
    is_whole_sum = function in ("sum", "mean") and numbers.dtype == np.int64
    if is_whole_sum and _may_wrap(np.where(valid, numbers, 0), len(numbers)):
        about = frame.select(value.cast(pl.Float64).fill_null(0).cum_sum().over("key")).to_series()
        _check_wrapped(told["value"].to_numpy(), about.to_numpy())
    return Running(told["value"].to_numpy()[is_row], told["count"].to_numpy()[is_row])


def _may_wrap(numbers: np.ndarray, count: int) -> bool:
    """Whether sums of so many of these integers may pass 64 bits."""
    return bool(np.abs(numbers.astype(np.float64)).max(initial=0) * count >= _WRAPPED)


def _check_wrapped(sums: np.ndarray, about: np.ndarray) -> None:
    """Refuse sums of integers that have wrapped around; ``about`` has the same ones of floats."""
    if (np.abs(sums.astype(np.float64) - about) > _WRAPPED).any():
        raise WeirError("a sum passes 64 bits; cast the column to float64 first")


def told(each: OverColumn, found: Running, dtype: pa.DataType) -> pa.Array:
    """The column that a row has of an aggregate."""
    if each.function == "count":
        return pa.array(found.counts.astype(np.int64))
    valid = found.counts > 0
    numbers = found.numbers
    if each.function == "mean":
        numbers = numbers / np.where(valid, found.counts, 1)
    return column_of(numbers, valid, dtype)
