"""Values of 8 bytes: they lie in arrays, and are read and written as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.state.handles.block import Cursor, Keys, check_length, one_value_each
from weir.state.handles.declarations import ValueDeclaration
from weir.state.handles.values import ValueHandle

if TYPE_CHECKING:
    from weir.state.tables.cells.cell_table import CellTable
    from weir.state.tables.opened import OperatorTables

_VIEWS = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.int64}


class CellHandle(ValueHandle):
    """Numbers, Booleans, dates and times: 8 bytes each."""

    def __init__(self, state: ValueDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
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

    def _open_table(self, state: ValueDeclaration, tables: OperatorTables) -> CellTable:
        # Values may have a time from when the state had a TTL.
        return tables.cells(1, state.name, drops_empty=True, other_cell_count=2)

    def _get(self) -> Any:
        try:
            value = self._values[self._cursor.index]
        except TypeError:
            value = self._load()
        if value is None:
            return self._default
        return value if self._convert is None else self._convert(value)

    def _set(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        cell = self._to_cell(value)
        index: Any = self._cursor.index
        try:
            self._values[index] = cell
        except TypeError:
            self._load()
            self._values[index] = cell
        self._changed[index] = 1

    # Made of functions, which subclasses call, too: a setter that calls one costs every assignment a twentieth.
    value = property(_get, _set, doc="See :class:`ValueHandle`.")

    @property
    @override
    def is_set(self) -> bool:
        self._load()
        index: Any = self._cursor.index
        return self._values[index] is not None

    @override
    def clear(self) -> None:
        index: Any = self._cursor.index
        if self._values is None or index is None:
            self._load()
        self._values[index] = None
        self._changed[index] = 1

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

    @override
    def prepare(self) -> None:
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

    @override
    def apply(self) -> None:
        if self._to_write is not None:
            assert self._cursor.block is not None
            self._write(self._cursor.block, *self._to_write)
        self.discard()

    @override
    def discard(self) -> None:
        self._values = self._to_write = None

    @override
    def get(self, keys: Keys) -> pl.Series:
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

    @override
    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
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
            given = series
            try:
                series = series.cast(dtype, strict=True)
            except pl.exceptions.PolarsError as error:
                raise ValueError(f"state {self.name!r}: {error}") from error
            if floats and (series.is_infinite() & given.cast(pl.Float64).is_finite()).any():
                raise ValueError(f"state {self.name!r}: a number is out of range for {self._type}")
        # Methods of series that Polars carries out as queries take 0.1 ms each, more than all else of a small batch.
        plain = series.to_physical() if series.dtype.is_temporal() else series
        if series.null_count():
            present = series.is_not_null().to_numpy()
            plain = plain.fill_null(False if self._kind == "b" else 0)
        else:
            present = np.ones(len(series), np.bool_)
        cells = np.ascontiguousarray(plain.to_numpy().astype(_VIEWS[self._kind], copy=False))
        return cells, present

    def _end_visit(self) -> None:
        """What was changed below ``context.visit`` counts for arrays, and the other way round."""
        if self._values is not None:
            self.prepare()
            self.apply()
