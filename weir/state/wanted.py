"""What a thread that reads scans side by side will want of them, for a store that is elsewhere: not more is read."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager


class _Wanted(threading.local):
    #: Of scans that begin now: entries that will do at first; 0: nobody knows.
    first_entries = 0
    #: Who reads now, if it is one of several who read side by side.
    reader: object | None = None
    #: Those of them who will read on: what comes next of their scans is of use, and of those of others it is not.
    readers: Collection[object] = ()


of_thread = _Wanted()


def first(entries: int) -> AbstractContextManager[None]:
    """Tell stores how many entries will do at first, of scans that begin within the block; 0: nobody knows."""
    return _told("first_entries", entries)


def reading_on(readers: Collection[object]) -> AbstractContextManager[None]:
    """Tell stores who will read on within the block; each says with :func:`by` when it does."""
    return _told("readers", readers)


def by(reader: object) -> AbstractContextManager[None]:
    """Tell stores that within the block one of several reads."""
    return _told("reader", reader)


@contextmanager
def _told(name: str, value: object) -> Iterator[None]:
    before = getattr(of_thread, name)
    setattr(of_thread, name, value)
    try:
        yield
    finally:
        setattr(of_thread, name, before)
