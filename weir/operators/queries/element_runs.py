"""Runs of keys of ranges over states with several entries of each key: these lie by the length of their keys first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Protocol

from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import RangeReading
from weir.operators.queries.state_format import KEY_ELEMENTS_MAX
from weir.protocol.queries import QueryError
from weir.state import layout, wanted
from weir.state.api import prefix_end
from weir.state.handles.block import element_owner

#: Of the length of a key, which comes before it.
LENGTH_BYTES = 4
_PREFIX_BYTES = layout.NO_NAMESPACE_HEADER_BYTES
#: Entries between two looks whether a question may go on.
_CHECKED = 1_000
#: Entries of a key group that are read at first: many groups have no more.
_HEAD_ENTRIES = 16


class Scan(Protocol):
    """Reads entries of a range; see ``RangeReading.scan``."""

    def __call__(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range."""


def element_runs(reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
    """A run for each length of keys: user keys, and what of an entry's key is after them, with its value, ascending.

    What a key has is read when the run goes on after it: of most key groups only the first key is of use. None: see
    :meth:`StateFormat.runs`. Reading of a run has begun when it is returned.
    """
    end = prefix_end(keys.prefix)
    assert end is not None, "it begins with a key group, which is not only 0xFF"
    scan: Scan = reading.scan
    start, stop = keys.bounds
    if stop is None or not start:
        with wanted.first(keys.first_entries):
            heads = [scan(keys.prefix, end)]
        yield None
        yield from _runs_from(scan, keys, heads, end)
        return
    # Most keys are as long as the bounds: they are read at once, and whether there are shorter or longer ones.
    shorter, own, longer = (
        _at(keys, length) for length in (_shorter(start, stop), len(start), len(start) + 1)
    )
    with wanted.first(keys.first_entries):
        heads = [scan(shorter, own) if shorter < own else iter(()), scan(longer, end)]
    run = _run(scan, keys, len(start))
    yield None
    yield from _runs_from(scan, keys, heads, own)
    yield run
    yield from _runs_from(scan, keys, heads, end)


def _runs_from(
    scan: Scan, keys: KeyRange, heads: list[Iterator[tuple[bytes, bytes]]], end: bytes
) -> Iterator[Entries]:
    """A run for each length of keys before an end; the first of ``heads``, which goes, begins with the shortest."""
    # Nobody wants what comes next of it: it must not be read along with what others want.
    count = min(keys.first_entries or _HEAD_ENTRIES, _HEAD_ENTRIES)
    head = list(islice(heads.pop(0), count))
    if len(head) < count:
        # There are no more.
        scan = partial(scan_list, head)
    first = next(iter(head), None)
    while first is not None:
        keys.check()
        length = int.from_bytes(first[0][_PREFIX_BYTES : _PREFIX_BYTES + LENGTH_BYTES], "big")
        with wanted.first(keys.first_entries):
            after = scan(_at(keys, length + 1), end, reverse=False)
        yield _run(scan, keys, length)
        first = next(after, None)


def _at(keys: KeyRange, length: int) -> bytes:
    """Comes before all entries of keys of this length."""
    return keys.prefix + length.to_bytes(LENGTH_BYTES, "big")


def _shorter(start: bytes, stop: bytes) -> int:
    """The length from which on keys that are shorter than ``start`` may lie within the bounds.

    One that is a part of what both begin with is before both.
    """
    length = 1
    while length < len(start) and start[:length] == stop[:length]:
        length += 1
    return length


def scan_list(
    entries: list[tuple[bytes, bytes]], start: bytes, stop: bytes, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Entries of a range of those that have been read; see ``RangeReading.scan``."""
    first, last = (bisect_left(entries, bound, key=itemgetter(0)) for bound in (start, stop))
    return iter(entries[first:last][::-1] if reverse else entries[first:last])


def _run(scan: Scan, keys: KeyRange, length: int) -> Entries:
    """Keys of one length."""
    prefix, (start, stop) = keys.prefix + length.to_bytes(LENGTH_BYTES, "big"), keys.bounds
    last = prefix_end(prefix if stop is None else prefix + stop[:length])
    assert last is not None, "it begins with a key group, which is not only 0xFF"
    with wanted.first(keys.first_entries):
        entries = scan(prefix + start[:length], last, reverse=keys.reverse)
    return _by_key(entries, prefix, keys)


def _by_key(entries: Iterator[tuple[bytes, bytes]], prefix: bytes, keys: KeyRange) -> Entries:
    start, stop = keys.bounds
    count = 0
    for owner, group in groupby(entries, key=lambda entry: element_owner(entry[0])):
        user_key = owner[len(prefix) :]
        if user_key < start or (stop is not None and user_key >= stop):
            continue
        cut = len(owner)
        found: list[tuple[bytes, bytes]] = []
        yield user_key, found
        found += ((key[cut:], data) for key, data in islice(group, KEY_ELEMENTS_MAX + 2))
        if len(found) > KEY_ELEMENTS_MAX + 1:
            raise QueryError(
                413,
                f"a key has more than {KEY_ELEMENTS_MAX:,} entries: ask for its neighbours and it apart",
            )
        if count // _CHECKED != (count := count + len(found)) // _CHECKED:
            keys.check()
        if keys.reverse:
            found.reverse()
