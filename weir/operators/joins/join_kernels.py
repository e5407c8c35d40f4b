"""Compiled loops over the rows that a join keeps: find, match, drop and append. Called by ``kept_rows``.

The bytes are described in ``kept_rows``. Common arguments:

- ``data``: uint8, the entries of some keys, one after the other; that of key k is ``data[bounds[k]:bounds[k + 1]]``
  (int64, shape (keys + 1,)), empty if it has none.
- ``tails``: int64, where the rows begin that lie in the entry itself; those before them are of chunks.
- ``layout``: int64, shape (sides, 3), for each side where the lower bound and the last time lie in a row (-1: it has
  none), and where its columns begin.
- ``new_*``: of the rows of a batch. ``keys`` is the position of a row's key, int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import load8, store8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import input_array

#: Bytes of an entry before its rows; where the time of its timer is.
HEAD_BYTES, TIMER_AT = 13, 1
#: Within a row: its flags and its time.
FLAGS_AT, TIME_AT, ROW_BYTES = 4, 5, 13
#: Flags: which side it is of (its lowest bit; the others are bits 3 to 7), whether it has matched, and (in memory
#: only) that it goes.
SIDE, MATCHED, GONE = 1, 2, 4
SIDES_MAX = 64
NEVER = 2**63 - 1
_FIRST = -(2**63)
_SIZE_MASK = np.uint64(0xFFFFFFFF)


_U8, _I64 = input_array(types.uint8), input_array(types.int64)
_LAYOUT = input_array(types.int64, 2)
_OUT_U8, _OUT_I64, _OUT_I64_2D = types.uint8[::1], types.int64[::1], types.int64[:, ::1]
_INT = types.int64


@byte_kernel_part
def _size(data: Any, at: Any) -> Any:
    return np.int64(load8(data, at) & _SIZE_MASK)


@byte_kernel_part
def _copy(source: Any, at: Any, out: Any, to: Any, size: Any) -> None:
    """Copy bytes, eight at a time; nothing beyond them is read or written."""
    whole = size & ~7
    for index in range(0, whole, 8):
        store8(out, to + index, load8(source, at + index))
    for index in range(whole, size):
        out[to + index] = source[at + index]


@byte_kernel_part
def side_of(data: Any, at: Any) -> Any:
    """Which side a row is of; also a part of kernels of ``change_kernels``."""
    flags = np.int64(data[at + FLAGS_AT])
    return flags & SIDE | flags >> 2 & 62


@byte_kernel_part
def _side_flags(side: Any) -> Any:
    return side & SIDE | (side & 62) << 2


@byte_kernel_part
def _number(data: Any, at: Any) -> Any:
    return np.int64(load8(data, at))


@byte_kernel(types.int64(_U8, _I64, _INT, _OUT_I64, _OUT_I64))
def rows_of_side(data: Any, bounds: Any, side: Any, starts: Any, stops: Any) -> int:
    """Where each row of a side begins, key after key; those of key k end at ``stops[k]``. Returns how many."""
    count = 0
    for key in range(bounds.size - 1):
        at = bounds[key] + HEAD_BYTES
        while at < bounds[key + 1]:
            if side_of(data, at) == side:
                starts[count] = at
                count += 1
            at += _size(data, at)
        stops[key] = count
    return count


@byte_kernel_part
def _matches(
    data: Any, at: Any, lo_at: Any, until_at: Any, is_point: Any, time: Any, lower: Any, until: Any
) -> Any:
    """Whether a kept row and a new one match; ``is_point``: it is the kept row whose time counts."""
    if data[at + FLAGS_AT] & GONE:
        return False
    if is_point:
        kept = _number(data, at + TIME_AT)
        return lower <= kept <= until
    if lo_at < 0:
        return True
    return _number(data, at + lo_at) <= time <= _number(data, at + until_at)


_NEW = (_I64, _I64, _I64, _I64)
_KEPT = (_U8, _LAYOUT, _INT, types.boolean, _I64, _I64)


@byte_kernel(types.void(*_NEW, *_KEPT, _OUT_I64))
def count_matches(
    keys: Any,
    times: Any,
    lower: Any,
    until: Any,
    data: Any,
    layout: Any,
    side: Any,
    is_point: Any,
    starts: Any,
    stops: Any,
    counts: Any,
) -> None:
    """With how many kept rows each new one matches. ``side`` is that of the kept ones."""
    lo_at, until_at = layout[side, 0], layout[side, 1]
    for row in range(keys.size):
        key = keys[row]
        count = 0
        for index in range(stops[key - 1] if key else 0, stops[key]):
            if _matches(data, starts[index], lo_at, until_at, is_point, times[row], lower[row], until[row]):
                count += 1
        counts[row] = count


@byte_kernel(types.int64(_INT, _INT, *_NEW, _OUT_U8, *_KEPT[1:], _INT, _OUT_U8, _OUT_I64_2D))
def fill_matches(
    first: Any,
    stop: Any,
    keys: Any,
    times: Any,
    lower: Any,
    until: Any,
    data: Any,
    layout: Any,
    side: Any,
    is_point: Any,
    starts: Any,
    stops: Any,
    flag: Any,
    changed: Any,
    pairs: Any,
) -> int:
    """The pairs of new rows ``first <= row < stop``: number of the new row, and below it where the kept one begins.

    ``flag`` is set in kept rows that have it not (0: nothing is); their keys are ``changed`` (uint8). ``GONE`` makes a
    kept row match once only. Returns how many pairs there are.
    """
    lo_at, until_at = layout[side, 0], layout[side, 1]
    count = 0
    for row in range(first, stop):
        key = keys[row]
        for index in range(stops[key - 1] if key else 0, stops[key]):
            at = starts[index]
            if _matches(data, at, lo_at, until_at, is_point, times[row], lower[row], until[row]):
                pairs[0, count] = row
                pairs[1, count] = at
                count += 1
                if flag and data[at + FLAGS_AT] & flag == 0:
                    data[at + FLAGS_AT] |= np.uint8(flag)
                    changed[key] = 1
    return count


@byte_kernel_part
def _stays(data: Any, at: Any, until_at: Any, watermark: Any) -> Any:
    if data[at + FLAGS_AT] & GONE:
        return False
    return until_at < 0 or _number(data, at + until_at) >= watermark


@byte_kernel(types.int64(_U8, _I64, _LAYOUT, _INT, _INT, _OUT_I64, _OUT_I64))
def unmatched_rows(
    data: Any, bounds: Any, layout: Any, told: Any, watermark: Any, starts: Any, keys: Any
) -> int:
    """Rows of which it is told that they have not matched, now that they can match no more; and their keys.

    ``told``: bit s for side s. Returns how many.
    """
    count = 0
    for key in range(bounds.size - 1):
        at = bounds[key] + HEAD_BYTES
        while at < bounds[key + 1]:
            flags = data[at + FLAGS_AT]
            side = side_of(data, at)
            is_told = (told >> side) & 1 and flags & (MATCHED | GONE) == 0
            if is_told and not _stays(data, at, layout[side, 1], watermark):
                starts[count] = at
                keys[count] = key
                count += 1
            at += _size(data, at)
    return count


@byte_kernel(
    types.void(
        *(_U8, _I64, _I64, _LAYOUT, _INT, _INT, _U8),
        *(_INT, _I64, _I64, _U8, _I64, _I64),
        _OUT_I64_2D,
    )
)
def measure(
    data: Any,
    bounds: Any,
    tails: Any,
    layout: Any,
    told: Any,
    watermark: Any,
    changed: Any,
    new_side: Any,
    new_order: Any,
    new_bounds: Any,
    new_matched: Any,
    new_until: Any,
    new_offsets: Any,
    out: Any,
) -> None:
    """What becomes of each key that is ``changed`` or has new rows: the size of its entry (-1: as it is), its times.

    New rows of key k are ``new_order[new_bounds[k]:new_bounds[k + 1]]``; their columns ``new_offsets`` apart.
    ``out``: the sizes; when the first row of which it is told is complete; when all rows are. ``NEVER``.
    """
    for key in range(bounds.size - 1):
        first, stop = new_bounds[key], new_bounds[key + 1]
        out[0, key] = -1
        if first == stop and changed[key] == 0:
            continue
        size = 0
        soonest, latest = NEVER, _FIRST
        at = tails[key]
        while at < bounds[key + 1]:
            flags = data[at + FLAGS_AT]
            side = side_of(data, at)
            until_at = layout[side, 1]
            if _stays(data, at, until_at, watermark):
                size += _size(data, at)
                if until_at >= 0:
                    until = _number(data, at + until_at)
                    latest = max(latest, until)
                    if (told >> side) & 1 and flags & MATCHED == 0:
                        soonest = min(soonest, until)
                else:
                    latest = NEVER
            at += _size(data, at)
        for index in range(first, stop):
            row = new_order[index]
            size += layout[new_side, 2] + new_offsets[row + 1] - new_offsets[row]
            until = new_until[row]
            latest = max(latest, until)
            if (told >> new_side) & 1 and new_matched[row] == 0:
                soonest = min(soonest, until)
        out[0, key] = size + HEAD_BYTES if size else 0
        out[1, key] = soonest + 1 if soonest < NEVER else NEVER
        out[2, key] = latest + 1 if latest < NEVER else NEVER


@byte_kernel(
    types.void(
        *(_U8, _I64, _I64, _LAYOUT, _INT, _I64),
        *(_INT, _I64, _I64, _U8, input_array(types.int64, 2), _U8, _I64),
        *(_I64, _OUT_U8),
    )
)
def rewrite(
    data: Any,
    bounds: Any,
    tails: Any,
    layout: Any,
    watermark: Any,
    timers: Any,
    new_side: Any,
    new_order: Any,
    new_bounds: Any,
    new_matched: Any,
    new_numbers: Any,
    new_data: Any,
    new_offsets: Any,
    out_bounds: Any,
    out: Any,
) -> None:
    """Write the entries that have room to ``out[out_bounds[k]:out_bounds[k + 1]]``, which is zeroed.

    ``new_numbers``: times, ``lower`` and ``until`` of new rows, one below the other.
    """
    for key in range(bounds.size - 1):
        to = out_bounds[key]
        if out_bounds[key + 1] == to:
            continue
        out[to] = 1
        store8(out, to + TIMER_AT, np.uint64(timers[key]))
        to += HEAD_BYTES
        at = tails[key]
        while at < bounds[key + 1]:
            size = _size(data, at)
            if _stays(data, at, layout[side_of(data, at), 1], watermark):
                _copy(data, at, out, to, size)
                to += size
            at += size
        for index in range(new_bounds[key], new_bounds[key + 1]):
            row = new_order[index]
            columns_at = layout[new_side, 2]
            length = new_offsets[row + 1] - new_offsets[row]
            store8(out, to, np.uint64(columns_at + length))
            out[to + FLAGS_AT] = np.uint8(_side_flags(new_side) | (MATCHED if new_matched[row] else 0))
            store8(out, to + TIME_AT, np.uint64(new_numbers[0, row]))
            if layout[new_side, 0] >= 0:
                store8(out, to + layout[new_side, 0], np.uint64(new_numbers[1, row]))
            if layout[new_side, 1] >= 0:
                store8(out, to + layout[new_side, 1], np.uint64(new_numbers[2, row]))
            _copy(new_data, new_offsets[row], out, to + columns_at, length)
            to += columns_at + length


@byte_kernel_part
def _counts_from(data: Any, at: Any, layout: Any, time: Any) -> Any:
    """The first time of left rows for which a version counts: its own, of a late one the watermark as of it."""
    from_at = layout[side_of(data, at), 0]
    return time if from_at < 0 else _number(data, at + from_at)


@byte_kernel(types.void(_OUT_U8, _I64, _LAYOUT, _INT, _OUT_U8))
def drop_old_versions(data: Any, bounds: Any, layout: Any, watermark: Any, changed: Any) -> None:
    """Set ``GONE`` in right rows that count below the watermark but the latest of each key.

    Of equal times the one counts that does so later, or else the last one.
    """
    for key in range(bounds.size - 1):
        latest = -1
        latest_time, latest_from = _FIRST, _FIRST
        at = bounds[key] + HEAD_BYTES
        while at < bounds[key + 1]:
            if data[at + FLAGS_AT] & SIDE:
                time = _number(data, at + TIME_AT)
                since = _counts_from(data, at, layout, time)
                if since < watermark:
                    gone = at
                    is_later = time > latest_time or (time == latest_time and since >= latest_from)
                    if latest < 0 or is_later:
                        gone, latest, latest_time, latest_from = latest, at, time, since
                    if gone >= 0:
                        data[gone + FLAGS_AT] |= np.uint8(GONE)
                        changed[key] = 1
            at += _size(data, at)


@byte_kernel(types.int64(_U8, _I64, _LAYOUT, _INT, _OUT_I64, _OUT_I64, _OUT_I64))
def versions_of(
    data: Any, bounds: Any, layout: Any, watermark: Any, lefts: Any, rights: Any, keys: Any
) -> int:
    """Left rows below the watermark, each with the latest right row of its key that counts for it (-1: none).

    Returns how many left rows; ``keys`` are the positions of their keys.
    """
    count = 0
    for key in range(bounds.size - 1):
        at = bounds[key] + HEAD_BYTES
        while at < bounds[key + 1]:
            if data[at + FLAGS_AT] & SIDE == 0:
                time = _number(data, at + TIME_AT)
                if time < watermark:
                    version = -1
                    version_time, version_from = _FIRST, _FIRST
                    other = bounds[key] + HEAD_BYTES
                    while other < bounds[key + 1]:
                        if data[other + FLAGS_AT] & SIDE:
                            right_time = _number(data, other + TIME_AT)
                            since = _counts_from(data, other, layout, right_time)
                            is_later = right_time > version_time or (
                                right_time == version_time and since >= version_from
                            )
                            if since <= time and (version < 0 or is_later):
                                version, version_time, version_from = other, right_time, since
                        other += _size(data, other)
                    lefts[count], rights[count], keys[count] = at, version, key
                    count += 1
            at += _size(data, at)
    return count


@byte_kernel(types.void(_U8, _INT, _INT, _INT, _LAYOUT, _INT, _INT, _OUT_U8, _OUT_I64))
def rows_that_stay(
    data: Any, first: Any, stop: Any, side: Any, layout: Any, told: Any, watermark: Any, out: Any, facts: Any
) -> None:
    """Copy the rows of a side that stay and lie in ``data[first:stop]``.

    ``facts``: bytes, rows, the last time that belongs to one of them, and when the first of them is told of that has
    not matched (``NEVER``: neither is).
    """
    size, rows = 0, 0
    latest, soonest = _FIRST, NEVER
    at = first
    while at < stop:
        length = _size(data, at)
        until_at = layout[side, 1]
        if side_of(data, at) == side and _stays(data, at, until_at, watermark):
            _copy(data, at, out, size, length)
            size += length
            rows += 1
            until = _number(data, at + until_at) if until_at >= 0 else NEVER
            latest = max(latest, until)
            if until < NEVER and (told >> side) & 1 and data[at + FLAGS_AT] & MATCHED == 0:
                soonest = min(soonest, until + 1)
        at += length
    facts[0], facts[1], facts[2], facts[3] = size, rows, latest, soonest
