"""Runs of keys of ranges over states with several entries of each key: these lie by the length of their keys first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from typing import Protocol

from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import RangeReading
from weir.operators.queries.state_format import KEY_ELEMENTS_MAX
from weir.protocol.queries import QueryError
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.handles.block import element_owner

#: Of the length of a key, which comes before it.
LENGTH_BYTES = 4
_PREFIX_BYTES = layout.NO_NAMESPACE_HEADER_BYTES
#: Entries between two looks whether a question may go on.
_CHECKED = 1_000
#: Entries of a key group that are read at first: many groups have no more.
_HEAD_ENTRIES = 64


class _Scan(Protocol):
    def __call__(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]: ...


def element_runs(reading: RangeReading, keys: KeyRange) -> Iterator[Entries]:
    """A run for each length of keys: user keys, and what of an entry's key is after them, with its value, ascending.

    Reading has begun when this returns, and that of a run when the run is returned.
    """
    prefix = keys.prefix
    end = prefix_end(prefix)
    assert end is not None, "it begins with a key group, which is not only 0xFF"
    return _runs(reading.scan, keys, end, reading.scan(prefix, end))


def _runs(scan: _Scan, keys: KeyRange, end: bytes, found: Iterator[tuple[bytes, bytes]]) -> Iterator[Entries]:
    head = list(islice(found, _HEAD_ENTRIES))
    if len(head) < _HEAD_ENTRIES:
        # There are no more.
        scan = partial(_scan_list, head)
    first = next(iter(head), None)
    while first is not None:
        keys.check()
        length = int.from_bytes(first[0][_PREFIX_BYTES : _PREFIX_BYTES + LENGTH_BYTES], "big")
        after = scan(keys.prefix + (length + 1).to_bytes(LENGTH_BYTES, "big"), end, reverse=False)
        yield _run(scan, keys, length)
        first = next(after, None)


def _scan_list(
    entries: list[tuple[bytes, bytes]], start: bytes, stop: bytes, *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    within = [entry for entry in entries if start <= entry[0] < stop]
    return iter(within[::-1] if reverse else within)


def _run(scan: _Scan, keys: KeyRange, length: int) -> Entries:
    """Keys of one length."""
    prefix, (start, stop) = keys.prefix + length.to_bytes(LENGTH_BYTES, "big"), keys.bounds
    last = prefix_end(prefix if stop is None else prefix + stop[:length])
    assert last is not None, "it begins with a key group, which is not only 0xFF"
    return _by_key(scan(prefix + start[:length], last, reverse=keys.reverse), prefix, keys)


def _by_key(entries: Iterator[tuple[bytes, bytes]], prefix: bytes, keys: KeyRange) -> Entries:
    start, stop = keys.bounds
    count = 0
    for owner, group in groupby(entries, key=lambda entry: element_owner(entry[0])):
        user_key = owner[len(prefix) :]
        if user_key < start or (stop is not None and user_key >= stop):
            continue
        cut = len(owner)
        found = [(key[cut:], data) for key, data in islice(group, KEY_ELEMENTS_MAX + 2)]
        if len(found) > KEY_ELEMENTS_MAX + 1:
            raise QueryError(
                413,
                f"a key has more than {KEY_ELEMENTS_MAX:,} entries: ask for its neighbours and it apart",
            )
        if count // _CHECKED != (count := count + len(found)) // _CHECKED:
            keys.check()
        yield user_key, found[::-1] if keys.reverse else found
