"""Parts of kernels for the keys of a packed row; ``weir.state.tables.panes.packed_rows`` has the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.declare import byte_kernel_part
from weir.state.tables.panes.number_kernels import choose_code, get, put, put_numbers, take_numbers

#: End of the other pane, number of entries with its keys (2 bytes), where the first one is among them (4 bytes).
REFERENCE_BYTES = 14
#: Before the numbers of integer keys: the first key, the code.
INTEGERS_BYTES = 9

_BYTE, _EIGHT, _ZERO = np.uint64(0xFF), np.uint64(8), np.uint64(0)


@byte_kernel_part
def _put_length(out: Any, at: Any, length: Any) -> Any:
    """Seven bits in a byte; the upper bit says that more follow."""
    while length >= 128:
        out[at] = np.uint8((length & 127) | 128)
        length >>= 7
        at += 1
    out[at] = np.uint8(length)
    return at + 1


@byte_kernel_part
def _big_endian(data: Any, start: Any) -> Any:
    word = _ZERO
    for index in range(start, start + 8):
        word = (word << _EIGHT) | np.uint64(data[index])
    return word


@byte_kernel_part
def put_keys(data: Any, offsets: Any, first: Any, stop: Any, out: Any, at: Any) -> Any:
    """Each key as what it shares with the one before, and the rest."""
    for entry in range(first, stop):
        start, end = offsets[entry], offsets[entry + 1]
        shared = 0
        if entry > first:
            before = offsets[entry - 1]
            most = min(start - before, end - start)
            while shared < most and data[before + shared] == data[start + shared]:
                shared += 1
        at = _put_length(out, at, shared)
        at = _put_length(out, at, end - start - shared)
        for index in range(start + shared, end):
            out[at] = data[index]
            at += 1
    return at


@byte_kernel_part
def put_integers(
    data: Any, offsets: Any, first: Any, stop: Any, words: Any, lengths: Any, out: Any, at: Any
) -> Any:
    """The first key, and how far each of the others is from the one before."""
    before = _big_endian(data, offsets[first])
    at = put(out, at, before, 8)
    for entry in range(first + 1, stop):
        word = _big_endian(data, offsets[entry])
        words[entry - first - 1] = word - before
        before = word
    count = stop - first - 1
    code, _ = choose_code(words, count, lengths)
    out[at] = code
    return put_numbers(words, 0, count, code, out, at + 1)


@byte_kernel_part
def put_reference(
    positions: Any, first: Any, stop: Any, reference_ms: Any, words: Any, lengths: Any, out: Any, at: Any
) -> Any:
    """Which keys of the other pane the entries have."""
    at = put(out, at, reference_ms, 8)
    at = put(out, at, stop - first, 2)
    at = put(out, at, positions[first], 4)
    for entry in range(first + 1, stop):
        words[entry - first - 1] = np.uint64(positions[entry] - positions[entry - 1] - 1)
    count = stop - first - 1
    code, _ = choose_code(words, count, lengths)
    out[at] = code
    return put_numbers(words, 0, count, code, out, at + 1)


@byte_kernel_part
def _take_length(data: Any, at: Any, stop: Any) -> Any:
    """A length and where it ends; -1: beyond the row."""
    length, bits = np.int64(0), 0
    while at < stop and bits < 35:
        byte = np.int64(data[at])
        at += 1
        length |= (byte & 127) << bits
        if byte < 128:
            return length, at
        bits += 7
    return np.int64(0), np.int64(-1)


@byte_kernel_part
def take_keys(
    data: Any, at: Any, stop: Any, entry: Any, count: Any, key_stop: Any, keys: Any, offsets: Any
) -> Any:
    """Read ``count`` keys that share bytes; returns where they end, -1: their bytes do not fit."""
    for number in range(entry, entry + count):
        shared, at = _take_length(data, at, stop)
        if at < 0:
            return np.int64(-1)
        rest, at = _take_length(data, at, stop)
        position = offsets[number]
        if at < 0 or at + rest > stop or position + shared + rest > key_stop:
            return np.int64(-1)
        if shared and (number == entry or shared > position - offsets[number - 1]):
            return np.int64(-1)
        for index in range(shared):
            keys[position + index] = keys[offsets[number - 1] + index]
        for index in range(rest):
            keys[position + shared + index] = data[at + index]
        at += rest
        offsets[number + 1] = position + shared + rest
    return np.int64(at)


@byte_kernel_part
def take_integers(
    data: Any, at: Any, stop: Any, entry: Any, count: Any, key_stop: Any, words: Any, keys: Any, offsets: Any
) -> Any:
    """As :func:`take_keys`, of keys of eight bytes."""
    if at + INTEGERS_BYTES > stop or offsets[entry] + 8 * count > key_stop:
        return np.int64(-1)
    word, code = get(data, at, 8), np.int64(data[at + 8])
    at = take_numbers(data, at + INTEGERS_BYTES, stop, code, words, count - 1)
    if at < 0:
        return np.int64(-1)
    for number in range(count):
        if number:
            word += words[number - 1]
        position = offsets[entry + number]
        for index in range(8):
            keys[position + index] = np.uint8((word >> np.uint64(56 - 8 * index)) & _BYTE)
        offsets[entry + number + 1] = position + 8
    return np.int64(at)


@byte_kernel_part
def take_reference(
    data: Any,
    at: Any,
    stop: Any,
    entry: Any,
    count: Any,
    key_stop: Any,
    words: Any,
    known_data: Any,
    known_offsets: Any,
    first: Any,
    known: Any,
    keys: Any,
    offsets: Any,
) -> Any:
    """As :func:`take_keys`, of keys of the other pane, of which ``known`` from ``first`` on are the group's."""
    if at + REFERENCE_BYTES >= stop:
        return np.int64(-1)
    position = np.int64(get(data, at + 10, 4))
    code = np.int64(data[at + REFERENCE_BYTES])
    at = take_numbers(data, at + REFERENCE_BYTES + 1, stop, code, words, count - 1)
    if at < 0:
        return np.int64(-1)
    for number in range(count):
        if number:
            further = np.int64(words[number - 1])
            if not 0 <= further < known:
                return np.int64(-1)
            position += further + 1
        if position >= known:
            return np.int64(-1)
        start = known_offsets[first + position]
        length = known_offsets[first + position + 1] - start
        to = offsets[entry + number]
        if to + length > key_stop:
            return np.int64(-1)
        for index in range(length):
            keys[to + index] = known_data[start + index]
        offsets[entry + number + 1] = to + length
    return np.int64(at)
