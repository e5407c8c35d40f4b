"""A Numba kernel that reads the usual headers of Parquet pages.

``parquet_headers`` reads all others, and says what is wrong with them. That takes 30 µs, and a row group of long texts
has dozens of pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import byte_at
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, INT, INTS, INTS_2D, TYPES

#: Bytes that are read of a header at most.
HEADER_BYTES = 1 << 10
#: Headers that are read at a time: most columns of a row group have fewer.
HEADERS = 64
#: Where the bytes of a page that follow its header are kept.
_COMPRESSED_BYTES = 3
#: Fields that are kept have a smaller number, and so have the fields that are structs with such fields.
_FIELDS = 9
HEADER_FIELDS = _FIELDS * _FIELDS
#: Of a field that is not there.
ABSENT = -(1 << 62)
#: Structs within structs.
DEPTH_MAX = 8
_VARINT_BITS_MAX, _STRUCT_FIELDS_MAX = 56, 64
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _STRUCT = 0, 1, 2, 3, 4, 6, 7, 8, 12

_external: Any = TYPES.ExternalFunction
_pread = _external("pread", INT(TYPES.int32, INT, TYPES.uint64, INT))


def field_at(struct: int, field: int) -> int:
    """Where a field is kept; ``struct``: 0 for the header itself."""
    return struct * _FIELDS + field


@byte_kernel_part
def _varint(data: np.ndarray, at: int, stop: int) -> tuple[int, int]:
    """A number and the position after it; -1: it goes on after the end, or is too long."""
    value = shift = 0
    while at < stop and shift < _VARINT_BITS_MAX:
        byte = byte_at(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    return 0, -1


@byte_kernel_part
def _value(data: np.ndarray, at: int, stop: int, kind: int) -> tuple[int, int]:
    """A field that is no struct, and the position after it, or -1."""
    if kind in (_TRUE, _FALSE):
        return int(kind == _TRUE), at
    if kind == _BYTE:
        return (byte_at(data, at), at + 1) if at < stop else (0, -1)
    if kind == _DOUBLE:
        return ABSENT, at + 8
    if kind != _BINARY and not _I16 <= kind <= _I64:
        return 0, -1
    value, at = _varint(data, at, stop)
    if at < 0:
        return 0, -1
    if kind == _BINARY:
        return ABSENT, at + value
    return (value >> 1) ^ -(value & 1), at


@byte_kernel(INT(TYPES.int32, INT, INT, BYTES, INTS, INTS))
def find_header(
    descriptor: int, at: int, stop: int, data: np.ndarray, fields: np.ndarray, depths: np.ndarray
) -> int:
    """Read a header of a page from a file.

    Args:
        descriptor: of the file.
        at: where the header begins.
        stop: where the column ends.
        data: uint8, shape (``HEADER_BYTES`` or more,); overwritten.
        fields: int64, shape (``HEADER_FIELDS``,), filled: what is at :func:`field_at`, or ``ABSENT``.
        depths: int64, shape (``DEPTH_MAX``,); overwritten.

    Returns:
        Its bytes; 0: it is to be read in another way.
    """
    count = _pread(descriptor, data.ctypes.data, min(HEADER_BYTES, stop - at), at)
    if count <= 0:
        return 0
    for place in range(len(fields)):
        fields[place] = ABSENT
    depth = struct = number = place = 0
    while place < count:
        head = byte_at(data, place)
        place += 1
        kind, delta = head & 0x0F, head >> 4
        if kind == _STOP:
            if depth == 0:
                return place
            depth -= 1
            number = depths[depth]
            struct = 0 if depth == 0 else struct
            continue
        number += delta
        # Fields come in order, and few are left out.
        if delta == 0 or number > _STRUCT_FIELDS_MAX:
            return 0
        if kind == _STRUCT:
            if depth == 0:
                struct = number
            if depth == DEPTH_MAX:
                return 0
            depths[depth] = number
            depth += 1
            number = 0
            continue
        value, place = _value(data, place, count, kind)
        if place < 0:
            return 0
        if number < _FIELDS and struct < _FIELDS and depth <= 1:
            fields[struct * _FIELDS + number] = value
    return 0


@byte_kernel(INT(TYPES.int32, INT, INT, BYTES, INTS_2D, INTS_2D, INTS))
def find_headers(
    descriptor: int,
    at: int,
    stop: int,
    data: np.ndarray,
    fields: np.ndarray,
    places: np.ndarray,
    depths: np.ndarray,
) -> int:
    """Read the headers of pages that follow each other, as :func:`find_header` reads one.

    Args:
        descriptor: see there.
        at: where the first header begins.
        stop: see there.
        data: see there.
        fields: int64, shape (headers, ``HEADER_FIELDS``): of each header what ``find_header`` fills.
        places: int64, shape (headers, 2), filled: where each begins, and its bytes.
        depths: see there.

    Returns:
        How many were read: to the end of the column, or to one that is to be read in another way.
    """
    count = 0
    while count < len(fields) and at < stop:
        size = find_header(descriptor, at, stop, data, fields[count], depths)
        compressed_bytes = fields[count, _COMPRESSED_BYTES]
        if size == 0 or compressed_bytes < 0 or compressed_bytes > stop - at:
            break
        places[count, 0], places[count, 1] = at, size
        at += size + compressed_bytes
        count += 1
    return count
