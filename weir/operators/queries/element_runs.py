"""Runs of keys of ranges over states with several entries of each key: these lie by the length of their keys first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

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


def element_runs(reading: RangeReading, keys: KeyRange) -> Iterator[Entries]:
    """A run for each length of keys: user keys, and what of an entry's key is after them, with its value, ascending."""
    prefix = keys.prefix
    end = prefix_end(prefix)
    assert end is not None, "it begins with a key group, which is not only 0xFF"
    length = 0
    while True:
        at = prefix + length.to_bytes(LENGTH_BYTES, "big")
        found = next(iter(reading.scan(at, end)), None)
        if found is None:
            return
        keys.check()
        length = int.from_bytes(found[0][_PREFIX_BYTES : _PREFIX_BYTES + LENGTH_BYTES], "big")
        yield _run(reading, keys, length)
        length += 1


def _run(reading: RangeReading, keys: KeyRange, length: int) -> Entries:
    """Keys of one length."""
    prefix, (start, stop) = keys.prefix + length.to_bytes(LENGTH_BYTES, "big"), keys.bounds
    last = prefix_end(prefix if stop is None else prefix + stop[:length])
    assert last is not None, "it begins with a key group, which is not only 0xFF"
    entries = reading.scan(prefix + start[:length], last, reverse=keys.reverse)
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
