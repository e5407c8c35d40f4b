"""Entries of a window table in a store as if none of its panes were packed: for those who read without the table.

Questions from outside call it, of stores that are in use and of checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from weir.state import layout
from weir.state.packed import split_rows
from weir.state.tables.cells.accumulators import encode_rows
from weir.state.tables.panes.packed_rows import (
    PackedPane,
    cells_of,
    end_of,
    packed_from,
    range_of_group,
    range_of_pane,
)
from weir.state.tables.panes.pane_packing import KnownKeys, known_keys, unpack_panes
from weir.state.tables.timers.time_first import TIME_STOP, time_bytes, time_of

#: As ``StateReader.scan``, or ``scan_for_question``.
Scan = Callable[..., Iterator[tuple[bytes, bytes]]]


def scan_entries(
    scan: Scan, start: bytes, stop: bytes, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Entries of a range of one key group and state, in key order or the reverse; the packed ones among them.

    One pane is unpacked at a time. Where nothing is packed this costs one further look. Both have begun when this
    returns: a store that is elsewhere reads for several scans at a time.

    Raises:
        StateMismatchError: a packed row has another version, or not the bytes of one.
    """
    own = scan(start, stop, reverse=reverse)
    first, last = range_of_group(*_group_and_state(start))
    assert last is not None, "a group's prefix has an end"
    # It begins after the other one: entries of a pane that is packed in the meantime are among its own.
    packed = scan(first, last, reverse=False)

    def entries() -> Iterator[tuple[bytes, bytes]]:
        entry = next(own, None)
        listed = own if entry is None else itertools.chain((entry,), own)
        if next(packed, None) is None:
            yield from listed
        else:
            yield from _merged(_packed_entries(scan, start, stop, reverse), listed, reverse)

    return entries()


def _merged(
    packed: Iterator[tuple[bytes, bytes]], own: Iterator[tuple[bytes, bytes]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield both in one order; of equal keys the entry of its own counts."""
    below, above = next(packed, None), next(own, None)
    while below is not None and above is not None:
        if below[0] == above[0]:
            below = next(packed, None)
        elif (below[0] < above[0]) != reverse:
            yield below
            below = next(packed, None)
        else:
            yield above
            above = next(own, None)
    rest, first = (own, above) if below is None else (packed, below)
    if first is not None:
        yield first
        yield from rest


def _packed_entries(scan: Scan, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    """The packed entries of a range, in order."""
    group, state_id = _group_and_state(start)
    prefix = layout.key_prefix(group, state_id)
    first, last = range_of_group(group, state_id)
    if len(start) >= TIME_STOP:
        first, _ = range_of_pane(group, state_id, time_of(start))
    if stop.startswith(prefix) and len(stop) >= TIME_STOP:
        _, last = range_of_pane(group, state_id, time_of(stop))
    assert last is not None, "a group's prefix has an end"
    references = _References(scan, group, state_id)
    rows: list[bytes] = []
    end_ms = None
    for key, value in scan(first, last, reverse=reverse):
        if rows and end_of(key) != end_ms:
            yield from _within(_entries(prefix, references, end_ms, rows, reverse), start, stop)
            rows = []
        end_ms = end_of(key)
        rows.append(value)
    if rows:
        yield from _within(_entries(prefix, references, end_ms, rows, reverse), start, stop)


class _References:
    """The panes of one key group and state to which others refer; the latest one is kept."""

    def __init__(self, scan: Scan, group: int, state_id: int) -> None:
        self._scan = scan
        self.group = group
        self._state_id = state_id
        self._latest: tuple[list[int], KnownKeys | None] = [], None

    def of(self, pane: PackedPane) -> KnownKeys | None:
        """What a pane needs; None: it is not there any more, so the pane itself is over."""
        wanted = pane.referred_ms()
        if self._latest[0] != wanted or self._latest[1] is None:
            panes = {end_ms: [self._pane(end_ms)] for end_ms in wanted}
            is_there = all(len(pane.groups) for found in panes.values() for pane in found)
            self._latest = wanted, known_keys(panes, self.group + 1) if is_there else None
        return self._latest[1]

    def _pane(self, end_ms: int) -> PackedPane:
        first, last = range_of_pane(self.group, self._state_id, end_ms)
        rows = [(self.group, value) for _, value in self._scan(first, last, reverse=False)]
        return packed_from(end_ms, rows)


def _entries(
    prefix: bytes, references: _References, end_ms: int | None, rows: list[bytes], reverse: bool
) -> list[tuple[bytes, bytes]]:
    """The entries of the rows of one pane, which come in order or the reverse."""
    assert end_ms is not None, "there is a row"
    listed = rows[::-1] if reverse else rows
    pane = packed_from(end_ms, [(references.group, row) for row in listed])
    known = references.of(pane)
    if known is None:
        return []
    entries = unpack_panes([pane], cells_of(listed[0]), known)
    assert entries is not None, "a row has an entry"
    values = split_rows(encode_rows(entries.cells, entries.presence))
    before = prefix + time_bytes(end_ms)
    found = [(before + key, value) for key, value in zip(entries.keys.to_list(), values, strict=True)]
    found.sort(reverse=reverse)
    return found


def _within(entries: list[tuple[bytes, bytes]], start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    return (entry for entry in entries if start <= entry[0] < stop)


def get_entries(
    get_many: Callable[[Sequence[bytes]], list[bytes | None]], scan: Scan, keys: Sequence[bytes]
) -> list[bytes | None]:
    """Values of entries by their state keys; None where there is none.

    Raises:
        StateMismatchError: as :func:`scan_entries`.
    """
    found = get_many(keys)
    absent = [row for row, value in enumerate(found) if value is None]
    panes: dict[tuple[int, int, int], list[int]] = {}
    for row in absent:
        panes.setdefault((*_group_and_state(keys[row]), time_of(keys[row])), []).append(row)
    references: dict[tuple[int, int], _References] = {}
    for (group, state_id, end_ms), rows in panes.items():
        first, last = range_of_pane(group, state_id, end_ms)
        assert last is not None, "a pane's prefix has an end"
        packed = [value for _, value in scan(first, last, reverse=False)]
        if packed:
            prefix = layout.key_prefix(group, state_id)
            of_group = references.setdefault((group, state_id), _References(scan, group, state_id))
            values = dict(_entries(prefix, of_group, end_ms, packed, False))
            for row in rows:
                found[row] = values.get(keys[row])
    return found


def _group_and_state(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[:2], "big"), int.from_bytes(key[2:4], "big")
