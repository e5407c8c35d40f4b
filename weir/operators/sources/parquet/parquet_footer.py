"""What pyarrow does not check in the metadata of a Parquet file before it ends the process (abort) over it.

Its accessors of column chunks cannot raise: an unknown codec, a type that is not the schema's, a least value or a
histogram of another length ends the process. Metadata are Thrift in the compact protocol; numbers of fields are those
of parquet.thrift in the Parquet format 2.11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

_MAGIC = b"PAR1"
#: The length of the metadata, and the magic number.
_END_BYTES = 8
#: So much is read at first, as pyarrow does.
_TAIL_BYTES = 64 << 10
#: UNCOMPRESSED to LZ4_RAW.
_CODECS = range(8)
#: Bytes of a value, by physical type: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
#: Fields of statistics, the deprecated ones first.
_LEAST_AND_GREATEST = (1, 2, 5, 6)
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class _Leaf(NamedTuple):
    """A column of the schema: its physical type, and its highest levels."""

    type: int
    repetition: int
    definition: int


def check_footer(source: Any) -> None:
    """Refuse a file over whose metadata pyarrow would end the process; called before column chunks are looked at.

    Args:
        source: the path of a local file, or an open file. What is no Parquet file is left to pyarrow to tell.

    Raises:
        OSError: it cannot be read.
        pa.ArrowInvalid: its metadata are damaged; says what.
    """
    if isinstance(source, str):
        with pa.OSFile(source) as file:
            footer = _footer(file)
    else:
        footer = _footer(source if isinstance(source, pa.NativeFile) else pa.PythonFile(source, "r"))
    if footer is None:
        return
    try:
        _check(_Compact(memoryview(footer)).struct())
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise pa.ArrowInvalid(f"Parquet metadata are damaged: {type(error).__name__}: {error}") from error


def _footer(file: pa.NativeFile) -> bytes | None:
    """The metadata at the end of a file; None: there are none that are not encrypted."""
    size = file.size()
    tail: bytes = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    if len(tail) < _END_BYTES or tail[-4:] != _MAGIC:
        return None
    footer_bytes = int.from_bytes(tail[-_END_BYTES:-4], "little")
    start = size - _END_BYTES - footer_bytes
    if start < 0:
        return None
    if footer_bytes + _END_BYTES <= len(tail):
        return tail[-_END_BYTES - footer_bytes : -_END_BYTES]
    footer: bytes = file.read_at(footer_bytes, start)
    return footer


def _check(file: dict[int, Any]) -> None:
    leaves = list(_leaves(iter(file[2])))
    for group in file[4]:
        chunks = group[1]
        if len(chunks) != len(leaves):
            raise ValueError(f"a row group has {len(chunks)} columns, the schema {len(leaves)}")
        for chunk, leaf in zip(chunks, leaves, strict=True):
            if 8 in chunk or 9 in chunk:
                raise pa.ArrowNotImplementedError("a column is encrypted, which Weir does not read")
            column = chunk[3]
            if column[1] != leaf.type:
                raise ValueError(f"a column chunk has type {column[1]}, the schema {leaf.type}")
            if column[4] not in _CODECS:
                raise ValueError(f"a column chunk has the unknown codec {column[4]}")
            width, statistics = _WIDTHS.get(leaf.type, 0), column.get(12, {})
            if any(field in statistics and len(statistics[field]) < width for field in _LEAST_AND_GREATEST):
                raise ValueError("a least or greatest value has another length")
            sizes = column.get(16, {})
            for field, highest in ((2, leaf.repetition), (3, leaf.definition)):
                if len(sizes.get(field, ())) not in (0, highest + 1):
                    raise ValueError("a histogram of levels has another length")


def _leaves(elements: Iterator[dict[int, Any]]) -> Iterator[_Leaf]:
    """Columns of the schema, which is a tree written depth first; the root has no levels."""

    def below(children: int, repetition: int, definition: int) -> Iterator[_Leaf]:
        for _ in range(children):
            element = next(elements, None)
            if element is None:
                raise ValueError("the schema ends early")
            kind = element.get(3, _REQUIRED)
            levels = repetition + (kind == _REPEATED), definition + (kind in (_OPTIONAL, _REPEATED))
            if element.get(5):
                yield from below(element[5], *levels)
            else:
                yield _Leaf(element.get(1, -1), *levels)

    root = next(elements, {})
    yield from below(root.get(5, 0), 0, 0)


class _Compact:
    """Reads Thrift values: a struct as a dict by field number, a list or set as a list, what nobody needs as None."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number, data = 0, self._data
        while True:
            head = data[self._at]
            self._at += 1
            kind = head & 15
            if kind == _STOP:
                return fields
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = None if kind in (_TRUE, _FALSE) else self._value(kind)

    def _value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            number = self._signed()
            # A reader takes a field of another type than the declared one for absent; all that is looked at is i32.
            return number if kind == _I32 else None
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            head = self._data[self._at]
            self._at += 1
            size = head >> 4 if head >> 4 != 15 else self._unsigned()
            if size > len(self._data):
                raise ValueError("a list is longer than the metadata")
            return [self._value(head & 15) for _ in range(size)]
        if kind in (_BYTE, _TRUE, _FALSE, _DOUBLE):
            self._bytes(8 if kind == _DOUBLE else 1)
            return None
        raise ValueError(f"a value of type {kind}")

    def _bytes(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            raise ValueError("the metadata end early")
        self._at += size
        return self._data[self._at - size : self._at]

    def _unsigned(self) -> int:
        data, shift, value = self._data, 0, 0
        while True:
            byte = data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
