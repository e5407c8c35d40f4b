"""Handles of numbers with a TTL: as those without, but what has expired is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from weir.state.handles.block import Cursor, Keys
from weir.state.handles.cell_values import CellHandle
from weir.state.handles.declarations import ValueDeclaration
from weir.state.tables.expiry import Expiry
from weir.state.tables.stamps import UNDATED

if TYPE_CHECKING:
    import polars as pl

    from weir.state.tables.cells.cell_table import CellTable
    from weir.state.tables.opened import OperatorTables
from weir.state.handles.expiring_values import _TIME, _VALUE


class ExpiringCellHandle(CellHandle):
    """8 bytes each, and 8 for the time."""

    _expiry: Expiry

    def __init__(self, state: ValueDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        assert state.ttl is not None
        self._is_refreshed_by_access = state.ttl.refreshed_by == "access"
        #: Of the keys that were read last: which have a value whose time is not now.
        self._stale = np.zeros(0, dtype=np.bool_)
        #: Of the block, where each row has its own time: the times of its values; None: all have the same.
        self._stamps: list[int] | None = None

    def _open_table(self, state: ValueDeclaration, tables: OperatorTables) -> CellTable:
        table = tables.cells(2, state.name, drops_empty=True, other_cell_count=1, ttl=state.ttl)
        assert table.expiry is not None
        self._expiry = table.expiry
        return table

    @property
    @override
    def value(self) -> Any:
        value = super().value
        index: Any = self._cursor.index
        if self._stamps is not None:
            return self._value_in_row(index, value)
        if self._is_refreshed_by_access and self._values[index] is not None and self._stale[index]:
            # It is written back as it is, with the time of now.
            self._changed[index] = 1
        return value

    @value.setter
    def value(self, value: Any) -> None:
        self._set(value)
        if self._stamps is not None:
            index: Any = self._cursor.index
            self._stamps[index] = self._expiry.stamp

    @property
    @override
    def is_set(self) -> bool:
        is_there, index = super().is_set, self._cursor.index
        if not is_there or self._stamps is None:
            return is_there
        assert index is not None
        return not self._expiry.is_expired(self._stamps[index])

    def _value_in_row(self, index: int, value: Any) -> Any:
        """The value that is known of the current key, as of the time of its row."""
        assert self._stamps is not None
        expiry = self._expiry
        if self._values[index] is None:
            return value
        if expiry.is_expired(self._stamps[index]):
            return self._default
        if self._is_refreshed_by_access and self._stamps[index] < expiry.stamp:
            self._stamps[index] = expiry.stamp
            self._changed[index] = 1
        return value

    def _load(self) -> Any:
        if self._values is None:
            self._stamps = None
        return super()._load()

    def _cut_ms(self) -> int:
        """Up to which time values have expired where no row has its own."""
        return self._expiry.cut_ms

    def _read(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        expiry = self._expiry
        expiry.begin(keys.hashes)
        cells, presence = self._table.read(keys.hashes, keys.column.data, keys.column.offsets)
        stamps = np.where(presence[:, 0] & _TIME, cells[:, 1], UNDATED)
        present = (presence[:, 0] & _VALUE) != 0
        if not expiry.is_in_rows:
            present &= ~expiry.expired(stamps, self._cut_ms())
            if self._is_refreshed_by_access:
                self._stale = present & (stamps < expiry.stamp)
        elif keys is self._cursor.block and self._cursor.index is not None:
            self._stamps = stamps.tolist()
            present &= ~expiry.expired(stamps, expiry.lowest_cut_ms)
        else:
            times_ms = expiry.of_keys(keys.hashes)
            present &= ~expiry.expired(stamps, expiry.cuts(times_ms))
            if self._is_refreshed_by_access:
                self._stale = present & (stamps < times_ms)
        return np.ascontiguousarray(cells[:, 0]).view(self._view), present

    def _write(self, keys: Keys, rows: np.ndarray, cells: np.ndarray, present: np.ndarray) -> None:
        expiry = self._expiry
        expiry.begin(keys.hashes)
        both = np.empty((len(rows), 2), dtype=np.int64)
        both[:, 0] = cells.view(np.int64)
        if not expiry.is_in_rows:
            stamps = np.full(len(rows), expiry.stamp)
        elif self._stamps is not None:
            stamps = np.array(self._stamps, dtype=np.int64)[rows]
        else:
            stamps = expiry.of_keys(keys.hashes[rows], writes=True)
        both[:, 1] = np.where(stamps == UNDATED, 0, stamps)
        bits = np.where(stamps == UNDATED, _VALUE, _VALUE | _TIME).astype(np.uint8)
        presence = (present.astype(np.uint8) * bits).reshape(-1, 1)
        column = keys.column
        self._table.write(keys.hashes, column.data, column.offsets, rows, both, presence)

    @override
    def get(self, keys: Keys) -> pl.Series:
        found = super().get(keys)
        if self._is_refreshed_by_access and self._stale.any():
            distinct = keys.distinct
            cells, present = self._read(distinct)
            rows = np.flatnonzero(self._stale)
            self._write(distinct, rows, cells[rows], present[rows])
        return found

    @override
    def discard(self) -> None:
        super().discard()
        self._stamps = None
        self._expiry.end()
