"""Compiled loops of joins whose result is updated: what each row changes. Called by ``change_join_operator`` only.

Arguments are those of ``join_kernels``. In these joins rows have no bounds in time: all rows of a key belong together.
So whether a row has a partner is the same for all rows of its side, and two numbers for each key say it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import load8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import input_array
from weir.operators.joins.join_kernels import FLAGS_AT, GONE, HEAD_BYTES, MATCHED, side_of

#: Of a kept row: it was taken away before it came, and takes away the next one that equals it. These joins have no use
#: for the flag otherwise.
OWED = MATCHED
#: What becomes of a new row.
DROPPED, KEPT, KEPT_AS_OWED = 0, 1, 2
#: Positions in ``weir.rows.changes.CHANGES``.
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3
#: What a row does: nothing; it is added or taken away; it is half of an update.
NOTHING, PLAIN, UPDATE = 0, 1, 2
#: Of a join: pairs are told, or combinations with a row of every other side; rows of the own and of the other side (of
#: several others their combinations) without a partner; left rows with a partner.
PAIRS, OWN_ALONE, OTHER_ALONE, OWN_PAIRED, OTHER_PAIRED = 1, 2, 4, 8, 16


_U8, _I64 = input_array(types.uint8), input_array(types.int64)
_LAYOUT = input_array(types.int64, 2)
_OUT_U8, _OUT_I64 = types.uint8[::1], types.int64[::1]
_INT = types.int64


@byte_kernel_part
def _size(data: Any, at: Any) -> Any:
    return np.int64(load8(data, at) & np.uint64(0xFFFFFFFF))


@byte_kernel_part
def _same(left: Any, first: Any, right: Any, other: Any, size: Any) -> Any:
    index = 0
    while index < size and left[first + index] == right[other + index]:
        index += 1
    return index == size


@byte_kernel(types.int64(_U8, _I64, _INT, _OUT_I64, _OUT_I64, _OUT_I64))
def present_rows(data: Any, bounds: Any, side: Any, starts: Any, stops: Any, owed: Any) -> int:
    """As ``rows_of_side``, without rows that are owed, of which ``owed`` has the number by key."""
    count = 0
    for key in range(bounds.size - 1):
        owed[key] = 0
        at = bounds[key] + HEAD_BYTES
        while at < bounds[key + 1]:
            flags = data[at + FLAGS_AT]
            if side_of(data, at) == side and not flags & GONE:
                if flags & OWED:
                    owed[key] += 1
                else:
                    starts[count] = at
                    count += 1
            at += _size(data, at)
        stops[key] = count
    return count


@byte_kernel_part
def _kept_equal(
    data: Any,
    bounds: Any,
    key: Any,
    side: Any,
    columns_at: Any,
    wanted: Any,
    own: Any,
    first: Any,
    length: Any,
) -> Any:
    """Where a kept row begins that has these columns; -1: there is none."""
    at = bounds[key] + HEAD_BYTES
    while at < bounds[key + 1]:
        size = _size(data, at)
        flags = data[at + FLAGS_AT]
        is_candidate = side_of(data, at) == side and flags & (GONE | OWED) == wanted
        if is_candidate and size - columns_at == length and _same(data, at + columns_at, own, first, length):
            return at
        at += size
    return -1


@byte_kernel(
    types.void(
        *(_I64, _U8, _U8, _I64),
        *(_OUT_U8, _I64, _INT, _INT, _INT, _I64),
        *(types.int64[:, ::1], _OUT_I64),
        *(types.uint8[:, ::1], _OUT_U8, _OUT_I64),
    )
)
def decide(
    keys: Any,
    changes: Any,
    own: Any,
    own_offsets: Any,
    data: Any,
    bounds: Any,
    side: Any,
    columns_at: Any,
    tells: Any,
    others: Any,
    of_keys: Any,
    previous: Any,
    decided: Any,
    changed: Any,
    counts: Any,
) -> None:
    """What each new row does, in order, and how many rows it tells.

    Args:
        keys: position of each row's key.
        changes: position of each row's change in ``CHANGES``.
        own: columns of the new rows, as bytes; those of row i are ``own[own_offsets[i]:own_offsets[i + 1]]``.
        own_offsets: int64, shape (rows + 1,).
        data: what is kept; rows that are taken away get ``GONE``.
        bounds: of the keys in it.
        side: of the new rows.
        columns_at: where columns begin in a kept row of the side.
        tells: sum of ``PAIRS`` and others.
        others: rows of the other side, or combinations of rows of all other sides, by key.
        of_keys: rows of this side, by key; below them those that were taken away before they came; below these -1 for
            each key. Changed.
        previous: of shape (rows,).
        decided: of each row whether it is ``KEPT``; below that what it does; below that 1: with it the other side's
            rows have a partner for the first time, or no more.
        changed: set for keys of which flags in ``data`` changed.
        counts: rows that it tells.
    """
    rows = keys.size
    present, owed, last = of_keys[0], of_keys[1], of_keys[2]
    fate, deed, turns = decided[0], decided[1], decided[2]
    for row in range(rows):
        key = keys[row]
        previous[row] = last[key]
        last[key] = row
        fate[row], deed[row], turns[row], counts[row] = DROPPED, NOTHING, 0, 0
        first, length = own_offsets[row], own_offsets[row + 1] - own_offsets[row]
        adds = changes[row] == INSERT or changes[row] == UPDATE_AFTER
        if adds and owed[key] == 0:
            fate[row] = KEPT
            deed[row] = PLAIN
        else:
            # A row in this batch that it undoes, or one that is kept.
            undone = previous[row]
            wanted = KEPT_AS_OWED if adds else KEPT
            while undone >= 0:
                size = own_offsets[undone + 1] - own_offsets[undone]
                if (
                    fate[undone] == wanted
                    and size == length
                    and _same(own, own_offsets[undone], own, first, length)
                ):
                    break
                undone = previous[undone]
            at = np.int64(-1)
            if undone >= 0:
                fate[undone] = DROPPED
            else:
                flags = OWED if adds else 0
                at = _kept_equal(data, bounds, key, side, columns_at, flags, own, first, length)
                if at >= 0:
                    data[at + FLAGS_AT] |= np.uint8(GONE)
                    changed[key] = 1
            found = undone >= 0 or at >= 0
            if adds:
                if found:
                    owed[key] -= 1
                else:
                    fate[row] = KEPT
                    deed[row] = PLAIN
            elif found:
                deed[row] = PLAIN
            else:
                fate[row] = KEPT_AS_OWED
                owed[key] += 1
        if deed[row] == NOTHING:
            continue
        # Both halves of an update, one after the other: no partner is lost and found again.
        if changes[row] == UPDATE_BEFORE and owed[key] == 0 and row + 1 < rows:
            if keys[row + 1] == key and changes[row + 1] == UPDATE_AFTER:
                deed[row] = UPDATE
        elif row and deed[row - 1] == UPDATE and changes[row - 1] == UPDATE_BEFORE:
            deed[row] = UPDATE
        before = present[key]
        present[key] = before + 1 if adds else before - 1
        if deed[row] == PLAIN and (before == 0 if adds else before == 1):
            turns[row] = 1
        count = others[key]
        told = 0
        if count:
            if tells & PAIRS:
                told = 2 * count if turns[row] and tells & OTHER_ALONE else count
            elif tells & OWN_PAIRED:
                told = 1
            elif turns[row] and tells & (OTHER_PAIRED | OTHER_ALONE):
                told = count
        elif tells & OWN_ALONE:
            told = 1
        counts[row] = told


@byte_kernel(
    types.void(*(_I64, _I64, _I64, _U8, _INT, _I64, _U8, _U8), *(_OUT_U8, _OUT_U8, _OUT_I64)),
)
def tell(
    rows: Any,
    numbers: Any,
    keys: Any,
    changes: Any,
    tells: Any,
    others: Any,
    deed: Any,
    turns: Any,
    out_change: Any,
    out_is_own: Any,
    out_other: Any,
) -> None:
    """What new rows tell: of ``rows[i]`` what has the number ``numbers[i]``, from 0, among the ``counts`` of that row.

    Of each its change, whether the new row's columns are in it, and the number of the row of the other side, or of the
    combination of the other sides, among those of the key (-1: it has none).
    """
    for at in range(rows.size):
        row, number = rows[at], numbers[at]
        adds = changes[row] == INSERT or changes[row] == UPDATE_AFTER
        count = others[keys[row]]
        change = INSERT if adds else DELETE
        is_own = 1
        other = number
        if deed[row] == UPDATE and (count <= 1 or not tells & PAIRS):
            change = UPDATE_AFTER if adds else UPDATE_BEFORE
        if count == 0 or tells & OWN_PAIRED:
            other = -1
        elif tells & PAIRS:
            if turns[row] and tells & OTHER_ALONE:
                # The other row was told alone before, or is from now on.
                is_before = number % 2 == 0
                change = UPDATE_BEFORE if is_before else UPDATE_AFTER
                is_own = 0 if adds == is_before else 1
                other = number // 2
        else:
            # Left rows of which a right one says whether they have a partner.
            if tells & OTHER_ALONE:
                change = DELETE if adds else INSERT
            is_own = 0
        out_change[at], out_is_own[at], out_other[at] = change, is_own, other
