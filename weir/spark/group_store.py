"""The state of one key group of a step, on the state that Spark keeps of it (RocksDB, in the query's checkpoints).

Lives for one trigger: what is read is kept, what is written goes to Spark at the end. Runs within Spark's tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from weir.errors import StateError
from weir.state.api import StateBackend
from weir.state.layout import state_prefix
from weir.state.stores.memory import MemoryBackend
from weir.types import StoreStats

#: Of keys within Spark's state: key group and number of the state say nothing there, and numbers may change.
_PREFIX_BYTES = 4


class SparkMap(Protocol):
    """A ``MapState`` of Spark of the key group at hand: from bytes to bytes, each as a tuple of one."""

    def exists(self) -> bool:
        """Whether it has an entry."""

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None:
        """The value of a key."""

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:
        """Set the value of a key."""

    def removeKey(self, key: tuple[bytes]) -> None:
        """Remove a key that is there."""

    def iterator(self) -> Iterator[tuple[tuple[bytes], tuple[bytes]]]:
        """Return entries in no order, every one of them."""


class _Part:
    """A state, whose keys are without the prefix."""

    def __init__(self, entries: SparkMap) -> None:
        self._entries = entries
        self.known = MemoryBackend()
        self._absent: set[bytes] = set()
        self._is_whole = False
        #: Written and not with Spark yet: None means removed.
        self._changed: dict[bytes, bytes | None] = {}

    def load(self, keys: Sequence[bytes]) -> None:
        """Read those of these keys that are not known."""
        if self._is_whole:
            return
        found = self.known.get_many(keys)
        for key, value in zip(keys, found, strict=True):
            if value is None and key not in self._absent:
                row = self._entries.getValue((key,))
                if row is None:
                    self._absent.add(key)
                else:
                    self.known.write([(key, bytes(row[0]))])

    def load_all(self) -> None:
        """Read all entries: Spark has no order of keys."""
        if self._is_whole:
            return
        own = self._changed
        read = ((bytes(key[0]), bytes(value[0])) for key, value in self._entries.iterator())
        self.known.write([(key, value) for key, value in read if key not in own])
        self._absent.clear()
        self._is_whole = True

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        self.known.write(puts, deletes)
        for key, value in puts:
            self._changed[key] = value
            self._absent.discard(key)
        for key in deletes:
            self._changed[key] = None
            self._absent.add(key)

    def may_hold(self, prefix: bytes) -> bool:
        """May say so without looking."""
        return self.known.may_hold(prefix) or (not self._is_whole and self._entries.exists())

    def commit(self) -> None:
        """Give Spark what has changed."""
        for key, value in self._changed.items():
            if value is None:
                self._entries.removeKey((key,))
            else:
                self._entries.updateValue((key,), (value,))
        self._changed.clear()


class SparkStore(StateBackend):
    """The states of one key group, whose number is 0.

    Args:
        states: by the number of a state, what Spark has of it.
    """

    def __init__(self, states: Mapping[int, SparkMap]) -> None:
        self._parts = {number: _Part(entries) for number, entries in sorted(states.items())}
        self._prefixes = {number: state_prefix(0, number) for number in self._parts}
        self._lock = threading.Lock()

    def commit(self) -> None:
        """Give Spark all that has changed; called at the end of a trigger."""
        with self._lock:
            for part in self._parts.values():
                part.commit()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where absent."""
        with self._lock:
            by_state: dict[int, list[bytes]] = {}
            for key in keys:
                by_state.setdefault(_state(key), []).append(key[_PREFIX_BYTES:])
            for number, wanted in by_state.items():
                self._part(number).load(wanted)
            return [self._part(_state(key)).known.get_many([key[_PREFIX_BYTES:]])[0] for key in keys]

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range; the states in it are read as a whole."""
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            for number, first, last in self._ranges(start, stop):
                part, prefix = self._parts[number], self._prefixes[number]
                part.load_all()
                found += [(prefix + key, value) for key, value in part.known.scan(first, last)]
        return reversed(found) if reverse else iter(found)

    def _ranges(
        self, start: bytes | None, stop: bytes | None
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """The states in a range of keys, and of each the range within it."""
        for number, prefix in self._prefixes.items():
            after = state_prefix(0, number + 1)
            if (start is not None and start >= after) or (stop is not None and stop <= prefix):
                continue
            first = start[_PREFIX_BYTES:] if start is not None and start > prefix else None
            last = stop[_PREFIX_BYTES:] if stop is not None and stop < after else None
            yield number, first, last

    def may_hold(self, prefix: bytes) -> bool:
        """Whether there may be keys that start with this."""
        with self._lock:
            if len(prefix) < _PREFIX_BYTES:
                return any(part.may_hold(b"") for part in self._parts.values())
            return self._part(_state(prefix)).may_hold(prefix[_PREFIX_BYTES:])

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes."""
        with self._lock:
            by_state: dict[int, tuple[list[tuple[bytes, bytes]], list[bytes]]] = {}
            for key, value in puts:
                by_state.setdefault(_state(key), ([], []))[0].append((key[_PREFIX_BYTES:], value))
            for key in deletes:
                by_state.setdefault(_state(key), ([], []))[1].append(key[_PREFIX_BYTES:])
            for number, (own_puts, own_deletes) in by_state.items():
                self._part(number).write(own_puts, own_deletes)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range."""
        with self._lock:
            for number, first, last in self._ranges(start, stop):
                part = self._parts[number]
                part.load_all()
                part.write((), [key for key, _ in part.known.scan(first, last)])

    def flush(self) -> None:
        """Nothing to do: :meth:`commit` is what counts."""

    def stats(self) -> StoreStats:
        """Nothing is counted: a store lives for one trigger."""
        return StoreStats()

    def close(self) -> None:
        """Nothing to do."""

    def _part(self, number: int) -> _Part:
        part = self._parts.get(number)
        if part is None:
            raise StateError(f"Spark keeps no state {number} of this step")
        return part


def _state(key: bytes) -> int:
    """The number of the state in a key."""
    return int.from_bytes(key[2:_PREFIX_BYTES], "big")
