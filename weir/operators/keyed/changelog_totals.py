"""What the keys of a changelog aggregate have, and how that is kept.

A key has one value in the store, version 1 or 2:

==========  =============================================================================================
bytes       field
==========  =============================================================================================
1           version
8           rows that are there, little endian; below 0 while some were taken away before they came
16 each     of each aggregate: how many values count, and the sum of them (int64, or float64 of those that are finite)
24 each     only in version 2: of each sum and mean of floats how many values are NaN, infinity, and minus infinity
the rest    of each function of ``KEEPS_VALUES``: 4 bytes, how many different values there are; the values in ascending
            order, 8 bytes each, as int64 or float64; then how often each of them is there, 8 bytes each
==========  =============================================================================================

Version 2 is of keys that have values which are not finite. Programs of before wrote version 1 for these as well, and
added them to the sum, which says NaN or infinity until the key has no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weir.errors import StateMismatchError
from weir.specs.aggregate_functions import PERCENTILES
from weir.specs.keyed import Aggregate
from weir.state.packed import PackedValues

#: Without numbers of values that are not finite, and with them.
_VERSION, _VERSION_NOT_FINITE = 1, 2
EXTREMES = ("min", "max")
#: Functions that keep all values, in ascending order; "quantile" keeps their buckets in place of them, as int64.
KEEPS_VALUES = (*EXTREMES, "quantile", *PERCENTILES)
_SUMS = ("sum", "mean")


@dataclass
class Totals:
    """What the keys of a batch have; arrays have the shape (keys,) or (keys, aggregates)."""

    rows: np.ndarray
    counts: np.ndarray
    #: int64, or the bits of float64.
    sums: np.ndarray
    #: How many values are NaN, infinity and minus infinity; (keys, sums of floats, 3).
    not_finite: np.ndarray
    #: By aggregate that keeps values: values and how often each is there, for each key.
    values: dict[int, list[tuple[np.ndarray, np.ndarray]]]

    def copy(self) -> Totals:
        """Return a copy of the arrays; pairs of values are replaced, not changed."""
        values = {index: list(pairs) for index, pairs in self.values.items()}
        return Totals(self.rows.copy(), self.counts.copy(), self.sums.copy(), self.not_finite.copy(), values)


def has_rows(value: bytes) -> bool:
    """Return whether a key with this value in the store has rows; for questions."""
    return int.from_bytes(value[1:9], "little", signed=True) > 0


class TotalsForm:
    """What the keys of some aggregates have is kept in this form."""

    def __init__(self, aggregates: Sequence[Aggregate], sums_are_floats: Sequence[bool]) -> None:
        """``sums_are_floats``: of each, whether its values are summed as floats."""
        self._width = len(aggregates)
        self._fixed_bytes = 9 + 16 * self._width
        self._floats = {index for index, is_float in enumerate(sums_are_floats) if is_float}
        #: Aggregates that keep all values.
        self.keeping = [index for index, each in enumerate(aggregates) if each.function in KEEPS_VALUES]
        #: Aggregates that are made of a sum of floats.
        self.float_sums = [
            index for index, each in enumerate(aggregates) if each.function in _SUMS and index in self._floats
        ]

    def read(self, stored: PackedValues) -> Totals:
        """What keys have whose values in the store are these.

        Raises:
            StateMismatchError: a later program has written them.
        """
        count, fixed_bytes = len(stored), self._fixed_bytes
        there = np.flatnonzero(stored.lengths)
        heads = PackedValues(stored.data, stored.starts[there], np.full(len(there), fixed_bytes)).packed()
        found = heads.data.reshape(len(there), fixed_bytes)
        if not np.isin(found[:, 0], (_VERSION, _VERSION_NOT_FINITE)).all():
            wrong = next(each for each in found[:, 0].tolist() if each not in (_VERSION, _VERSION_NOT_FINITE))
            raise StateMismatchError(
                f"aggregates have format version {wrong}, this program reads {_VERSION} and {_VERSION_NOT_FINITE}"
            )
        cells = np.zeros((count, 1 + 2 * self._width), dtype=np.int64)
        cells[there] = np.ascontiguousarray(found[:, 1:]).view(np.int64)
        none = np.empty(0, dtype=np.int64)
        values: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {index: [] for index in self.keeping}
        not_finite = np.zeros((count, len(self.float_sums), 3), dtype=np.int64)
        has_numbers = np.zeros(count, dtype=bool)
        has_numbers[there] = found[:, 0] == _VERSION_NOT_FINITE
        for position in np.flatnonzero(has_numbers).tolist():
            not_finite[position].ravel()[:] = np.frombuffer(
                stored.value(position),
                dtype=np.int64,
                count=not_finite[position].size,
                offset=fixed_bytes,
            )
        for position in range(count) if self.keeping else ():
            value = stored.value(position)
            at = fixed_bytes + (8 * not_finite[position].size if has_numbers[position] else 0)
            for index in self.keeping:
                if not value:
                    values[index].append((none, none))
                    continue
                size = int.from_bytes(value[at : at + 4], "little")
                numbers_at, at = at + 4, at + 4 + 16 * size
                both = np.frombuffer(value[numbers_at:at], dtype=np.int64)
                values[index].append((both[:size], both[size:]))
        return Totals(
            cells[:, 0].copy(),
            cells[:, 1::2].copy(order="F"),
            cells[:, 2::2].copy(order="F"),
            not_finite,
            values,
        )

    def written(self, stored: PackedValues, totals: Totals) -> tuple[np.ndarray, PackedValues]:
        """Positions of keys to write, and their values, absent where nothing is left; the store had ``stored``."""
        count, width = totals.counts.shape
        has_numbers = (totals.not_finite != 0).any(axis=(1, 2))
        # What is left of a sum of floats when all are gone is what rounding left.
        is_empty = (totals.rows == 0) & (totals.counts == 0).all(axis=1) & ~has_numbers
        for index in range(width):
            if index not in self._floats and index not in self.keeping:
                is_empty &= totals.sums[:, index] == 0
        for pairs in totals.values.values():
            is_empty &= np.array([not len(values) for values, _ in pairs], dtype=bool)
        heads = np.empty((count, self._fixed_bytes), dtype=np.uint8)
        heads[:, 0] = np.where(has_numbers, _VERSION_NOT_FINITE, _VERSION)
        cells = np.empty((count, 1 + 2 * width), dtype=np.int64)
        cells[:, 0], cells[:, 1::2], cells[:, 2::2] = totals.rows, totals.counts, totals.sums
        heads[:, 1:] = cells.view(np.uint8).reshape(count, -1)
        if self.keeping or has_numbers.any():
            values = PackedValues.from_list(list(self._with_values(heads, totals, has_numbers, is_empty)))
        else:
            starts = np.arange(count, dtype=np.int64) * self._fixed_bytes
            values = PackedValues(heads.ravel(), starts, np.where(is_empty, 0, self._fixed_bytes))
        rows = np.flatnonzero(~is_empty | (stored.lengths > 0))
        return rows, values if len(rows) == count else values.take(rows)

    def _with_values(
        self, heads: np.ndarray, totals: Totals, has_numbers: np.ndarray, is_empty: np.ndarray
    ) -> Iterator[bytes | None]:
        """The value of each key, with what is of no fixed length; None: nothing is left."""
        for position in range(len(heads)):
            if is_empty[position]:
                yield None
                continue
            parts = [heads[position].tobytes()]
            if has_numbers[position]:
                parts.append(totals.not_finite[position].tobytes())
            for index in self.keeping:
                values, counts = totals.values[index][position]
                parts += [len(values).to_bytes(4, "little"), values.tobytes(), counts.tobytes()]
            yield b"".join(parts)
