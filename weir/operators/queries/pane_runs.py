"""Runs of keys of ranges over windows: entries lie by pane first, so each pane is a run in the order of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weir.operators.queries.element_runs import Scan
from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.protocol.queries import QueryError
from weir.state import wanted
from weir.state.api import prefix_end
from weir.state.tables.panes.packed_reading import scan_entries
from weir.state.tables.timers.time_first import TIME_STOP, time_bytes, time_of

#: If the panes of a range of keys are too many to be read side by side, all entries of a key group are read first: so
#: many at most.
GROUP_ENTRIES_MAX = 200_000
#: Entries between two looks whether a question may go on.
_CHECKED = 4_096
_MS_MAX = 2**63 - 1


class Place(NamedTuple):
    """Where an entry lies."""

    group: int
    #: Of the windows' own state.
    state_id: int


#: End of the pane, where it lies, and what it has.
PaneEntry = tuple[int, Place, bytes]


def panes_there(scan: Scan, prefix: bytes, ends: range) -> Iterator[int | None]:
    """Ends of panes of a group that have entries, ascending: a seek for each, and None when it has begun."""
    stop = _stop(prefix, ends)
    at = prefix + time_bytes(ends[0])
    while at < stop:
        with wanted.first(1):
            seek = scan_entries(scan, at, stop)
        yield None
        found = next(seek, None)
        if found is None:
            return
        end_ms = time_of(found[0])
        yield end_ms
        at = prefix + time_bytes(end_ms + 1)


def _stop(prefix: bytes, ends: range) -> bytes:
    found = prefix_end(prefix) if ends[-1] >= _MS_MAX else prefix + time_bytes(ends[-1] + 1)
    assert found is not None, "it begins with a key group, which is not only 0xFF"
    return found


def pane_run(scan: Scan, keys: KeyRange, end_ms: int) -> Entries:
    """The keys of one pane; reading has begun when this returns."""
    pane, (start, stop) = keys.prefix + time_bytes(end_ms), keys.bounds
    place = Place(keys.group, keys.state_id)
    last = prefix_end(pane) if stop is None else pane + stop
    assert last is not None, "it begins with a key group, which is not only 0xFF"
    if pane + start >= last:
        return iter(())
    with wanted.first(keys.first_entries):
        entries = scan_entries(scan, pane + start, last, reverse=keys.reverse)
    return ((key[TIME_STOP:], [(end_ms, place, data)]) for key, data in entries)


def whole_run(scan: Scan, keys: KeyRange, ends: range) -> Entries:
    """The keys of all panes of a group, where these are too many to be read side by side."""
    return _by_key(scan_entries(scan, keys.prefix + time_bytes(ends[0]), _stop(keys.prefix, ends)), keys)


def _by_key(entries: Iterator[tuple[bytes, bytes]], keys: KeyRange) -> Entries:
    start, stop = keys.bounds
    place = Place(keys.group, keys.state_id)
    found: dict[bytes, list[PaneEntry]] = {}
    count = 0
    for number, (key, data) in enumerate(entries):
        if not number % _CHECKED:
            keys.check()
        user_key = key[TIME_STOP:]
        if user_key >= start and (stop is None or user_key < stop):
            found.setdefault(user_key, []).append((time_of(key), place, data))
            count += 1
            if count > GROUP_ENTRIES_MAX:
                raise QueryError(
                    413,
                    f"these windows consist of more than {GROUP_ENTRIES_MAX:,} entries of a key group: ask for less "
                    "time, or for fewer keys",
                )
    yield from sorted(found.items(), reverse=keys.reverse)
