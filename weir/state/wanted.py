"""What a thread that reads scans side by side will want of them, for a store that is elsewhere: not more is read."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class _Wanted(threading.local):
    #: Of scans that begin now: entries that will do at first; 0: nobody knows.
    first_entries = 0
    #: Who reads now, if it is one of several who read side by side.
    reader: object | None = None
    #: Those of them who will read on: what comes next of their scans is of use, and of those of others it is not.
    readers: Collection[object] = ()


of_thread = _Wanted()


@contextmanager
def first(entries: int) -> Iterator[None]:
    """Tell stores how many entries will do at first, of scans that begin within the block; 0: nobody knows."""
    before = of_thread.first_entries
    of_thread.first_entries = entries
    try:
        yield
    finally:
        of_thread.first_entries = before


@contextmanager
def reading_on(readers: Collection[object]) -> Iterator[None]:
    """Tell stores who will read on within the block; each says with :func:`by` when it does."""
    before = of_thread.readers
    of_thread.readers = readers
    try:
        yield
    finally:
        of_thread.readers = before


@contextmanager
def by(reader: object) -> Iterator[None]:
    """Tell stores that within the block one of several reads."""
    before = of_thread.reader
    of_thread.reader = reader
    try:
        yield
    finally:
        of_thread.reader = before
