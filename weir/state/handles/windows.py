"""The handle of values by the start of a window.

Below ``Keys.element_prefixes`` of the key: ``01``, the start (8 bytes, ``time_first``); with duplicates then a number
(8 bytes, big endian), in the order in which they were put.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from weir.errors import StateError
from weir.state.handles.block import Cursor, Keys
from weir.state.handles.declarations import WindowDeclaration
from weir.state.handles.retained import TIME_MS_MAX, RetainedHandle, checked_bound, checked_time
from weir.state.tables.retained import GroupClock

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables


class WindowHandle(RetainedHandle):
    """The values of the current key, by the time at which their window starts."""

    def __init__(self, state: WindowDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        self._duplicates = state.duplicates

    def get(self, start_ms: Any, default: Any = None) -> Any:
        """The value of the window that starts then; ``default`` if there is none.

        ``get(keys, starts_ms)`` with the :class:`Keys` of rows returns a Polars series, null where there is none; of
        dataclasses a list.

        Raises:
            StateError: the state keeps duplicates, so there may be several; use :meth:`fetch`.
        """
        if self._duplicates:
            raise StateError(f"state {self.name!r} keeps duplicates: use fetch(start_ms, start_ms)")
        if isinstance(start_ms, Keys):
            return self._get_column(start_ms, default)
        at, time_ms = self._at(), checked_time(self.name, start_ms)
        data = None if time_ms < self._cut_ms(at) else self._read(at, self._entry_key(at, time_ms))
        return default if data is None else self._decode(data)

    def fetch(
        self, first_ms: int | None = None, last_ms: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Starts and values of the windows that start from ``first_ms`` to ``last_ms``, both inclusive, in order.

        None: no bound. ``reverse``: the last one first.
        """
        at = self._at()
        first = max(checked_bound(self.name, first_ms, -TIME_MS_MAX), self._cut_ms(at))
        last = checked_bound(self.name, last_ms, TIME_MS_MAX)
        version = self._version
        start, stop = self._entry_key(at, first), self._entry_key(at, last + 1)
        for key, data in self._entries(at, start, stop, reverse=reverse):
            self._check_unchanged(at, version)
            yield self._time_of(at, key), self._decode(data)

    def put(self, value: Any, start_ms: Any, starts_ms: Any = None) -> Any:
        """Set the value of the window that starts then; with duplicates add one. None: as :meth:`delete`.

        ``put(keys, values, starts_ms)`` with the :class:`Keys` of rows does it for each row, in order, and returns an
        array (bool); it counts at once, also if the batch fails later.

        Returns:
            Whether it was taken; not if the start is past the retention.

        Raises:
            TypeError, ValueError: the value is not of the declared type, or the time is none.
        """
        if isinstance(value, Keys):
            return self._put_column(value, start_ms, starts_ms)
        data = None if value is None else self._encode(value)
        return self._put_window(self._at(), checked_time(self.name, start_ms), data)

    def delete(self, start_ms: int) -> Any:
        """Take the window's value away and return it; with duplicates all of them, as a list."""
        at, time_ms = self._at(), checked_time(self.name, start_ms)
        found = [value for _, value in self.fetch(time_ms, time_ms)]
        for key, _ in list(self._entries(at, self._entry_key(at, time_ms), self._entry_key(at, time_ms + 1))):
            self._put(at, key, None, None)
        return found if self._duplicates else next(iter(found), None)

    def _put_window(self, at: int, time_ms: int, data: bytes | None) -> bool:
        if not self._takes(at, time_ms):
            return False
        if self._duplicates:
            if data is not None:
                clock = self._clock(at)
                number = clock.next_number
                self._clocks[self._groups[at]] = GroupClock(clock.stream_ms, number + 1)
                self._put(at, self._entry_key(at, time_ms, number.to_bytes(8, "big")), data, time_ms)
        else:
            self._put(at, self._entry_key(at, time_ms), data, time_ms)
        return True

    def _get_column(self, keys: Keys, starts_ms: Any) -> Any:
        times = self._times(keys, starts_ms)
        with self._together(keys) as positions:
            places = [(at, self._entry_key(at, time)) for at, time in zip(positions, times, strict=True)]
            found = self._read_each(places)
            cuts = [self._cut_ms(at) for at in positions]
        return self._column(
            [None if time < cut else data for data, time, cut in zip(found, times, cuts, strict=True)]
        )

    def _put_column(self, keys: Keys, values: Any, starts_ms: Any) -> np.ndarray:
        data, times = self._values(keys, values), self._times(keys, starts_ms)
        with self._together(keys) as positions:
            taken = [self._put_window(*each) for each in zip(positions, times, data, strict=True)]
        return np.array(taken, dtype=np.bool_)
