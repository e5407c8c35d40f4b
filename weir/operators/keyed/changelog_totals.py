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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir.errors import StateMismatchError
from weir.specs.aggregate_functions import PERCENTILES
from weir.specs.keyed import Aggregate

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
        self._floats = {index for index, is_float in enumerate(sums_are_floats) if is_float}
        #: Aggregates that keep all values.
        self.keeping = [index for index, each in enumerate(aggregates) if each.function in KEEPS_VALUES]
        #: Aggregates that are made of a sum of floats.
        self.float_sums = [
            index for index, each in enumerate(aggregates) if each.function in _SUMS and index in self._floats
        ]

    def read(self, stored: Sequence[bytes | None]) -> Totals:
        """What keys have whose values in the store are these; None: nothing.

        Raises:
            StateMismatchError: a later program has written them.
        """
        count, width = len(stored), self._width
        fixed_bytes = 9 + 16 * width
        empty = bytes([_VERSION]) + bytes(fixed_bytes - 1)
        heads = [empty if value is None else value[:fixed_bytes] for value in stored]
        table = np.frombuffer(b"".join(heads), dtype=np.uint8).reshape(count, fixed_bytes)
        known = np.isin(table[:, 0], (_VERSION, _VERSION_NOT_FINITE))
        if not known.all():
            raise StateMismatchError(
                f"aggregates have format version {int(table[~known, 0][0])}, this program reads {_VERSION} and "
                f"{_VERSION_NOT_FINITE}"
            )
        cells = np.ascontiguousarray(table[:, 1:]).view(np.int64)
        none = np.empty(0, dtype=np.int64)
        values: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {index: [] for index in self.keeping}
        not_finite = np.zeros((count, len(self.float_sums), 3), dtype=np.int64)
        has_numbers = (table[:, 0] == _VERSION_NOT_FINITE).tolist()
        for position in np.flatnonzero(has_numbers).tolist():
            value = stored[position]
            assert value is not None
            not_finite[position].ravel()[:] = np.frombuffer(
                value, dtype=np.int64, count=not_finite[position].size, offset=fixed_bytes
            )
        for position, value in enumerate(stored) if self.keeping else ():
            at = fixed_bytes + (8 * not_finite[position].size if has_numbers[position] else 0)
            for index in self.keeping:
                if value is None:
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

    def written(
        self, state_keys: Sequence[bytes], stored: Sequence[bytes | None], totals: Totals
    ) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Entries to put and keys to delete, for keys of which the store had ``stored``."""
        count, width = totals.counts.shape
        cells = np.empty((count, 1 + 2 * width), dtype=np.int64)
        cells[:, 0], cells[:, 1::2], cells[:, 2::2] = totals.rows, totals.counts, totals.sums
        has_numbers = (totals.not_finite != 0).any(axis=(1, 2)).tolist()
        # What is left of a sum of floats when all are gone is what rounding left.
        is_empty = (totals.rows == 0) & (totals.counts == 0).all(axis=1) & ~np.array(has_numbers, dtype=bool)
        for index in range(width):
            if index not in self._floats and index not in self.keeping:
                is_empty &= totals.sums[:, index] == 0
        for pairs in totals.values.values():
            is_empty &= np.array([not len(values) for values, _ in pairs], dtype=bool)
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        for position, (key, row, gone) in enumerate(zip(state_keys, cells, is_empty.tolist(), strict=True)):
            if gone:
                if stored[position] is not None:
                    deletes.append(key)
                continue
            parts = [bytes([_VERSION_NOT_FINITE if has_numbers[position] else _VERSION]), row.tobytes()]
            if has_numbers[position]:
                parts.append(totals.not_finite[position].tobytes())
            for index in self.keeping:
                values, counts = totals.values[index][position]
                parts += [len(values).to_bytes(4, "little"), values.tobytes(), counts.tobytes()]
            puts.append((key, b"".join(parts)))
        return puts, deletes
