"""Headers of Parquet pages: structs of Thrift's compact protocol, of which only what a reader needs is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weir.operators.sources.parquet.parquet_header_kernels import field_at

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8

#: Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_FIELDS_MAX, _DEPTH_MAX = 64, 8

_Struct = dict[int, "int | _Struct"]


class DamagedPageError(ValueError):
    """The bytes are not what they should be."""


class PageHeader(NamedTuple):
    """What precedes a page."""

    #: ``DATA_PAGE`` and so on.
    kind: int
    uncompressed_bytes: int
    compressed_bytes: int
    #: Values, nulls among them.
    values: int
    #: ``PLAIN`` and so on.
    encoding: int
    #: Of definition levels; of the second form of data pages it is always ``RLE``.
    level_encoding: int = RLE
    #: Of the second form: bytes of the levels, which come first and are not compressed; -1: the first form.
    definition_bytes: int = -1
    repetition_bytes: int = 0
    is_compressed: bool = True
    #: Of the second form: values that are null; -1: the first form, which does not say so.
    nulls: int = -1


def read_header(data: bytes, at: int) -> tuple[PageHeader, int] | None:
    """The header at a position, and where it ends; None: it goes on after the data.

    Raises:
        DamagedPageError: it is none.
    """
    try:
        fields, end = _struct(data, at, 0)
    except IndexError:
        return None
    kind = _number(fields, 1)
    sizes = _number(fields, 2), _number(fields, 3)
    if min(sizes) < 0:
        raise DamagedPageError("a page has fewer than no bytes")
    if kind == DATA_PAGE:
        inner = _inner(fields, 5)
        header = PageHeader(kind, *sizes, _number(inner, 1), _number(inner, 2), _number(inner, 3))
    elif kind == DATA_PAGE_V2:
        inner = _inner(fields, 8)
        header = PageHeader(
            kind,
            *sizes,
            _number(inner, 1),
            _number(inner, 4),
            RLE,
            _number(inner, 5),
            _number(inner, 6),
            bool(inner.get(7, 1)),
            _number(inner, 2),
        )
        levels = header.definition_bytes, header.repetition_bytes
        if min(levels) < 0 or sum(levels) > min(sizes):
            raise DamagedPageError("the levels of a page are larger than the page")
    elif kind == DICTIONARY_PAGE:
        inner = _inner(fields, 7)
        header = PageHeader(kind, *sizes, _number(inner, 1), _number(inner, 2))
    else:
        header = PageHeader(kind, *sizes, 0, PLAIN)
    if header.values < 0:
        raise DamagedPageError("a page has fewer than no values")
    return header, end


#: Where the kernel keeps kind and sizes of a page; of a data page its values, their encoding, and that of the levels;
#: of a dictionary its values and their encoding.
KEPT_AT = [field_at(*at) for at in ((0, 1), (0, 2), (0, 3), (5, 1), (5, 2), (5, 3), (7, 1), (7, 2))]


def header_of(kept: Sequence[int]) -> PageHeader | None:
    """The header of which the kernel has kept this at ``KEPT_AT``; None: :func:`read_header` is to read it."""
    if kept[0] == DATA_PAGE:
        header = PageHeader(DATA_PAGE, kept[1], kept[2], kept[3], kept[4], kept[5])
    elif kept[0] == DICTIONARY_PAGE:
        header = PageHeader(DICTIONARY_PAGE, kept[1], kept[2], kept[6], kept[7])
    else:
        return None
    # What is not there is negative, too.
    return (
        None
        if min(kept[1:3]) < 0 or min(header.values, header.encoding, header.level_encoding) < 0
        else header
    )


def _number(fields: _Struct, field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int):
        raise DamagedPageError(f"the header of a page has no field {field}")
    return value


def _inner(fields: _Struct, field: int) -> _Struct:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise DamagedPageError(f"the header of a page has no field {field}")
    return value


def _struct(data: bytes, at: int, depth: int) -> tuple[_Struct, int]:
    """A struct's integers, bools and structs by field number, and where it ends."""
    fields: _Struct = {}
    number = 0
    if depth > _DEPTH_MAX:
        raise DamagedPageError("the header of a page is nested too deeply")
    while True:
        head = data[at]
        at += 1
        kind = head & 0x0F
        if kind == _STOP:
            return fields, at
        if len(fields) > _FIELDS_MAX:
            raise DamagedPageError("the header of a page has too many fields")
        delta = head >> 4
        if delta:
            number += delta
        else:
            number, at = _zigzag(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = int(kind == _TRUE)
        elif kind == _STRUCT:
            fields[number], at = _struct(data, at, depth + 1)
        elif kind in (_I16, _I32, _I64):
            fields[number], at = _zigzag(data, at)
        elif kind == _BYTE:
            fields[number], at = data[at], at + 1
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            size, at = _varint(data, at)
            at += size
        else:
            # No field of a page's header is a list or a map.
            raise DamagedPageError(f"the header of a page has a field of type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DamagedPageError("a number in the header of a page is too long")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
