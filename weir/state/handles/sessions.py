"""The handle of sessions.

Below ``Keys.element_prefixes`` of the key: ``01``, the end and the start of the session (8 bytes each, ``time_first``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weir.state.handles.block import Keys
from weir.state.handles.declarations import Session
from weir.state.handles.retained import TIME_MS_MAX, RetainedHandle, checked_bound, checked_time
from weir.state.tables.timers.time_first import time_bytes


class SessionHandle(RetainedHandle):
    """The sessions of the current key; they lie in the order of their ends."""

    def get(self, start_ms: Any, end_ms: Any, ends_ms: Any = None) -> Any:
        """The value of a session; None if there is none.

        ``get(keys, starts_ms, ends_ms)`` with the :class:`Keys` of rows returns a Polars series, null where there is
        none; of dataclasses a list.
        """
        if isinstance(start_ms, Keys):
            return self._get_column(start_ms, end_ms, ends_ms)
        at = self._at()
        key, end = self._session_key(at, *self._checked(start_ms, end_ms))
        data = None if end < self._cut_ms(at) else self._read(at, key)
        return None if data is None else self._decode(data)

    def find(
        self, earliest_end_ms: int | None = None, latest_start_ms: int | None = None, *, reverse: bool = False
    ) -> Iterator[Session]:
        """Sessions that end at ``earliest_end_ms`` or later, and start at ``latest_start_ms`` or earlier, by their end.

        None: no bound. ``reverse``: the one that ends last comes first. ``find(at - gap, at + gap)`` has what a row of
        time ``at`` joins.
        """
        at = self._at()
        first = max(checked_bound(self.name, earliest_end_ms, -TIME_MS_MAX), self._cut_ms(at))
        last = checked_bound(self.name, latest_start_ms, TIME_MS_MAX)
        version = self._version
        for key, data in self._entries(at, self._entry_key(at, first), reverse=reverse):
            self._check_unchanged(at, version)
            start = int.from_bytes(key[-8:], "big") - 2**63
            if start <= last:
                yield Session(start, self._time_of(at, key), self._decode(data))

    def put(self, value: Any, start_ms: Any, end_ms: Any, ends_ms: Any = None) -> Any:
        """Set the value of a session; None: as :meth:`delete`.

        ``put(keys, values, starts_ms, ends_ms)`` with the :class:`Keys` of rows does it for each row, in order, and
        returns an array (bool); it counts at once, also if the batch fails later.

        Returns:
            Whether it was taken; not if its end is past the retention.

        Raises:
            TypeError, ValueError: the value is not of the declared type, or the times are none.
        """
        if isinstance(value, Keys):
            return self._put_column(value, start_ms, end_ms, ends_ms)
        data = None if value is None else self._encode(value)
        return self._put_session(self._at(), *self._checked(start_ms, end_ms), data)

    def delete(self, start_ms: int, end_ms: int) -> Any:
        """Take a session away and return its value."""
        value = self.get(start_ms, end_ms)
        at = self._at()
        self._put(at, self._session_key(at, *self._checked(start_ms, end_ms))[0], None, None)
        return value

    def _checked(self, start_ms: Any, end_ms: Any) -> tuple[int, int]:
        start, end = checked_time(self.name, start_ms), checked_time(self.name, end_ms)
        if start > end:
            raise ValueError(f"state {self.name!r}: a session from {start} to {end} ends before it starts")
        return start, end

    def _session_key(self, at: int, start: int, end: int) -> tuple[bytes, int]:
        return self._entry_key(at, end, time_bytes(start)), end

    def _put_session(self, at: int, start: int, end: int, data: bytes | None) -> bool:
        if not self._takes(at, end):
            return False
        self._put(at, self._session_key(at, start, end)[0], data, end)
        return True

    def _pairs(self, keys: Keys, starts_ms: Any, ends_ms: Any) -> list[tuple[int, int]]:
        both = zip(self._times(keys, starts_ms), self._times(keys, ends_ms), strict=True)
        return [self._checked(*each) for each in both]

    def _get_column(self, keys: Keys, starts_ms: Any, ends_ms: Any) -> Any:
        pairs = self._pairs(keys, starts_ms, ends_ms)
        with self._together(keys) as positions:
            places = [
                (at, self._session_key(at, *pair)[0]) for at, pair in zip(positions, pairs, strict=True)
            ]
            found = self._read_each(places)
            cuts = [self._cut_ms(at) for at in positions]
        return self._column(
            [None if end < cut else data for data, (_, end), cut in zip(found, pairs, cuts, strict=True)]
        )

    def _put_column(self, keys: Keys, values: Any, starts_ms: Any, ends_ms: Any) -> np.ndarray:
        data, pairs = self._values(keys, values), self._pairs(keys, starts_ms, ends_ms)
        with self._together(keys) as positions:
            taken = [
                self._put_session(at, *pair, each)
                for at, pair, each in zip(positions, pairs, data, strict=True)
            ]
        return np.array(taken, dtype=np.bool_)
