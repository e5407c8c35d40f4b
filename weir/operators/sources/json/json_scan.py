"""A Numba kernel that reads JSON objects, one a line, straight into columns.

It takes a line only when it is certain what the strict parser (``json_strict``) would make of it; any other
line is handed back by its position. It reads wanted keys of the object and of objects within it, in any order; they
may be missing or null where their column may be. It skips everything else, checked (``json_tokens``). Not certain are
integers that may not fit, numbers that may be infinite, halves of surrogate pairs, and values of another type.

Wanted keys form a tree. An *entry* is a key of an object, an *object* is the line itself (0) or the value of an entry.

``data`` must be readable for ``PADDING_BYTES`` after the range given: strings are read eight bytes at once, and text
beyond ASCII is checked two or four characters at once.

A list of which single values are wanted is an object whose keys are their places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weir.kernels.bytes import byte_at, load8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, FLOATS, INT, INTS, INTS_2D, OFFSETS, TYPES
from weir.kernels.text_masks import line_end
from weir.operators.sources.json.json_tokens import (
    copy_string,
    is_key_with_escapes,
    literal,
    skip_key,
    skip_space,
    skip_string,
    skip_value,
)
from weir.operators.sources.lines.value_texts import (
    float_number,
    scan_date,
    scan_decimal,
    scan_timestamp,
    simple_number,
    unsigned_number,
)

#: Kinds of entries. An object's own entries are scanned, a raw value is only checked, and its place is noted.
KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_STRING, KIND_OBJECT, KIND_RAW = range(6)
#: Texts of which an integer is made, and decimals of 18 digits at most.
KIND_TIME, KIND_DATE, KIND_DECIMAL = 6, 7, 8
#: Integers that need all 64 bits.
KIND_UNSIGNED = 9
#: Of an object with more entries, those that do not come in order are found by the hashes of their keys.
LISTED_ENTRIES_MAX = 16
#: Of an object with more entries keys with escapes are not certain: each is compared.
_ESCAPED_ENTRIES_MAX = 256
#: Entries of which one word of a set tells.
WORD_BITS = 64
#: Columns of the table of entries.
(
    ENTRY_KIND,
    #: Index of the column among the numbers or the strings.
    ENTRY_SLOT,
    #: Least and greatest integer. Of a time the units of a second, of a decimal scale and precision.
    ENTRY_LOW,
    ENTRY_HIGH,
    #: Where the column begins in ``texts``.
    ENTRY_TEXT,
    #: 1: may be missing or null.
    ENTRY_NULLABLE,
    #: Of an object: its number.
    ENTRY_OBJECT,
    #: Filled: how many are null.
    ENTRY_NULLS,
    #: Of a value in a list: its place there.
    ENTRY_PLACE,
) = range(9)
ENTRY_COLUMNS = 9
#: Columns of the table of objects: the entries that are its keys, the object that it is in, its own entry there, the
#: byte that ends it, and of a list the place that comes next (filled).
OBJECT_FIRST, OBJECT_STOP, OBJECT_PARENT, OBJECT_ENTRY, OBJECT_ENDS, OBJECT_PLACE = range(6)
#: Further ones: where its hash table begins (-1: it has none), and the length of that less 1.
OBJECT_SLOTS, OBJECT_MASK = 6, 7
#: Bytes that end objects and lists; each is two after that which begins them.
OBJECT_END, LIST_END = 0x7D, 0x5D


class Entries(NamedTuple):
    """What is wanted of each line."""

    #: Uint8, the entries' keys with their closing quotes, concatenated and padded.
    keys: np.ndarray
    #: Int64, shape (entries + 1,), where each begins in ``keys``.
    key_offsets: np.ndarray
    #: Int64, shape (entries, 9): ``ENTRY_KIND`` and so on.
    table: np.ndarray
    #: Int64, shape (objects, 8): ``OBJECT_FIRST`` and so on.
    objects: np.ndarray
    #: Int64, the hash tables of objects, see :func:`fill_slots`.
    slots: np.ndarray
    #: Int64, four sets of entries with a bit for each: those that were there, those with a value (both are scratch),
    #: those that must have one, and all.
    marks: np.ndarray


class Cells(NamedTuple):
    """Where values go. The arrays are flat because views made inside a kernel cost reference counts."""

    #: Rows that a column has room for.
    rows_max: int
    #: Int64, shape (number columns * rows_max,): integers, bools as 0 or 1, times, dates and decimals.
    numbers: np.ndarray
    #: The same memory as float64.
    decimals: np.ndarray
    #: Int32, shape (string columns * (rows_max + 1),); each column starts with 0.
    offsets: np.ndarray
    #: Uint8; each string column has room for all bytes that are read and ``PADDING_BYTES``.
    texts: np.ndarray
    #: Uint8, shape (entries * rows_max,), all 1; 0 where an entry is null.
    valid: np.ndarray
    #: Int64, shape (rows_max * (float and raw entries), 4); filled with entry, row, start and end of raw values, and of
    #: numbers that are left to a slower parser: their grammar is right, and they are finite.
    late: np.ndarray


ENTRIES_TYPE = TYPES.NamedTuple((BYTES, INTS, INTS_2D, INTS_2D, INTS, INTS), Entries)
CELLS_TYPE = TYPES.NamedTuple((INT, INTS, FLOATS, OFFSETS, BYTES, BYTES, INTS_2D), Cells)

_MIX = np.uint64(0x9E3779B97F4A7C15)


@byte_kernel_part
def _matches(data: np.ndarray, at: int, keys: np.ndarray, start: int, stop: int) -> bool:
    """Whether the bytes at ``at`` are ``keys[start:stop]``, a key with its closing quote."""
    length = stop - start
    offset = 0
    while offset + 8 <= length:
        if load8(data, at + offset) != load8(keys, start + offset):
            return False
        offset += 8
    while offset < length:
        if byte_at(data, at + offset) != byte_at(keys, start + offset):
            return False
        offset += 1
    return True


@byte_kernel_part
def _key_hash(data: np.ndarray, at: int, length: int) -> int:
    """Of a key with its closing quote; 0 to 2**24 - 1."""
    found = np.uint64(length) * _MIX
    offset = 0
    while offset < length:
        word = load8(data, at + offset)
        left = length - offset
        if left < 8:
            word &= (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
        found = (found ^ word) * _MIX
        found ^= found >> np.uint64(29)
        offset += 8
    return int(np.int64(found >> np.uint64(40)))


@byte_kernel(TYPES.void(BYTES, INTS, INTS_2D, INTS))
def fill_slots(keys: np.ndarray, key_offsets: np.ndarray, objects: np.ndarray, slots: np.ndarray) -> None:
    """Make the hash tables of the objects that have one.

    Args:
        keys: see :class:`Entries`, as the next two.
        key_offsets: see there.
        objects: see there.
        slots: int64, all -1; filled with entries.
    """
    for number in range(len(objects)):
        base = objects[number, OBJECT_SLOTS]
        if base < 0:
            continue
        for entry in range(objects[number, OBJECT_FIRST], objects[number, OBJECT_STOP]):
            length = key_offsets[entry + 1] - key_offsets[entry]
            place = _key_hash(keys, key_offsets[entry], length) & objects[number, OBJECT_MASK]
            while slots[base + place] >= 0:
                place = (place + 1) & objects[number, OBJECT_MASK]
            slots[base + place] = entry


@byte_kernel_part
def _find_entry(data: np.ndarray, at: int, entries: Entries, number: int, guess: int) -> int:
    """Of the entries of an object the one whose key begins at ``at``; -1: none."""
    keys, key_offsets, objects, slots = entries.keys, entries.key_offsets, entries.objects, entries.slots
    first = objects[number, OBJECT_FIRST]
    stop = objects[number, OBJECT_STOP]
    if first <= guess < stop and _matches(data, at, keys, key_offsets[guess], key_offsets[guess + 1]):
        return guess
    base = objects[number, OBJECT_SLOTS]
    if base < 0:
        for entry in range(first, stop):
            if _matches(data, at, keys, key_offsets[entry], key_offsets[entry + 1]):
                return entry
        return -1
    length = skip_key(data, at) - at
    if length < 0:
        return -1
    place = _key_hash(data, at, length) & objects[number, OBJECT_MASK]
    while slots[base + place] >= 0:
        entry = slots[base + place]
        start = key_offsets[entry]
        if key_offsets[entry + 1] - start == length and _matches(data, at, keys, start, start + length):
            return int(entry)
        place = (place + 1) & objects[number, OBJECT_MASK]
    return -1


@byte_kernel_part
def _find_with_escapes(data: np.ndarray, at: int, entries: Entries, number: int) -> tuple[int, int]:
    """As :func:`_find_entry`, for a key that may have escapes; and the position after it, -1: not certain."""
    keys, key_offsets, objects = entries.keys, entries.key_offsets, entries.objects
    first = objects[number, OBJECT_FIRST]
    stop = objects[number, OBJECT_STOP]
    after = skip_string(data, at)
    if after < 0 or stop - first > _ESCAPED_ENTRIES_MAX:
        return -1, -1
    for entry in range(first, stop):
        if is_key_with_escapes(data, at, keys, key_offsets[entry], key_offsets[entry + 1]):
            return entry, after
    return -1, after


@byte_kernel_part
def _is_marked(marks: np.ndarray, first: int, entry: int) -> bool:
    """Whether an entry is in the set that begins at ``first``."""
    return bool((marks[first + (entry >> 6)] >> (entry & 63)) & 1)


@byte_kernel_part
def _mark(marks: np.ndarray, first: int, entry: int) -> None:
    marks[first + (entry >> 6)] |= np.int64(1) << (entry & 63)


@byte_kernel_part
def _entry_at_place(table: np.ndarray, objects: np.ndarray, number: int, guess: int) -> int:
    """The entry of a list's next value; -1: it is not wanted."""
    place = objects[number, OBJECT_PLACE]
    objects[number, OBJECT_PLACE] = place + 1
    if guess < objects[number, OBJECT_STOP] and table[guess, ENTRY_PLACE] == place:
        return guess
    return -1


@byte_kernel_part
def put_nulls(entries: Entries, cells: Cells, row: int) -> None:
    """Make the entries null in a row that have no value."""
    marks, table, offsets = entries.marks, entries.table, cells.offsets
    rows_max = cells.rows_max
    filled = len(marks) >> 2
    for entry in range(len(table)):
        if _is_marked(marks, filled, entry):
            continue
        cells.valid[entry * rows_max + row] = 0
        table[entry, ENTRY_NULLS] += 1
        kind = table[entry, ENTRY_KIND]
        slot = table[entry, ENTRY_SLOT]
        if kind == KIND_STRING:
            offsets[slot * (rows_max + 1) + row + 1] = offsets[slot * (rows_max + 1) + row]
        elif kind <= KIND_BOOL or kind > KIND_RAW:
            cells.numbers[slot * rows_max + row] = 0


@byte_kernel_part
def _scan_scaled(data: np.ndarray, at: int, kind: int, low: int, high: int) -> tuple[int, int]:
    """Read a value that becomes an integer: position after it, -1: not certain; and the integer."""
    if kind == KIND_TIME:
        return scan_timestamp(data, at, low)
    if kind == KIND_DATE:
        return scan_date(data, at)
    if kind == KIND_UNSIGNED:
        return unsigned_number(data, at)
    return scan_decimal(data, at, low, high)


@byte_kernel_part
def scan_value(
    data: np.ndarray, at: int, entry: int, row: int, table: np.ndarray, cells: Cells, late_count: int
) -> tuple[int, int]:
    """Read a value that is not null into ``row`` of its column.

    Returns:
        Position after it, -1: not certain; and how many values are in ``late``.
    """
    kind = table[entry, ENTRY_KIND]
    slot = table[entry, ENTRY_SLOT]
    rows_max, numbers, late = cells.rows_max, cells.numbers, cells.late
    if kind == KIND_STRING:
        if byte_at(data, at) != 0x22:
            return -1, late_count
        begin = slot * (rows_max + 1) + row
        base = table[entry, ENTRY_TEXT]
        offsets = cells.offsets
        after, end = copy_string(data, at + 1, cells.texts, base + offsets[begin])
        offsets[begin + 1] = end - base
        return after, late_count
    if kind == KIND_RAW:
        after = skip_value(data, at)
    else:
        cell = slot * rows_max + row
        if kind == KIND_BOOL:
            after, truth = literal(data, at)
            numbers[cell] = truth
            return after if truth >= 0 else -1, late_count
        if kind > KIND_RAW:
            after, numbers[cell] = _scan_scaled(
                data, at, kind, table[entry, ENTRY_LOW], table[entry, ENTRY_HIGH]
            )
            return after, late_count
        if kind == KIND_INT:
            after, number, fraction, _ = simple_number(data, at)
            numbers[cell] = number
            if fraction >= 0 or number < table[entry, ENTRY_LOW] or number > table[entry, ENTRY_HIGH]:
                return -1, late_count
            return after, late_count
        after, value, is_found = float_number(data, at)
        cells.decimals[cell] = value
        if is_found or after < 0:
            return after, late_count
    late[late_count, 0] = entry
    late[late_count, 1] = row
    late[late_count, 2] = at
    late[late_count, 3] = after
    return after, late_count + 1


@byte_kernel_part
def scan_object(
    data: np.ndarray, at: int, root: int, row: int, entries: Entries, cells: Cells, late_count: int
) -> tuple[int, int]:
    """Read the object that starts at ``at``, whose number is ``root``; the first two sets of marks are filled.

    Returns:
        Position after it, -1: not certain; and how many values are in ``late``.
    """
    table, objects, marks = entries.table, entries.objects, entries.marks
    key_offsets = entries.key_offsets
    # Those of the first word stay in registers.
    words = len(marks) >> 2
    seen = np.int64(0)
    filled = np.int64(0)
    if words > 1:
        for word in range(2 * words):
            marks[word] = 0
    guess = objects[root, OBJECT_FIRST]
    current = root
    end = OBJECT_END
    if byte_at(data, at) != 0x7B:
        return -1, late_count
    at = skip_space(data, at + 1)
    is_empty = byte_at(data, at) == end
    while True:
        if not is_empty:
            if end == LIST_END:
                entry = _entry_at_place(table, objects, current, guess)
                if entry >= 0:
                    guess = entry + 1
            else:
                if byte_at(data, at) != 0x22:
                    return -1, late_count
                at += 1
                entry = _find_entry(data, at, entries, current, guess)
                if entry >= 0:
                    after = at + key_offsets[entry + 1] - key_offsets[entry]
                else:
                    after = skip_key(data, at)
                    if after < 0:
                        entry, after = _find_with_escapes(data, at, entries, current)
                        if after < 0:
                            return -1, late_count
                if entry >= 0:
                    if entry < WORD_BITS:
                        if (seen >> entry) & 1:
                            return -1, late_count
                        seen |= np.int64(1) << entry
                    else:
                        if _is_marked(marks, 0, entry):
                            return -1, late_count
                        _mark(marks, 0, entry)
                    guess = entry + 1
                at = after
                at = skip_space(data, at)
                if byte_at(data, at) != 0x3A:
                    return -1, late_count
                at = skip_space(data, at + 1)
            if entry < 0:
                at = skip_value(data, at)
            elif byte_at(data, at) == 0x6E:
                at, truth = literal(data, at)
                if truth != -1 or table[entry, ENTRY_NULLABLE] == 0:
                    return -1, late_count
            else:
                if entry < WORD_BITS:
                    filled |= np.int64(1) << entry
                else:
                    _mark(marks, words, entry)
                if table[entry, ENTRY_KIND] == KIND_OBJECT:
                    current = table[entry, ENTRY_OBJECT]
                    end = objects[current, OBJECT_ENDS]
                    if byte_at(data, at) != end - 2:
                        return -1, late_count
                    objects[current, OBJECT_PLACE] = 0
                    guess = objects[current, OBJECT_FIRST]
                    at = skip_space(data, at + 1)
                    is_empty = byte_at(data, at) == end
                    continue
                at, late_count = scan_value(data, at, entry, row, table, cells, late_count)
            if at < 0:
                return -1, late_count
            at = skip_space(data, at)
            if byte_at(data, at) == 0x2C:
                at = skip_space(data, at + 1)
                continue
        is_empty = False
        # The end of this object, and of those around it that end with it.
        while byte_at(data, at) == end and current != root:
            guess = objects[current, OBJECT_ENTRY] + 1
            current = objects[current, OBJECT_PARENT]
            end = objects[current, OBJECT_ENDS]
            at = skip_space(data, at + 1)
        if byte_at(data, at) == 0x2C:
            at = skip_space(data, at + 1)
            continue
        break
    if byte_at(data, at) != 0x7D or current != root:
        return -1, late_count
    marks[words] = filled
    return at + 1, late_count


@byte_kernel_part
def _line_after(data: np.ndarray, at: int) -> int:
    """Position after the newline that nothing but space is before; -1: something is."""
    at = skip_space(data, at)
    if byte_at(data, at) == 0x0D:
        at += 1
    return at + 1 if byte_at(data, at) == 0x0A else -1


@byte_kernel(TYPES.UniTuple(INT, 4)(BYTES, INT, INT, INT, INT, ENTRIES_TYPE, CELLS_TYPE, INTS_2D, INTS))
def scan_lines(
    data: np.ndarray,
    start: int,
    stop: int,
    wanted: int,
    line_bytes_max: int,
    entries: Entries,
    cells: Cells,
    unsure: np.ndarray,
    starts: np.ndarray,
) -> tuple[int, int, int, int]:
    """Read whole lines into columns until ``stop`` or ``wanted`` lines.

    Args:
        data: uint8, shape (bytes + PADDING_BYTES,).
        start: position of the first line.
        stop: end of the lines; ``data[stop - 1]`` is a newline.
        wanted: lines to read, as many at most as a column has room for.
        line_bytes_max: longer lines are not certain.
        entries: what is wanted.
        cells: where values go.
        unsure: int64, shape (lines, 3); filled with start, end (after the newline) and number of rows before it for
            each line that is not certain.
        starts: int64, shape (lines,); filled with the start of each row's line.

    Returns:
        Position after the last line read, rows, unsure lines, late values.
    """
    at = start
    row = 0
    unsure_count = 0
    late_count = 0
    marks = entries.marks
    words = len(marks) >> 2
    while at < stop and row + unsure_count < wanted:
        after, late_after = scan_object(data, skip_space(data, at), 0, row, entries, cells, late_count)
        if after >= 0:
            after = _line_after(data, after)
        lacks = 0
        is_whole = True
        for word in range(words):
            found = marks[words + word]
            lacks |= marks[2 * words + word] & ~found
            is_whole = is_whole and found == marks[3 * words + word]
        if after >= 0 and after - at <= line_bytes_max and lacks == 0:
            if not is_whole:
                put_nulls(entries, cells, row)
            starts[row] = at
            row += 1
            at = after
            late_count = late_after
            continue
        after = line_end(data, at) + 1
        unsure[unsure_count, 0] = at
        unsure[unsure_count, 1] = after
        unsure[unsure_count, 2] = row
        unsure_count += 1
        at = after
    return at, row, unsure_count, late_count
