"""Values of any length: they lie as bytes, and each one is decoded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from typing_extensions import override

from weir.state.handles.block import Cursor, Keys, StoredValues, check_length, one_value_each
from weir.state.handles.declarations import ValueDeclaration
from weir.state.handles.values import ValueHandle
from weir.state.types import listed

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

#: A value that was not decoded yet, and one that is not there.
UNREAD: Any = object()
ABSENT: Any = object()


class BytesHandle(ValueHandle):
    """Values of any length."""

    def __init__(self, state: ValueDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state.name, cursor)
        self._table = self._open_table(state, tables)
        self._type = state.type
        self._default = state.default
        self._default_bytes = None if state.default is None else state.type.encode(state.default)
        #: Of the block: what the store has, values as the operator sees them, and what is to be written.
        self._stored: list[bytes | None] = []
        self._values: Any = None
        self._changed: dict[int, bytes | None] = {}

    def _open_table(self, state: ValueDeclaration, tables: OperatorTables) -> StoredValues:
        return tables.values(state.name)

    @property
    def value(self) -> Any:
        """Return the value of the key, as :class:`ValueHandle` says; changing a list or a dict in place counts, too."""
        index = self._cursor.index
        try:
            value = self._values[index]
        except TypeError:
            self._load()
            value = self._values[index]
        if value is UNREAD:
            assert index is not None
            data = self._stored[index]
            value = ABSENT if data is None else self._type.decode(data)
            if value is ABSENT and self._default_bytes is not None and not self._type.is_immutable:
                # A copy for this key alone.
                value = self._type.decode(self._default_bytes)
            self._values[index] = value
        return self._default if value is ABSENT else value

    @value.setter
    def value(self, value: Any) -> None:
        self._set(value)

    def _set(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        data = self._type.encode(value)
        _, index = self._current()
        self._load()
        self._values[index] = value
        self._changed[index] = data

    @property
    @override
    def is_set(self) -> bool:
        _, index = self._current()
        self._load()
        return self._stored[index] is not None or self._changed.get(index) is not None

    @override
    def clear(self) -> None:
        _, index = self._current()
        self._load()
        self._stored[index] = None
        self._values[index] = UNREAD
        self._changed[index] = None

    def _load(self) -> None:
        block, _ = self._current()
        if self._values is None:
            self._stored = self._table.get_stored(block.state_keys(self._table))
            self._values = [UNREAD] * len(block)
            self._changed = {}

    @override
    def prepare(self) -> None:
        if self._values is None or self._type.is_immutable:
            return
        for index, value in enumerate(self._values):
            if value is UNREAD or value is ABSENT:
                continue
            data = self._type.encode(value)
            stored = self._stored[index]
            before = self._changed.get(index)
            if before is None:
                before = self._default_bytes if stored is None else stored
            if data != before:
                self._changed[index] = data

    @override
    def apply(self) -> None:
        if self._values is not None and self._changed:
            assert self._cursor.block is not None
            keys = self._cursor.block.state_keys(self._table)
            self._table.write_stored(
                [(keys[index], data) for index, data in self._changed.items() if data is not None],
                [keys[index] for index, data in self._changed.items() if data is None],
            )
        self.discard()

    @override
    def discard(self) -> None:
        self._values, self._changed, self._stored = None, {}, []

    @override
    def get(self, keys: Keys) -> Any:
        self._end_visit()
        decode, default = self._type.decode, self._default_bytes
        stored = self._table.get_stored(keys.state_keys(self._table))
        found = [default if data is None else data for data in stored]
        values = [None if data is None else decode(data) for data in found]
        return values if self._type.dtype is None else pl.Series(self.name, values, dtype=self._type.dtype)

    @override
    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        check_length(self.name, keys, values)
        rows = one_value_each(self.name, keys, last=last)
        column = listed(values)
        if rows is not None:
            keys, column = keys.distinct, [column[row] for row in rows.tolist()]
        encode = self._type.encode
        data = [None if value is None else encode(value) for value in column]
        self._end_visit()
        pairs = list(zip(keys.state_keys(self._table), data, strict=True))
        self._table.write_stored(
            [(key, value) for key, value in pairs if value is not None],
            [key for key, value in pairs if value is None],
        )

    def _end_visit(self) -> None:
        if self._values is not None:
            self.prepare()
            self.apply()
