"""A scan with later changes laid over it: unwritten ones over a store, or those of a store over a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def overlaid(
    below: Iterable[tuple[bytes, bytes]], changes: Iterable[tuple[bytes, bytes | None]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Returns the entries of both in order; of equal keys the change counts, and its None hides the key.

    Args:
        below: keys and values, each key once.
        changes: keys with their new values (None: deleted), each key once.
        reverse: both descend by key; False: both ascend.
    """
    left = iter(changes)
    change = next(left, None)
    if change is None:
        yield from below
        return
    for entry in below:
        while change is not None and (change[0] > entry[0] if reverse else change[0] < entry[0]):
            key, value = change
            change = next(left, None)
            if value is not None:
                yield key, value
        if change is not None and change[0] == entry[0]:
            key, value = change
            change = next(left, None)
            if value is not None:
                yield key, value
        else:
            yield entry
    while change is not None:
        key, value = change
        change = next(left, None)
        if value is not None:
            yield key, value
