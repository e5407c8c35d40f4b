"""What the entries of a state mean, by the job's specs and declared types: from store bytes to JSON values."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from weir.graph import Node
from weir.operators.keyed.aggregate_functions import cell_count, make_accumulators
from weir.operators.queries.key_text import plain
from weir.operators.queries.reading import RangeReading, StateReading
from weir.operators.windows.folds import Folds
from weir.operators.windows.panes import panes_of
from weir.protocol.queries import QueryError, Question
from weir.specs import KeyedAggregateSpec, KeyedProcessSpec
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregateSpec
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.handles.elements import ELEMENT
from weir.state.handles.retained import TIME_MS_MAX
from weir.state.handles.version_format import unpack_version
from weir.state.tables.accumulators import decode_values, value_bytes
from weir.state.tables.expiry import UNDATED, value_stamps
from weir.state.tables.retained import clock_key, retention_cut_ms, unpack_clock
from weir.state.tables.time_first import time_bytes
from weir.state_types import STAMP_BYTES, STAMPED
from weir.states import ListState, MapState, SingleState, State, declared_states
from weir.timed_states import RetainedState, SessionState, VersionedState, WindowState
from weir.ttl import Ttl

#: Stands for "there is no value".
ABSENT: Any = object()
_VIEWS = {"i": "<i8", "u": "<u8", "f": "<f8", "b": "<i8"}
#: Of a list or a map: elements in one answer.
_Items = list[Any]


class StateFormat(ABC):
    """How one state is asked."""

    #: Whether a key has one entry, so that keys are found by a range.
    has_ranges = False
    #: Of a state whose entries expire.
    ttl: Ttl | None = None

    @abstractmethod
    def one(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """What an answer shows of a key; ``ABSENT`` if there is nothing.

        Raises:
            QueryError: the question does not fit the state.
        """


class EntryFormat(StateFormat):
    """States with one entry of each key."""

    has_ranges = True

    def __init__(
        self,
        decode: Callable[[bytes], Any],
        stamp_of: Callable[[bytes], int] | None = None,
        ttl: Ttl | None = None,
        decode_many: Callable[[Sequence[bytes]], pa.Array] | None = None,
        is_there: Callable[[bytes], bool] | None = None,
    ) -> None:
        """How an entry is read.

        Args:
            decode: value of an entry, or ``ABSENT``.
            stamp_of: the time of an entry, of states with a TTL.
            ttl: of such states.
            decode_many: the values of many entries that are there, much faster.
            is_there: False: an entry that means that there is none.
        """
        self._decode, self._stamp_of, self.ttl = decode, stamp_of, ttl
        self._decode_many, self._is_there = decode_many, is_there

    def one(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """See :class:`StateFormat`."""
        if question.is_bounded or question.as_of_ms is not None:
            raise QueryError(
                400, "this state has one value of each key: from, to, prefix and as_of are for others"
            )
        data = reading.get_many([layout.key_prefix(group, state_id) + user_key])[0]
        return ABSENT if data is None else self.value(reading, data)

    def value(self, reading: RangeReading, data: bytes) -> Any:
        """What an answer shows of the entry of a key; ``ABSENT``: it does not count."""
        if self._stamp_of is not None and reading.is_expired(self._stamp_of(data)):
            return ABSENT
        return self._decode(data)

    def live(self, reading: RangeReading, block: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Those of some keys and entries that count."""
        if self._stamp_of is not None:
            stamp_of, is_expired = self._stamp_of, reading.is_expired
            block = [entry for entry in block if not is_expired(stamp_of(entry[1]))]
        return block if self._is_there is None else [entry for entry in block if self._is_there(entry[1])]

    def plain_values(self, entries: Sequence[bytes]) -> list[Any]:
        """Of entries that count, as JSON."""
        if self._decode_many is None:
            return [self._decode(data) for data in entries]
        column = self._decode_many(entries)
        values: list[Any] = column.to_pylist()
        return values if pa.types.is_integer(column.type) else [plain(value) for value in values]

    @property
    def has_arrow_type(self) -> bool:
        """Whether values have an Arrow type of their own, whichever they are."""
        return self._decode_many is not None

    def arrow_values(self, entries: Sequence[bytes]) -> pa.Array:
        """Of entries that count, as Arrow; values that no Arrow type has in common are JSON."""
        if self._decode_many is not None:
            return self._decode_many(entries)
        values = [self._decode(data) for data in entries]
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            return pa.array([orjson.dumps(value).decode() for value in values])


class ElementFormat(StateFormat):
    """States with several entries of each key, below its prefix."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.ttl = state.ttl
        self._decode = state.type.decode  # type: ignore[attr-defined]

    def one(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """See :class:`StateFormat`."""
        prefix = layout.key_prefix(group, state_id) + len(user_key).to_bytes(4, "big") + user_key
        state = self._state
        if isinstance(state, RetainedState):
            clock = unpack_clock(reading.get_many([clock_key(group, state_id)])[0])
            assert state.ttl is not None
            cut_ms = retention_cut_ms(clock, reading.watermark_ms, state.ttl.duration_ms)
            if isinstance(state, VersionedState):
                return self._versions(reading, prefix, cut_ms, question)
            items = self._times(reading, prefix, cut_ms, question)
        elif question.as_of_ms is not None:
            raise QueryError(400, "as_of is for versioned states")
        elif isinstance(state, MapState):
            items = self._map(reading, prefix, question)
        else:
            items = self._list(reading, prefix, question)
        found = list(islice(items, question.limit + 1))
        if len(found) > question.limit:
            raise QueryError(
                413, f"the key has more than {question.limit:,} entries: raise limit, or ask for a range"
            )
        return found or ABSENT

    def _live(self, reading: StateReading, data: bytes) -> bytes | None:
        if self._state.ttl is None:
            return data
        is_stamped = data[:1] == STAMPED
        stamp = int(value_stamps([data])[0]) if is_stamped else UNDATED
        if reading.is_expired(stamp):
            return None
        return data[STAMP_BYTES:] if is_stamped else data

    def _list(self, reading: StateReading, prefix: bytes, question: Question) -> Iterator[Any]:
        if question.is_bounded:
            raise QueryError(400, "a list is answered whole, up to limit")
        for _, data in reading.scan(prefix + ELEMENT, prefix + b"\x02", reverse=question.reverse):
            value = self._live(reading, data)
            if value is not None:
                yield plain(self._decode(value))

    def _map(self, reading: StateReading, prefix: bytes, question: Question) -> Iterator[Any]:
        state = self._state
        assert isinstance(state, MapState)
        below = prefix + ELEMENT
        start, stop = below, prefix + b"\x02"
        if question.prefix is not None:
            start = below + question.prefix.encode()
            stop = min(stop, prefix_end(start) or stop)
        if question.first is not None:
            start = below + _map_key(state, question.first)
        if question.last is not None:
            # The smallest key after it.
            stop = below + _map_key(state, question.last) + b"\0"
        entries = reading.scan(start, stop, reverse=question.reverse) if start < stop else iter(())
        for key, data in entries:
            value = self._live(reading, data)
            if value is not None:
                map_key = state.key_type.decode(key[len(below) :])
                yield {"key": plain(map_key), "value": plain(self._decode(value))}

    def _versions(self, reading: StateReading, prefix: bytes, cut_ms: int, question: Question) -> Any:
        data = reading.get_many([prefix + b"\0"])[0]
        latest = None if data is None else unpack_version(data)
        if question.is_bounded:
            first, last = _bounds(question)
            found = list(self._history(reading, prefix, max(first, cut_ms), last, question.limit))
            if latest is not None and latest[0] <= last and latest[1] and first <= last:
                found.append((*latest, None))
            shown = [
                {"value": plain(self._decode(value)), "valid_from": since, "valid_to": until}
                for since, value, until in found
                if value
            ]
            return (shown[::-1] if question.reverse else shown) or ABSENT
        as_of_ms = question.as_of_ms
        if latest is not None and (as_of_ms is None or latest[0] <= as_of_ms):
            return plain(self._decode(latest[1])) if latest[1] else ABSENT
        if latest is None or as_of_ms is None or as_of_ms < cut_ms:
            return ABSENT
        for _, value, _ in self._history(reading, prefix, as_of_ms, as_of_ms, 1):
            return plain(self._decode(value)) if value else ABSENT
        return ABSENT

    def _history(
        self, reading: StateReading, prefix: bytes, first: int, last: int, limit: int
    ) -> Iterator[tuple[int, bytes, int | None]]:
        """Versions that are over and were in force at some time of a range, both ends inclusive."""
        if first > last:
            return
        start = prefix + ELEMENT + time_bytes(first + 1)
        for count, (key, data) in enumerate(reading.scan(start, prefix + b"\x02")):
            since, value = unpack_version(data)
            if since > last:
                return
            if count >= limit:
                raise QueryError(
                    413, f"the key has more than {limit:,} versions there: raise limit, or ask for less"
                )
            yield since, value, _time_after(key, len(prefix) + 1)

    def _times(self, reading: StateReading, prefix: bytes, cut_ms: int, question: Question) -> Iterator[Any]:
        if question.as_of_ms is not None:
            raise QueryError(400, "as_of is for versioned states")
        first, last = _bounds(question)
        is_session = isinstance(self._state, SessionState)
        start = prefix + ELEMENT + time_bytes(max(first, cut_ms))
        # Sessions lie by their ends: those that overlap the range.
        stop = prefix + b"\x02" if is_session else prefix + ELEMENT + time_bytes(last + 1)
        for key, data in reading.scan(start, stop, reverse=question.reverse) if start < stop else ():
            at = _time_after(key, len(prefix) + 1)
            value = plain(self._decode(data))
            if not is_session:
                yield {"start": at, "value": value}
            elif (begin := _time_after(key, len(key) - 8)) <= last:
                yield {"start": begin, "end": at, "value": value}


class WindowFormat(StateFormat):
    """Tumbling windows that are open: by the ends of windows, so that a question says which."""

    def __init__(self, spec: WindowAggregateSpec, index: int) -> None:
        """``index``: of the aggregate that is asked."""
        self._panes, self._index = panes_of(spec.window), index
        self._folds = Folds(spec.aggregates, spec.input_schema)

    def one(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """See :class:`StateFormat`."""
        if question.first is None or question.last is None or question.as_of_ms is not None:
            raise QueryError(400, "of windows say which: from and to, in ms, of their starts")
        first, last = _bounds(question)
        size_ms = self._panes.size_ms
        # Ends of the windows that start from first to last.
        end_ms = self._panes.next_end(first + size_ms - 1)
        count = max((last + size_ms - end_ms) // size_ms + 1, 0)
        if count > question.limit:
            raise QueryError(
                413, f"there are {count:,} windows between from and to: ask for less, or raise limit"
            )
        ends = [end_ms + number * size_ms for number in range(count)]
        prefix = layout.key_prefix(group, state_id)
        found = reading.get_many([prefix + time_bytes(end) + user_key for end in ends])
        there = [(end, data) for end, data in zip(ends, found, strict=True) if data is not None]
        if not there:
            return ABSENT
        cells, presence = decode_values([data for _, data in there], self._folds.cell_count)
        values = self._folds.results(cells, presence)[self._index].to_pylist()
        shown = [
            {"start": end - size_ms, "end": end, "value": plain(value)}
            for (end, _), value in zip(there, values, strict=True)
        ]
        return shown[::-1] if question.reverse else shown


def format_of(node: Node, input_schema: pa.Schema, state_name: str) -> tuple[str, StateFormat]:
    """How a state of a step is asked, and the name under which the job has its number.

    Raises:
        QueryError: there is no such state, or it cannot be asked; the message says what there is.
    """
    spec = node.spec
    if isinstance(spec, KeyedAggregateSpec):
        names = [aggregate.output for aggregate in spec.aggregates]
        if state_name not in names:
            raise _unknown(node, state_name, names)
        return node.states[""], _aggregate_format(spec, input_schema, names.index(state_name))
    if isinstance(spec, KeyedProcessSpec):
        states = {state.name: state for state in declared_states(type(spec.factory()))}
        if state_name not in states:
            raise _unknown(node, state_name, states)
        return node.states[state_name], _declared_format(states[state_name])
    if isinstance(spec, WindowAggregateSpec):
        names = [aggregate.output for aggregate in spec.aggregates]
        if state_name not in names:
            raise _unknown(node, state_name, names)
        is_plain = spec.window.kind == "tumbling" and spec.updates == WindowUpdates() and not spec.is_keyless
        if not is_plain or len(node.states) > 1:
            raise QueryError(501, "only tumbling windows by key, without early results, can be asked yet")
        return node.states[""], WindowFormat(spec, names.index(state_name))
    raise QueryError(501, f"step {node.name!r} ({spec.kind}) has no state that can be asked")


def _unknown(node: Node, state_name: str, names: Sequence[str] | dict[str, Any]) -> QueryError:
    return QueryError(
        404, f"step {node.name!r} has no state {state_name!r}; it has {', '.join(names) or 'none'}"
    )


def _declared_format(state: State) -> StateFormat:
    if isinstance(state, ListState | MapState | VersionedState | WindowState | SessionState):
        return ElementFormat(state)
    assert isinstance(state, SingleState)
    if state.type.cell_kind:
        reader = _CellReader(state)
        if state.ttl is None:
            return EntryFormat(reader, decode_many=reader.many, is_there=_is_present)
        return EntryFormat(reader, _cell_stamp, state.ttl, is_there=_is_present)
    stamp_of = None if state.ttl is None else lambda data: int(value_stamps([data])[0])
    return EntryFormat(lambda data: plain(state.type.decode(data)), stamp_of, state.ttl)


def _cell_stamp(data: bytes) -> int:
    if len(data) != value_bytes(2):
        return UNDATED
    cells, presence = decode_values([data], 2)
    return int(cells[0, 1]) if presence[0, 0] & 2 else UNDATED


class _CellReader:
    """Values of 8 bytes, with or without a time."""

    def __init__(self, state: SingleState) -> None:
        self._type = state.type

    def __call__(self, data: bytes) -> Any:
        cells, presence = decode_values([data], 2 if len(data) == value_bytes(2) else 1)
        if not presence[0, 0] & 1:
            return ABSENT
        kind = self._type.cell_kind
        cell = np.ascontiguousarray(cells[0, :1]).view(_VIEWS[kind])[0].item()
        return plain(self._type.from_plain(bool(cell) if kind == "b" else cell))

    def many(self, entries: Sequence[bytes]) -> pa.Array:
        """Of entries of one cell that are there."""
        if len({len(data) for data in entries}) != 1 or self._type.cell_kind == "b":
            return pa.array([self(data) for data in entries])
        cells, _ = decode_values(entries, 2 if len(entries[0]) == value_bytes(2) else 1)
        column = np.ascontiguousarray(cells[:, 0]).view(_VIEWS[self._type.cell_kind])
        # A type of the user's own may make something else of it.
        first = plain(self._type.from_plain(column[0].item()))
        if type(first) is not type(column[0].item()):
            return pa.array([self(data) for data in entries])
        return pa.array(column)


def _is_present(data: bytes) -> bool:
    return bool(data[1] & 1)


def _aggregate_format(spec: KeyedAggregateSpec, schema: pa.Schema, index: int) -> StateFormat:
    aggregate = spec.aggregates[index]
    if aggregate.function not in ("count", "sum", "min", "max", "mean"):
        raise QueryError(501, f"{aggregate.function} cannot be asked yet: count, sum, min, max and mean can")
    accumulator = make_accumulators(spec.aggregates, schema)[index]
    cell, cells_in_all = accumulator.cell, cell_count(spec.aggregates)
    is_integer = aggregate.function == "count" or (
        aggregate.column is not None and pa.types.is_integer(schema.field(aggregate.column).type)
    )

    def decode(data: bytes) -> Any:
        cells, presence = decode_values([data], cells_in_all)
        whole = int(cells[0, cell])
        if aggregate.function == "count":
            return whole
        number: float = struct.unpack("<d", struct.pack("<q", whole))[0]
        if aggregate.function == "mean":
            count = int(cells[0, cell + 1])
            return plain(number / count) if count else None
        if not presence[0, cell // 8] & (1 << cell % 8):
            return None
        return whole if is_integer else plain(number)

    def decode_many(entries: Sequence[bytes]) -> pa.Array:
        cells, presence = decode_values(entries, cells_in_all)
        column = np.ascontiguousarray(cells[:, cell])
        if aggregate.function == "count":
            return pa.array(column)
        if aggregate.function == "mean":
            counts = cells[:, cell + 1]
            means = column.view(np.float64) / np.maximum(counts, 1)
            return pa.array(means, mask=counts == 0)
        absent = presence[:, cell // 8] & (1 << cell % 8) == 0
        return pa.array(column if is_integer else column.view(np.float64), mask=absent)

    return EntryFormat(decode, decode_many=decode_many)


def _map_key(state: MapState, text: str) -> bytes:
    for value in (text, _number(text)):
        try:
            return state.key_type.encode(value)
        except (TypeError, ValueError):
            continue
    raise QueryError(400, f"{text!r} is no key of the map {state.name!r}")


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return None


def _bounds(question: Question) -> tuple[int, int]:
    if question.prefix is not None:
        raise QueryError(400, "prefix is for keys that are text; give from and to in ms")
    bounds = []
    for text, default in ((question.first, -TIME_MS_MAX), (question.last, TIME_MS_MAX)):
        number = default if text is None else _number(text)
        if number is None or not -TIME_MS_MAX <= number <= TIME_MS_MAX:
            raise QueryError(400, f"{text!r} is no time in ms since the epoch")
        bounds.append(number)
    return bounds[0], bounds[1]


def _time_after(key: bytes, start: int) -> int:
    return int.from_bytes(key[start : start + 8], "big") - 2**63
