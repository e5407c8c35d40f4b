"""Handles of one value per key: fixed-width ones over a ``CellTable``, all others over a ``ValueTable``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from weir.state.handles.block import Cursor, Handle, Keys, StoredValues, check_length, listed, one_value_each

if TYPE_CHECKING:
    from weir.state.tables.cells import CellTable
    from weir.state.tables.opened import OperatorTables
    from weir.states import SingleState

#: A value that was not decoded yet, and one that is not there.
_UNREAD: Any = object()
_ABSENT: Any = object()

_VIEWS = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.int64}


class ValueHandle(Handle):
    """The value of the current key, and values of many keys."""

    @property
    @abstractmethod
    def value(self) -> Any:
        """The current key's value; the default, or None, if it has none.

        Raises:
            StateError: there is no current key.
        """

    @value.setter
    def value(self, value: Any) -> None:
        """Set it.

        Raises:
            TypeError, ValueError: it is not of the declared type. None is not: call :meth:`clear`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Take the current key's value away; the default counts again."""

    @abstractmethod
    def get(self, keys: Keys) -> Any:
        """Values of these keys, which may repeat: a Polars series as long as ``keys``; of dataclasses a list.

        A key without a value has the default, or null.
        """

    @abstractmethod
    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """Set values at once, also if the batch fails later.

        Args:
            keys: each of them once; or ``last`` is given.
            values: as many: a series, an array of numpy or Arrow, or a list. Null takes a value away.
            last: of a key that is there twice the last value counts.

        Raises:
            StateError: a key is there twice.
            TypeError, ValueError: a value is not of the declared type, or there are more or fewer than keys.
        """


class CellHandle(ValueHandle):
    """Numbers, Booleans, dates and times: 8 bytes each."""

    def __init__(self, state: SingleState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state.name, cursor)
        self._table = self._open_table(state, tables)
        self._type = state.type
        self._kind = state.type.cell_kind
        self._view = _VIEWS[self._kind]
        self._default = state.default
        self._to_cell: Callable[[Any], Any] = getattr(state.type, "to_cell", state.type.to_plain)
        is_plain = state.type.dtype is not None and (state.type.dtype.is_numeric() or self._kind == "b")
        self._convert = None if is_plain else state.type.from_plain
        #: Of the block: plain values, None where there is none; and which of them changed.
        self._values: Any = None
        self._changed = bytearray()
        self._to_write: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def _open_table(self, state: SingleState, tables: OperatorTables) -> CellTable:
        # Values may have a time from when the state had a TTL.
        return tables.cells(1, state.name, drops_empty=True, other_cell_count=2)

    @property
    def value(self) -> Any:
        """See :class:`ValueHandle`."""
        try:
            value = self._values[self._cursor.index]
        except TypeError:
            value = self._load()
        if value is None:
            return self._default
        return value if self._convert is None else self._convert(value)

    @value.setter
    def value(self, value: Any) -> None:
        cell = self._to_cell(value)
        index = self._cursor.index
        try:
            self._values[index] = cell
        except TypeError:
            self._load()
            self._values[index] = cell
        self._changed[index] = 1  # type: ignore[index]

    def clear(self) -> None:
        """See :class:`ValueHandle`."""
        if self._values is None or self._cursor.index is None:
            self._load()
        self._values[self._cursor.index] = None
        self._changed[self._cursor.index] = 1  # type: ignore[index]

    def _load(self) -> Any:
        block, index = self._current()
        if self._values is None:
            cells, present = self._read(block)
            values = (cells != 0).tolist() if self._kind == "b" else cells.tolist()
            if not present.all():
                for position in np.flatnonzero(~present).tolist():
                    values[position] = None
            self._values = values
            self._changed = bytearray(len(values))
        return self._values[index]

    def _read(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        cells, presence = self._table.read(keys.hashes, keys.column.data, keys.column.offsets)
        return cells.reshape(-1).view(self._view), (presence.reshape(-1) & 1) != 0

    def _write(self, keys: Keys, rows: np.ndarray, cells: np.ndarray, present: np.ndarray) -> None:
        column = keys.column
        self._table.write(
            keys.hashes,
            column.data,
            column.offsets,
            rows,
            cells.view(np.int64).reshape(-1, 1),
            present.astype(np.uint8).reshape(-1, 1),
        )

    def prepare(self) -> None:
        """See :class:`Handle`."""
        self._to_write = None
        if self._values is None:
            return
        rows = np.flatnonzero(np.frombuffer(self._changed, dtype=np.uint8))
        if len(rows):
            values = self._values
            changed = values if len(rows) == len(values) else [values[row] for row in rows.tolist()]
            present = np.ones(len(rows), dtype=np.bool_)
            if None in changed:
                present = np.array([value is not None for value in changed])
                changed = [0 if value is None else value for value in changed]
            self._to_write = rows, np.array(changed, dtype=_VIEWS[self._kind]), present

    def apply(self) -> None:
        """See :class:`Handle`."""
        if self._to_write is not None:
            assert self._cursor.block is not None
            self._write(self._cursor.block, *self._to_write)
        self.discard()

    def discard(self) -> None:
        """See :class:`Handle`."""
        self._values = self._to_write = None

    def get(self, keys: Keys) -> pl.Series:
        """See :class:`ValueHandle`."""
        self._end_visit()
        cells, present = self._read(keys)
        if self._default is not None:
            if not present.all():
                cells[~present] = self._to_cell(self._default)
            series = pl.Series(self.name, cells)
        else:
            mask = None if present.all() else ~present
            found = pl.from_arrow(pa.array(cells, mask=mask))
            assert isinstance(found, pl.Series)
            series = found.alias(self.name)
        assert self._type.dtype is not None
        return series if series.dtype == self._type.dtype else series.cast(self._type.dtype)

    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """See :class:`ValueHandle`."""
        check_length(self.name, keys, values)
        rows = one_value_each(self.name, keys, last=last)
        cells, present = self._cells_of(values)
        self._end_visit()
        if rows is not None:
            keys, cells, present = keys.distinct, cells[rows], present[rows]
        self._write(keys, np.arange(len(keys)), cells, present)

    def _cells_of(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Cells and presence of values in any form.

        Raises:
            TypeError, ValueError: one is not of the declared type.
        """
        dtype = self._type.dtype
        assert dtype is not None
        series = values if isinstance(values, pl.Series) else pl.Series(values)
        if series.dtype != dtype:
            integers = series.dtype.is_integer() and dtype.is_integer()
            floats = series.dtype.is_numeric() and dtype.is_float()
            times = type(series.dtype) is type(dtype)
            if not (integers or floats or times or series.dtype == pl.Null):
                raise TypeError(
                    f"state {self.name!r}: put was given {series.dtype}, it is declared as {self._type}"
                )
            try:
                series = series.cast(dtype, strict=True)
            except pl.exceptions.PolarsError as error:
                raise ValueError(f"state {self.name!r}: {error}") from error
        present = series.is_not_null().to_numpy()
        plain = series.to_physical()
        if series.null_count():
            plain = plain.fill_null(False if self._kind == "b" else 0)
        cells = np.ascontiguousarray(plain.to_numpy().astype(_VIEWS[self._kind], copy=False))
        return cells, present

    def _end_visit(self) -> None:
        """What was changed below ``context.visit`` counts for arrays, and the other way round."""
        if self._values is not None:
            self.prepare()
            self.apply()


class BytesHandle(ValueHandle):
    """Values of any length."""

    def __init__(self, state: SingleState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state.name, cursor)
        self._table = self._open_table(state, tables)
        self._type = state.type
        self._default = state.default
        self._default_bytes = None if state.default is None else state.type.encode(state.default)
        #: Of the block: what the store has, values as the operator sees them, and what is to be written.
        self._stored: list[bytes | None] = []
        self._values: Any = None
        self._changed: dict[int, bytes | None] = {}

    def _open_table(self, state: SingleState, tables: OperatorTables) -> StoredValues:
        return tables.values(state.name)

    @property
    def value(self) -> Any:
        """See :class:`ValueHandle`; changing a list or a dict in place counts, too."""
        index = self._cursor.index
        try:
            value = self._values[index]
        except TypeError:
            self._load()
            value = self._values[index]
        if value is _UNREAD:
            assert index is not None
            data = self._stored[index]
            value = _ABSENT if data is None else self._type.decode(data)
            if value is _ABSENT and self._default_bytes is not None and not self._type.is_immutable:
                # A copy for this key alone.
                value = self._type.decode(self._default_bytes)
            self._values[index] = value
        return self._default if value is _ABSENT else value

    @value.setter
    def value(self, value: Any) -> None:
        data = self._type.encode(value)
        _, index = self._current()
        self._load()
        self._values[index] = value
        self._changed[index] = data

    def clear(self) -> None:
        """See :class:`ValueHandle`."""
        _, index = self._current()
        self._load()
        self._stored[index] = None
        self._values[index] = _UNREAD
        self._changed[index] = None

    def _load(self) -> None:
        block, _ = self._current()
        if self._values is None:
            self._stored = self._table.get_stored(block.state_keys(self._table))
            self._values = [_UNREAD] * len(block)
            self._changed = {}

    def prepare(self) -> None:
        """See :class:`Handle`."""
        if self._values is None or self._type.is_immutable:
            return
        for index, value in enumerate(self._values):
            if value is _UNREAD or value is _ABSENT:
                continue
            data = self._type.encode(value)
            stored = self._stored[index]
            before = self._changed.get(index)
            if before is None:
                before = self._default_bytes if stored is None else stored
            if data != before:
                self._changed[index] = data

    def apply(self) -> None:
        """See :class:`Handle`."""
        if self._values is not None and self._changed:
            assert self._cursor.block is not None
            keys = self._cursor.block.state_keys(self._table)
            self._table.write_stored(
                [(keys[index], data) for index, data in self._changed.items() if data is not None],
                [keys[index] for index, data in self._changed.items() if data is None],
            )
        self.discard()

    def discard(self) -> None:
        """See :class:`Handle`."""
        self._values, self._changed, self._stored = None, {}, []

    def get(self, keys: Keys) -> Any:
        """See :class:`ValueHandle`."""
        self._end_visit()
        decode, default = self._type.decode, self._default_bytes
        stored = self._table.get_stored(keys.state_keys(self._table))
        found = [default if data is None else data for data in stored]
        values = [None if data is None else decode(data) for data in found]
        return values if self._type.dtype is None else pl.Series(self.name, values, dtype=self._type.dtype)

    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        """See :class:`ValueHandle`."""
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


class _Wrapped(Handle):
    """A handle whose values are combined by the author's functions."""

    def __init__(self, inner: ValueHandle) -> None:
        super().__init__(inner.name, inner._cursor)  # noqa: SLF001
        self._inner = inner
        # The batch form, and the life cycle.
        self.get, self.put, self.clear = inner.get, inner.put, inner.clear

    def prepare(self) -> None:
        """See :class:`Handle`."""
        self._inner.prepare()

    def apply(self) -> None:
        """See :class:`Handle`."""
        self._inner.apply()

    def discard(self) -> None:
        """See :class:`Handle`."""
        self._inner.discard()


class ReducingHandle(_Wrapped):
    """See :class:`weir.ReducingState`; ``get(keys)`` and ``put(keys, values)`` are those of a value."""

    def __init__(self, inner: ValueHandle, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(inner)
        self._function = function

    @property
    def value(self) -> Any:
        """What came of all that was added for the current key; None: nothing was."""
        return self._inner.value

    def add(self, value: Any) -> None:
        """Combine the current key's value with another one.

        Raises:
            TypeError, ValueError: what comes of it is not of the declared type.
        """
        before = self._inner.value
        self._inner.value = value if before is None else self._function(before, value)


class AggregatingHandle(_Wrapped):
    """See :class:`weir.AggregatingState`; ``get(keys)`` and ``put(keys, values)`` are of accumulators."""

    def __init__(
        self, inner: ValueHandle, add: Callable[[Any, Any], Any], result: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(inner)
        self._add, self._result = add, result

    def add(self, value: Any) -> None:
        """Change the current key's accumulator.

        Raises:
            TypeError, ValueError: the new accumulator is not of the declared type.
        """
        self._inner.value = self._add(self._inner.value, value)

    def result(self) -> Any:
        """What came of all that was added for the current key."""
        value = self._inner.value
        return value if self._result is None else self._result(value)
