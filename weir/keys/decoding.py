"""From canonical key bytes back to Arrow columns; ``weir.keys.encoding`` has the format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from weir.errors import StateError
from weir.keys import key_kernels as kernels
from weir.keys.encoding import INTEGER_BYTES, NULL_KEY, KeyColumn, binary_array, is_bytes_like


def decode_keys(keys: KeyColumn, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Arrow columns from canonical keys: one array of ``len(keys)`` rows for each type, in key order.

    Raises:
        StateError: the bytes are not keys of these types.
    """
    if len(types) > 1:
        return _decode_composite(keys, types)
    (data_type,) = types
    lengths = np.diff(keys.offsets)
    starts = np.array(keys.offsets[:-1], dtype=np.int64)
    nulls = np.zeros(len(keys), dtype=bool)
    if not (pat.is_binary(data_type) or pat.is_large_binary(data_type)):
        single = np.flatnonzero(lengths == 1)
        nulls[single] = keys.data[starts[single]] == NULL_KEY[0]
    if is_bytes_like(data_type):
        data, offsets = keys.data, keys.offsets
        if nulls.any():
            # The byte that says null is no UTF-8, and some readers of Arrow look at bytes that belong to no value, too.
            offsets = np.zeros(len(keys) + 1, dtype=np.int64)
            np.cumsum(np.where(nulls, 0, lengths), out=offsets[1:])
            data = np.empty(int(offsets[-1]), dtype=np.uint8)
            kernels.gather_bytes(keys.data, starts, offsets, data)
        return [_bytes_to_arrow(binary_array(data, offsets, ~nulls), data_type)]
    wrong = np.flatnonzero((lengths != INTEGER_BYTES) & ~nulls)
    if len(wrong):
        raise StateError(f"key {keys.key(int(wrong[0]))!r} is not a key of type {data_type}")
    starts[nulls] = -1
    return [_integers_to_arrow(keys.data, starts, data_type)]


def _decode_composite(keys: KeyColumn, types: Sequence[pa.DataType]) -> list[pa.Array]:
    rows = len(keys)
    cursors = np.array(keys.offsets[:-1], dtype=np.int64)
    stops = np.array(keys.offsets[1:], dtype=np.int64)
    columns = []
    for data_type in types:
        starts, lengths = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        tag = kernels.TAG_BYTES if is_bytes_like(data_type) else kernels.TAG_INTEGER
        wrong = kernels.read_component(keys.data, cursors, stops, tag, starts, lengths)
        if wrong >= 0:
            raise StateError(f"key {keys.key(wrong)!r} has no component of type {data_type} where one is due")
        if tag == kernels.TAG_INTEGER:
            columns.append(_integers_to_arrow(keys.data, starts, data_type))
            continue
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        kernels.gather_bytes(keys.data, starts, offsets, data)
        columns.append(_bytes_to_arrow(binary_array(data, offsets, starts >= 0), data_type))
    if rows and not np.array_equal(cursors, stops):
        wrong = int(np.flatnonzero(cursors != stops)[0])
        raise StateError(f"key {keys.key(wrong)!r} has more components than the {len(types)} expected")
    return columns


def _bytes_to_arrow(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    try:
        if pat.is_dictionary(data_type):
            return array.cast(data_type.value_type).dictionary_encode().cast(data_type)
        return array.cast(data_type)
    except pa.ArrowInvalid as error:
        raise StateError(f"stored keys are not of type {data_type}: {error}") from error


def _integers_to_arrow(data: np.ndarray, starts: np.ndarray, data_type: pa.DataType) -> pa.Array:
    """Integer-like values at ``starts``; null where negative."""
    integers = np.zeros(len(starts), dtype=np.int64)
    kernels.read_integers(data, starts, integers)
    mask = None if (starts >= 0).all() else starts < 0
    if data_type == pa.uint64():
        return pa.array(integers.view(np.uint64), mask=mask)
    array = pa.array(integers, mask=mask)
    try:
        if pat.is_temporal(data_type) and data_type.bit_width == 32:
            return array.cast(pa.int32()).view(data_type)
        if pat.is_temporal(data_type):
            return array.view(data_type)
        return array.cast(data_type)
    except pa.ArrowInvalid as error:
        raise StateError(f"stored keys are not of type {data_type}: {error}") from error
