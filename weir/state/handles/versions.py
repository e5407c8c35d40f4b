"""The handle of a versioned value.

Below ``Keys.element_prefixes`` of the key (``version_format`` has the values):

==================================  ===============================================================================
``00``                              the latest version
``01``, 8 bytes (``time_first``)    a version that is over, by the first moment at which it was not in force any more
==================================  ===============================================================================

That a value was deleted is a version, too: what is put before it is in force up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from weir.state.handles.block import Cursor, Keys
from weir.state.handles.declarations import NOT_PUT, OPEN, Declaration, Version
from weir.state.handles.retained import TIME_MS_MAX, RetainedHandle, checked_bound, checked_time
from weir.state.handles.version_format import pack_version, unpack_version

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

_LATEST = b"\x00"
#: Versions that are stepped over on the way to a later time; from then on a look for it costs less.
_STEPS_MAX = 16
#: From when on a version is in force, its bytes (empty: deleted), and up to when; None: it is the latest one.
_Found = tuple[int, bytes, int | None]


@dataclass
class _Scanned:
    """A scan of the history of a key, and the last version that it has come to."""

    entries: Iterator[tuple[bytes, bytes]] | None = None
    version: tuple[int, bytes, int] | None = None


class VersionedHandle(RetainedHandle):
    """The value of the current key with its history."""

    def __init__(self, state: Declaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        #: Of the block, by key: the latest version.
        self._latest: list[tuple[int, bytes] | None] = []

    def _begin(self, block: Keys) -> None:
        super()._begin(block)
        assert self._prefixes is not None
        stored = self._table.get_stored([prefix + _LATEST for prefix in self._prefixes])
        self._latest = [None if data is None else unpack_version(data) for data in stored]

    @override
    def discard(self) -> None:
        super().discard()
        self._latest = []

    # --- reading ---

    def get(self, as_of_ms: Any = None, default: Any = None) -> Any:
        """The latest value, or the one that was in force at a time; ``default`` if there is none.

        What is older than the retention is not told, unless it is the latest value.

        ``get(keys)`` and ``get(keys, times_ms)`` with the :class:`Keys` of rows return a Polars series, null where
        there is none; of dataclasses a list.
        """
        if isinstance(as_of_ms, Keys):
            return self._get_column(as_of_ms, default)
        found = self._version_at(as_of_ms)
        return default if found is None else self._decode(found[1])

    def version(self, as_of_ms: int | None = None) -> Version | None:
        """Return the version that :meth:`get` finds, with the times between which the value is in force."""
        found = self._version_at(as_of_ms)
        return None if found is None else Version(self._decode(found[1]), found[0], found[2])

    def _version_at(self, as_of_ms: int | None) -> _Found | None:
        at = self._at()
        found = self._found(at, None if as_of_ms is None else checked_time(self.name, as_of_ms))
        return found if found is not None and found[1] else None

    def _found(self, at: int, as_of_ms: int | None) -> _Found | None:
        """The version of a key that is in force at a time, also one that says that the value was deleted."""
        latest = self._latest[at]
        if latest is not None and (as_of_ms is None or latest[0] <= as_of_ms):
            return (*latest, None)
        if latest is None or as_of_ms is None or as_of_ms < self._cut_ms(at):
            return None
        found = self._first_after(at, as_of_ms)
        return found if found is not None and found[0] <= as_of_ms else None

    def _first_after(self, at: int, time_ms: int) -> tuple[int, bytes, int] | None:
        """The first version in the history that ends after a time."""
        for key, data in self._entries(at, self._entry_key(at, time_ms + 1)):
            return (*unpack_version(data), self._time_of(at, key))
        return None

    def fetch(
        self, first_ms: int | None = None, last_ms: int | None = None, *, reverse: bool = False
    ) -> Iterator[Version]:
        """Yield the versions that are in force at some time from ``first_ms`` to ``last_ms``, both inclusive, in order.

        None: no bound. ``reverse``: the newest first.
        """
        at = self._at()
        first = checked_bound(self.name, first_ms, -TIME_MS_MAX)
        last = checked_bound(self.name, last_ms, TIME_MS_MAX)
        version = self._version
        for valid_from_ms, data, valid_to_ms in self._between(at, first, last, reverse=reverse):
            self._check_unchanged(at, version)
            if data:
                yield Version(self._decode(data), valid_from_ms, valid_to_ms)

    def _between(self, at: int, first: int, last: int, *, reverse: bool) -> Iterator[_Found]:
        latest = self._latest[at]
        if first > last:
            return
        has_latest = latest is not None and latest[0] <= last
        if has_latest and reverse:
            assert latest is not None
            yield (*latest, None)
        first = max(first, self._cut_ms(at))
        oldest = self._entry_key(at, first + 1)
        if first > last:
            entries: Iterator[tuple[bytes, bytes]] = iter(())
        elif reverse:
            # Of those that end after the range only the first can begin in it.
            found = self._first_after(at, last)
            if found is not None and found[0] <= last:
                yield found
            entries = self._entries(at, oldest, self._entry_key(at, last + 1), reverse=True)
        else:
            entries = self._entries(at, oldest)
        for key, data in entries:
            valid_from_ms, value = unpack_version(data)
            if valid_from_ms > last:
                break
            yield valid_from_ms, value, self._time_of(at, key)
        if has_latest and not reverse:
            assert latest is not None
            yield (*latest, None)

    # --- writing ---

    def put(self, value: Any, at_ms: Any, times_ms: Any = None) -> Any:
        """Let a value be in force from a time on; up to the next version, if there is one. None: as :meth:`delete`.

        ``put(keys, values, times_ms)`` with the :class:`Keys` of rows puts one version for each row, in order, and
        returns an array (int64); it counts at once, also if the batch fails later.

        Returns:
            Up to when it is in force (ms), ``VersionedState.OPEN`` if it is the latest version, or
            ``VersionedState.NOT_PUT`` if the time is past the retention: then nothing was written.

        Raises:
            TypeError, ValueError: the value is not of the declared type, or the time is none.
        """
        if isinstance(value, Keys):
            return self._put_column(value, at_ms, times_ms)
        data = b"" if value is None else self._encode(value)
        return self._put_version(self._at(), checked_time(self.name, at_ms), data)

    def delete(self, at_ms: int) -> Version | None:
        """Let there be no value from a time on; returns the version that was in force then."""
        at, time_ms = self._at(), checked_time(self.name, at_ms)
        before = self._version_at(time_ms)
        if self._put_version(at, time_ms, b"") == NOT_PUT:
            return None
        return None if before is None else Version(self._decode(before[1]), before[0], before[2])

    def _put_version(self, at: int, time_ms: int, data: bytes) -> int:
        if not self._takes(at, time_ms):
            return NOT_PUT
        latest = self._latest[at]
        if latest is None or time_ms >= latest[0]:
            if latest is not None and time_ms > latest[0]:
                self._put_history(at, time_ms, *latest)
            self._put_latest(at, time_ms, data)
            return OPEN
        found = self._first_after(at, time_ms)
        if found is None or found[0] > time_ms:
            valid_to_ms = latest[0] if found is None else found[0]
        else:
            valid_from_ms, before, valid_to_ms = found
            if valid_from_ms < time_ms:
                self._put_history(at, time_ms, valid_from_ms, before)
        self._put_history(at, valid_to_ms, time_ms, data)
        return valid_to_ms

    def _put_latest(self, at: int, time_ms: int, data: bytes) -> None:
        assert self._prefixes is not None
        self._latest[at] = (time_ms, data)
        # That a value was deleted need not be known longer than what was before.
        self._put(at, self._prefixes[at] + _LATEST, pack_version(time_ms, data), None if data else time_ms)

    def _put_history(self, at: int, valid_to_ms: int, valid_from_ms: int, data: bytes) -> None:
        self._put(at, self._entry_key(at, valid_to_ms), pack_version(valid_from_ms, data), valid_to_ms)

    def clear(self) -> None:
        """Forget the current key with all of its versions; to let a value end at a time use :meth:`delete`."""
        super().clear()
        self._latest[self._at()] = None

    # --- batches ---

    def _get_column(self, keys: Keys, times_ms: Any) -> Any:
        times: list[int] | None = None if times_ms is None else self._times(keys, times_ms)
        with self._together(keys) as positions:
            found = (
                [self._found(at, None) for at in positions]
                if times is None
                else self._found_each(positions, times)
            )
        return self._column([each[1] or None if each is not None else None for each in found])

    def _found_each(self, positions: Sequence[int], times: Sequence[int]) -> list[_Found | None]:
        """Find versions of rows, as :meth:`_found`; rows of a key share a scan of its history, if times are near."""
        found: list[_Found | None] = [None] * len(times)
        before, scanned = -1, _Scanned()
        for row in sorted(range(len(times)), key=lambda row: (positions[row], times[row])):
            at, time_ms = positions[row], times[row]
            if at != before:
                before, scanned = at, _Scanned()
            latest = self._latest[at]
            if latest is not None and latest[0] <= time_ms:
                found[row] = (*latest, None)
            elif latest is not None and time_ms >= self._cut_ms(at):
                version = self._next_after(at, time_ms, scanned)
                found[row] = version if version is not None and version[0] <= time_ms else None
        return found

    def _next_after(self, at: int, time_ms: int, scanned: _Scanned) -> tuple[int, bytes, int] | None:
        """Return what :meth:`_first_after` does, going on where the scan for an earlier time has come to."""
        steps = 0
        while scanned.version is None or scanned.version[2] <= time_ms:
            if scanned.entries is None or steps == _STEPS_MAX:
                scanned.entries = self._entries(at, self._entry_key(at, time_ms + 1))
            entry = next(scanned.entries, None)
            if entry is None:
                return None
            scanned.version = (*unpack_version(entry[1]), self._time_of(at, entry[0]))
            steps += 1
        return scanned.version

    def _put_column(self, keys: Keys, values: Any, times_ms: Any) -> np.ndarray:
        data, times = self._values(keys, values), self._times(keys, times_ms)
        with self._together(keys) as positions:
            ends = [
                self._put_version(at, time_ms, each or b"")
                for at, time_ms, each in zip(positions, times, data, strict=True)
            ]
        return np.array(ends, dtype=np.int64)
