"""Lists, maps, versions, windows and sessions that a step declares: several entries of each key, below its prefix."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol

from typing_extensions import override

from weir.author.states import ListState, MapState, State
from weir.author.timed_states import RetainedState, SessionState, VersionedState, WindowState
from weir.operators.queries.element_runs import LENGTH_BYTES, element_runs
from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import RangeReading, StateReading
from weir.operators.queries.state_format import (
    ABSENT,
    StateFormat,
    below_key,
    first_of,
    times_of,
)
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import bytes_of, plain
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.handles.below_key import ENTRY
from weir.state.handles.version_format import unpack_version
from weir.state.tables.stamps import UNDATED, value_stamps
from weir.state.tables.timers.time_first import time_bytes
from weir.state.types import STAMP_BYTES, STAMPED
from weir.state.types.map_keys import MapKeyType

_LATEST, _AFTER = b"\x00", b"\x02"


class _Below(Protocol):
    """What one key has; keys without what is before them."""

    def latest(self) -> bytes | None:
        """The entry that is no element."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop``."""


class _Stored:
    """Elements of a key that is read by itself."""

    def __init__(self, reading: StateReading, prefix: bytes) -> None:
        self._reading, self._prefix = reading, prefix

    def latest(self) -> bytes | None:
        return self._reading.get_many([self._prefix + _LATEST])[0]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        cut = len(self._prefix)
        for key, data in self._reading.scan(self._prefix + start, self._prefix + stop, reverse=reverse):
            yield key[cut:], data


class _Listed:
    """Elements of a key of a range, all of which was read."""

    def __init__(self, entries: list[tuple[bytes, bytes]]) -> None:
        self._entries = entries

    def latest(self) -> bytes | None:
        return self._entries[0][1] if self._entries[0][0] == _LATEST else None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        first, last = (
            bisect_left(self._entries, bound, key=lambda entry: entry[0]) for bound in (start, stop)
        )
        found = self._entries[first:last]
        return reversed(found) if reverse else iter(found)


class ElementFormat(StateFormat):
    """States with several entries of each key, below its prefix."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.ttl = state.ttl
        self._decode = state.type.decode  # type: ignore[attr-defined]
        self.has_times = isinstance(state, RetainedState)
        self.has_versions = isinstance(state, VersionedState)

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        self.check_range(question)
        prefix = layout.key_prefix(group, state_id) + len(user_key).to_bytes(LENGTH_BYTES, "big") + user_key
        cut_ms = self._cut_ms(reading, group, state_id)
        return self._of(reading, _Stored(reading, prefix), cut_ms, below_key(question))

    def _cut_ms(self, reading: RangeReading, group: int, state_id: int) -> int:
        state = self._state
        if not isinstance(state, RetainedState):
            return UNDATED
        assert state.ttl is not None
        return reading.cut_ms(group, state_id, state.ttl.duration_ms)

    def _of(self, reading: RangeReading, below: _Below, cut_ms: int, question: Question) -> Any:
        state = self._state
        if isinstance(state, VersionedState):
            return self._versions(below, cut_ms, question)
        if isinstance(state, WindowState | SessionState):
            items = self._times(below, cut_ms, question)
        elif isinstance(state, MapState):
            items = self._map(reading, below, question)
        else:
            items = self._list(reading, below, question)
        return first_of(items, question)

    # --- ranges of keys ---

    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
        """Yield one run for each length of keys, by which entries lie together."""
        cut_ms = self._cut_ms(reading, keys.group, keys.state_id)
        for run in element_runs(reading, keys):
            yield None if run is None else ((key, (cut_ms, found)) for key, found in run)

    @override
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        of_key = below_key(question)
        for key, (cut_ms, entries) in block:
            value = self._of(reading, _Listed(entries), cut_ms, of_key)
            if value is not ABSENT:
                yield key, value

    # --- what a key has ---

    def _live(self, reading: RangeReading, data: bytes) -> bytes | None:
        if self._state.ttl is None:
            return data
        is_stamped = data[:1] == STAMPED
        stamp = int(value_stamps([data])[0]) if is_stamped else UNDATED
        if reading.is_expired(stamp):
            return None
        return data[STAMP_BYTES:] if is_stamped else data

    def _list(self, reading: RangeReading, below: _Below, question: Question) -> Iterator[Any]:
        if question.is_bounded:
            raise QueryError(400, "a list is answered whole, up to limit")
        for _, data in below.scan(ENTRY, _AFTER, reverse=question.reverse):
            value = self._live(reading, data)
            if value is not None:
                yield plain(self._decode(value))

    def _map(self, reading: RangeReading, below: _Below, question: Question) -> Iterator[Any]:
        state = self._state
        assert isinstance(state, MapState)
        start, stop = ENTRY, _AFTER
        if question.prefix is not None:
            start = ENTRY + _map_prefix(state, question.prefix)
            stop = min(stop, prefix_end(start) or stop)
        if question.first is not None:
            start = ENTRY + _map_key(state, question.first)
        if question.last is not None:
            # The smallest key after it.
            stop = ENTRY + _map_key(state, question.last) + b"\0"
        entries = below.scan(start, stop, reverse=question.reverse) if start < stop else iter(())
        for key, data in entries:
            value = self._live(reading, data)
            if value is not None:
                map_key = state.key_type.decode(key[len(ENTRY) :])
                yield {"key": plain(map_key), "value": plain(self._decode(value))}

    def _versions(self, below: _Below, cut_ms: int, question: Question) -> Any:
        data = below.latest()
        latest = None if data is None else unpack_version(data)
        if question.is_bounded:
            first, last = times_of(question)
            found = self._history(below, max(first, cut_ms), last, reverse=question.reverse)
            if latest is not None and latest[0] <= last and first <= last:
                now = [(*latest, None)]
                found = chain(now, found) if question.reverse else chain(found, now)
            shown = (
                {"value": plain(self._decode(value)), "valid_from": since, "valid_to": until}
                for since, value, until in found
                if value
            )
            return first_of(shown, question)
        as_of_ms = question.as_of_ms
        if latest is not None and (as_of_ms is None or latest[0] <= as_of_ms):
            return plain(self._decode(latest[1])) if latest[1] else ABSENT
        if latest is None or as_of_ms is None or as_of_ms < cut_ms:
            return ABSENT
        for _, value, _ in self._history(below, as_of_ms, as_of_ms):
            return plain(self._decode(value)) if value else ABSENT
        return ABSENT

    def _history(
        self, below: _Below, first: int, last: int, *, reverse: bool = False
    ) -> Iterator[tuple[int, bytes, int | None]]:
        """Versions that are over and were in force at some time of a range, both ends inclusive."""
        if first > last:
            return
        # They lie by their ends, and each begins where the one before it ends or later: of those that end after the
        # range the first one may have begun within it.
        start, after = ENTRY + time_bytes(first + 1), ENTRY + time_bytes(last + 1)
        across = islice(below.scan(after, _AFTER, reverse=False), 1)
        within = below.scan(start, after, reverse=reverse) if start < after else ()
        for key, data in chain(across, within) if reverse else chain(within, across):
            since, value = unpack_version(data)
            if since <= last:
                yield since, value, _time_after(key, len(ENTRY))

    def _times(self, below: _Below, cut_ms: int, question: Question) -> Iterator[Any]:
        first, last = times_of(question)
        is_session = isinstance(self._state, SessionState)
        start = ENTRY + time_bytes(max(first, cut_ms))
        # Sessions lie by their ends: those that overlap the range.
        stop = _AFTER if is_session else ENTRY + time_bytes(last + 1)
        for key, data in below.scan(start, stop, reverse=question.reverse) if start < stop else ():
            at = _time_after(key, len(ENTRY))
            value = plain(self._decode(data))
            if not is_session:
                yield {"start": at, "value": value}
            elif (begin := _time_after(key, len(key) - 8)) <= last:
                yield {"start": begin, "end": at, "value": value}


def is_of_elements(state: State) -> bool:
    """Return whether a declared state has several entries of each key."""
    return isinstance(state, ListState | MapState | VersionedState | WindowState | SessionState)


def _duration(text: str) -> dt.timedelta:
    """Seconds."""
    return dt.timedelta(microseconds=int(decimal.Decimal(text) * 1_000_000))


#: What the text of a map's key may mean, as answers show it; the type of the keys takes one of them.
_MAP_KEYS: tuple[Callable[[str], Any], ...] = (
    str,
    int,
    {"true": True, "false": False}.get,
    dt.date.fromisoformat,
    dt.datetime.fromisoformat,
    dt.time.fromisoformat,
    bytes_of,
    _duration,
)


def _read_part(part: MapKeyType, text: str) -> Any:
    """What a text means as a key of one part.

    Raises:
        ValueError: nothing.
    """
    for read in _MAP_KEYS:
        try:
            value = read(text)
            part.encode(value)
        except (TypeError, ValueError, ArithmeticError):
            continue
        return value
    raise ValueError(f"{text!r} is no such key")


def _map_key(state: MapState, text: str) -> bytes:
    key_type = state.key_type
    try:
        if not key_type.parts:
            return key_type.encode(_read_part(key_type, text))
        found = json.loads(text)
        if isinstance(found, list) and len(found) == len(key_type.parts):
            texts = [item if isinstance(item, str) else json.dumps(item) for item in found]
            return key_type.encode(tuple(map(_read_part, key_type.parts, texts)))
    except ValueError:
        pass
    raise QueryError(400, f"{text!r} is no key of the map {state.name!r}")


def _map_prefix(state: MapState, text: str) -> bytes:
    for read in (str, bytes_of):
        try:
            return state.key_type.encode(read(text))
        except (TypeError, ValueError):
            continue
    raise QueryError(
        400, f"prefix is for maps whose keys are text; of the map {state.name!r} give from and to"
    )


def _time_after(key: bytes, start: int) -> int:
    return int.from_bytes(key[start : start + 8], "big") - 2**63
