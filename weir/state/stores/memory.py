"""A state backend in memory: a dictionary and, for ranges, its sorted keys. Not durable."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.errors import StateError
from weir.state.api import StateBackend, StateReader, prefix_end
from weir.state.stores.directory_lock import describe_os_error
from weir.state.stores.memory_image import write_entries
from weir.types import StoreStats

#: What an entry occupies beside its bytes: two object headers and a slot of the dictionary.
ENTRY_OVERHEAD_BYTES = 170


class _SortedView(StateReader):
    """A set of entries; the keys are sorted at the first range read, and then kept in order as they come and go."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries
        self._sorted_keys: list[bytes] | None = None
        #: Since the keys were sorted: which came, and which of the sorted ones went.
        self._added: list[bytes] = []
        self._removed: set[bytes] = set()

    def note_added(self, key: bytes) -> None:
        """A key is new among the entries."""
        if key in self._removed:
            self._removed.discard(key)
        elif self._sorted_keys is not None:
            self._added.append(key)

    def note_removed(self, key: bytes) -> None:
        """A key is no more among the entries."""
        if self._sorted_keys is not None:
            self._removed.add(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.entries.get, keys))

    def keys_between(self, start: bytes | None, stop: bytes | None) -> list[bytes]:
        if self._sorted_keys is None or len(self._removed) > len(self.entries):
            self._sorted_keys = sorted(self.entries)
            self._added, self._removed = [], set()
        elif self._added:
            self._sorted_keys += [key for key in self._added if key in self.entries]
            self._sorted_keys.sort()
            self._removed.difference_update([key for key in self._added if key not in self.entries])
            self._added = []
        keys = self._sorted_keys
        first = 0 if start is None else bisect_left(keys, start)
        found = keys[first : len(keys) if stop is None else bisect_left(keys, stop)]
        return [key for key in found if key in self.entries] if self._removed else found

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = self.keys_between(start, stop)
        entries = self.entries
        # Values are fetched now: the caller may write before it has read the whole range.
        return iter([(key, entries[key]) for key in (reversed(keys) if reverse else keys)])


class MemoryBackend(StateBackend):
    """Entries of one process; gone when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: _SortedView | None = _SortedView({})
        self._gets = self._puts = self._deletes = self._bytes = 0

    def _open_view(self) -> _SortedView:
        if self._view is None:
            raise StateError("the memory store is closed")
        return self._view

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where absent."""
        with self._lock:
            self._gets += len(keys)
            return self._open_view().get_many(keys)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range; they are copied when this is called."""
        with self._lock:
            return self._open_view().scan(start, stop, reverse=reverse)

    def may_hold(self, prefix: bytes) -> bool:
        """Return whether there are keys that start with this."""
        with self._lock:
            view = self._open_view()
            return bool(view.entries) and bool(view.keys_between(prefix, prefix_end(prefix)))

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, atomically."""
        with self._lock:
            view = self._open_view()
            entries = view.entries
            for key, value in puts:
                old = entries.get(key)
                entries[key] = value
                if old is None:
                    self._bytes += len(value) + len(key)
                    view.note_added(key)
                else:
                    self._bytes += len(value) - len(old)
            self._remove(view, deletes)
            self._puts += len(puts)
            self._deletes += len(deletes)

    def _remove(self, view: _SortedView, keys: Sequence[bytes]) -> int:
        count = len(view.entries)
        for key in keys:
            value = view.entries.pop(key, None)
            if value is not None:
                self._bytes -= len(key) + len(value)
                view.note_removed(key)
        return count - len(view.entries)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range."""
        with self._lock:
            view = self._open_view()
            keys = view.keys_between(start, stop)
            self._deletes += self._remove(view, keys)

    def flush(self) -> None:
        """Nothing to do: this store does not outlive the process."""
        with self._lock:
            self._open_view()

    def checkpoint(self, directory: Path) -> None:
        """Write all entries to one Arrow file: costs 1 s per 5 million of them, mostly without the lock."""
        with self._lock:
            entries = dict(self._open_view().entries)
        try:
            write_entries(directory, list(entries), list(entries.values()))
        except OSError as error:
            raise StateError(describe_os_error(directory, error)) from error

    def stats(self) -> StoreStats:
        """Counters and an estimate of the memory that the entries occupy."""
        with self._lock:
            memory = self._bytes + ENTRY_OVERHEAD_BYTES * len(self._open_view().entries)
            return StoreStats(gets=self._gets, puts=self._puts, deletes=self._deletes, memory_bytes=memory)

    def close(self) -> None:
        """Drop all entries; safe to call twice."""
        with self._lock:
            self._view = None
