"""Handles of values with a TTL: as those without, but what has expired is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weir.state.handles.block import Cursor, Keys, StoredValues
from weir.state.handles.byte_values import BytesHandle
from weir.state.handles.cell_values import CellHandle
from weir.state.tables.expiry import UNDATED, Expiry
from weir.state.tables.values import ValueTable

if TYPE_CHECKING:
    import polars as pl

    from weir.state.tables.cells import CellTable
    from weir.state.tables.opened import OperatorTables
    from weir.states import SingleState

#: Presence bits of the two cells: of the value, and of the time.
_VALUE, _TIME = 1, 2


class ExpiringCellHandle(CellHandle):
    """8 bytes each, and 8 for the time."""

    _expiry: Expiry

    def __init__(self, state: SingleState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        assert state.ttl is not None
        self._is_refreshed_by_access = state.ttl.refreshed_by == "access"
        #: Of the keys that were read last: which have a value whose time is not now.
        self._stale = np.zeros(0, dtype=np.bool_)

    def _open_table(self, state: SingleState, tables: OperatorTables) -> CellTable:
        table = tables.cells(2, state.name, drops_empty=True, other_cell_count=1, ttl=state.ttl)
        assert table.expiry is not None
        self._expiry = table.expiry
        return table

    @property
    def value(self) -> Any:
        """See :class:`weir.state.handles.values.ValueHandle`."""
        value = super().value
        if self._is_refreshed_by_access:
            index: Any = self._cursor.index
            if self._values[index] is not None and self._stale[index]:
                # It is written back as it is, with the time of now.
                self._changed[index] = 1
        return value

    @value.setter
    def value(self, value: Any) -> None:
        self._set(value)

    def _read(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        expiry = self._expiry
        expiry.begin(keys.hashes)
        cells, presence = self._table.read(keys.hashes, keys.column.data, keys.column.offsets)
        stamps = np.where(presence[:, 0] & _TIME, cells[:, 1], UNDATED)
        present = ((presence[:, 0] & _VALUE) != 0) & ~expiry.expired(stamps)
        if self._is_refreshed_by_access:
            self._stale = present & (stamps < expiry.stamp)
        return np.ascontiguousarray(cells[:, 0]).view(self._view), present

    def _write(self, keys: Keys, rows: np.ndarray, cells: np.ndarray, present: np.ndarray) -> None:
        expiry = self._expiry
        expiry.begin(keys.hashes)
        both = np.empty((len(rows), 2), dtype=np.int64)
        both[:, 0] = cells.view(np.int64)
        both[:, 1] = 0 if expiry.stamp == UNDATED else expiry.stamp
        bits = _VALUE if expiry.stamp == UNDATED else _VALUE | _TIME
        presence = present.astype(np.uint8).reshape(-1, 1) * np.uint8(bits)
        column = keys.column
        self._table.write(keys.hashes, column.data, column.offsets, rows, both, presence)

    def get(self, keys: Keys) -> pl.Series:
        """See :class:`weir.state.handles.values.ValueHandle`."""
        found = super().get(keys)
        if self._is_refreshed_by_access and self._stale.any():
            distinct = keys.distinct
            cells, present = self._read(distinct)
            rows = np.flatnonzero(self._stale)
            self._write(distinct, rows, cells[rows], present[rows])
        return found

    def discard(self) -> None:
        """See :class:`weir.state.handles.block.Handle`."""
        super().discard()
        self._expiry.end()


class ExpiringBytesHandle(BytesHandle):
    """Values of any length."""

    _table: StampedValues

    def __init__(self, state: SingleState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        assert state.ttl is not None
        self._is_refreshed_by_access = state.ttl.refreshed_by == "access"
        #: Positions in the block whose values were read.
        self._accessed: set[int] = set()

    def _open_table(self, state: SingleState, tables: OperatorTables) -> StoredValues:
        return StampedValues(tables.values(state.name, ttl=state.ttl))

    @property
    def value(self) -> Any:
        """See :class:`weir.state.handles.values.ValueHandle`; changing a list or a dict in place counts, too."""
        value = super().value
        if self._is_refreshed_by_access:
            assert self._cursor.index is not None
            self._accessed.add(self._cursor.index)
        return value

    @value.setter
    def value(self, value: Any) -> None:
        self._set(value)

    def _load(self) -> None:
        if self._values is None:
            self._table.expiry.begin(self._current()[0].hashes)
        super()._load()

    def prepare(self) -> None:
        """See :class:`weir.state.handles.block.Handle`."""
        super().prepare()
        for index in self._accessed:
            stored = self._stored[index]
            if stored is not None and index not in self._changed:
                # It is written back as it is, with the time of now.
                self._changed[index] = stored

    def discard(self) -> None:
        """See :class:`weir.state.handles.block.Handle`."""
        super().discard()
        self._accessed = set()
        self._table.expiry.end()

    def get(self, keys: Keys) -> Any:
        """See :class:`weir.state.handles.values.ValueHandle`."""
        self._table.expiry.begin(keys.hashes)
        found = super().get(keys)
        if self._is_refreshed_by_access:
            self._table.expiry.begin(keys.hashes)
            distinct = keys.distinct.state_keys(self._table)
            pairs = zip(distinct, self._table.get_stored(distinct), strict=True)
            self._table.write_stored([(key, data) for key, data in pairs if data is not None], ())
        return found

    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """See :class:`weir.state.handles.values.ValueHandle`."""
        self._table.expiry.begin(keys.hashes)
        super().put(keys, values, last=last)


class StampedValues:
    """A table whose values begin with their time, as one without times in which nothing has expired."""

    def __init__(self, table: ValueTable) -> None:
        assert table.expiry is not None
        self._table = table
        self.expiry: Expiry = table.expiry

    def key_prefix(self, group: int) -> bytes:
        """See :class:`StoredValues`."""
        return self._table.key_prefix(group)

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`StoredValues`."""
        live = self.expiry.live
        return [live(data) for data in self._table.get_stored(keys)]

    def write_stored(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """See :class:`StoredValues`; what is written is of now."""
        prefix = self.expiry.prefix
        self._table.write_stored([(key, prefix + data) for key, data in puts], deletes)
