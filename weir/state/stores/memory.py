"""A state backend in memory: a dictionary and, for ranges, its sorted keys. Not durable."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.errors import StateError
from weir.state.api import StateBackend, StateReader, StateSnapshot, StoreStats
from weir.state.stores.directory_lock import describe_os_error
from weir.state.stores.memory_image import write_entries

#: What an entry occupies beside its bytes: two object headers and a slot of the dictionary.
ENTRY_OVERHEAD_BYTES = 170


class _SortedView(StateReader):
    """An immutable set of entries; the keys are sorted at the first range read and then kept."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries
        self._sorted_keys: list[bytes] | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.entries.get, keys))

    def keys_between(self, start: bytes | None, stop: bytes | None) -> list[bytes]:
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.entries)
        keys = self._sorted_keys
        first = 0 if start is None else bisect_left(keys, start)
        return keys[first : len(keys) if stop is None else bisect_left(keys, stop)]

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = self.keys_between(start, stop)
        entries = self.entries
        # Values are fetched now: the caller may write before it has read the whole range.
        return iter([(key, entries[key]) for key in (reversed(keys) if reverse else keys)])


class _MemorySnapshot(StateSnapshot):
    def __init__(self, view: _SortedView) -> None:
        self._view: _SortedView | None = view

    def _open_view(self) -> _SortedView:
        if self._view is None:
            raise StateError("this snapshot was released; take a new one")
        return self._view

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._open_view().get_many(keys)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._open_view().scan(start, stop, reverse=reverse)

    def release(self) -> None:
        self._view = None


class MemoryBackend(StateBackend):
    """Entries of one process; gone when it ends. A snapshot costs a copy of the dictionary."""

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

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, atomically."""
        with self._lock:
            entries = self._open_view().entries
            count = len(entries)
            for key, value in puts:
                old = entries.get(key)
                self._bytes += len(value) - (len(old) if old is not None else -len(key))
                entries[key] = value
            new_keys = len(entries) - count
            removed = self._remove(entries, deletes)
            self._puts += len(puts)
            self._deletes += len(deletes)
            if new_keys or removed:
                self._view = _SortedView(entries)

    def _remove(self, entries: dict[bytes, bytes], keys: Sequence[bytes]) -> int:
        count = len(entries)
        for key in keys:
            value = entries.pop(key, None)
            if value is not None:
                self._bytes -= len(key) + len(value)
        return count - len(entries)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range."""
        with self._lock:
            view = self._open_view()
            keys = view.keys_between(start, stop)
            self._deletes += self._remove(view.entries, keys)
            self._view = _SortedView(view.entries)

    def snapshot(self) -> StateSnapshot:
        """A copy of the dictionary; keys and values are shared."""
        with self._lock:
            return _MemorySnapshot(_SortedView(dict(self._open_view().entries)))

    def flush(self) -> None:
        """Nothing to do: this store does not outlive the process."""
        with self._lock:
            self._open_view()

    def checkpoint(self, directory: Path) -> None:
        """All entries in one Arrow file: costs 1 s per 5 million of them, mostly without the lock."""
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
