"""Aggregates in windows, as they would leave the step now: put together from panes, with the operator's own kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.operators.aggregation.rows import Cells
from weir.operators.queries.key_text import plain
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import PaneBounds, RangeReading, StateReading
from weir.operators.queries.state_format import (
    ABSENT,
    Check,
    KeyBounds,
    StateFormat,
    below_key,
    times_of,
)
from weir.operators.windows.folds import Folds
from weir.operators.windows.panes import panes_of
from weir.operators.windows.session_aggregates import Sessions, session_folds
from weir.operators.windows.told import ToldCells
from weir.protocol.queries import QueryError, Question
from weir.specs.aggregate_functions import aggregate_parts
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregateSpec
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables.accumulators import decode_values
from weir.state.tables.packed_reading import scan_entries
from weir.state.tables.time_first import TIME_STOP, time_bytes, time_of
from weir.state.tables.window_entries import NOTHING_MS, WindowEntries

#: Panes of one key that are read for one question: about 10 us for ten of them, for which rows may wait.
PANES_MAX = 20_000
#: If the panes of a range of keys are too many to be read side by side, all entries of a key group are read first: so
#: many at most.
GROUP_ENTRIES_MAX = 200_000
#: Windows of a block of keys, about.
_BLOCK_WINDOWS = 50_000
#: Entries between two looks whether a question may go on.
_CHECKED = 4_096
_MS_MAX = 2**63 - 1


class Taken(NamedTuple):
    """Entries of some keys, none of them dead; int64, shape (entries,)."""

    ends_ms: np.ndarray
    cells: np.ndarray
    presence: np.ndarray
    #: Which key each is of.
    numbers: np.ndarray
    #: Up to where the windows of its key group have fired; ``NOTHING_MS``: none has.
    fired_ms: np.ndarray


class Found(NamedTuple):
    """Windows that have rows, in the order of keys and times."""

    numbers: np.ndarray
    starts_ms: np.ndarray
    ends_ms: np.ndarray
    values: pa.Array


class PaneFormat(StateFormat):
    """One aggregate of windows that consist of panes."""

    has_times = True

    def __init__(self, spec: WindowAggregateSpec, index: int) -> None:
        """``index``: of the aggregate that is asked.

        Raises:
            QueryError: what the aggregate keeps beside cells cannot be read by questions.
        """
        self._index, self._spec = index, spec
        self._told = ToldCells(spec) if spec.updates != WindowUpdates() else None
        self._folds = self._made_folds()
        self._lateness_ms = spec.updates.lateness_ms
        self._discards = spec.updates.results == "discarding"
        self._type = self._value_type()
        parts = [part for part in aggregate_parts(spec.aggregates) if index in part.members]
        # A tumbling window has the number of different values in its cells.
        if parts and (parts[0].function == "quantile" or spec.window.kind not in ("tumbling", "global")):
            raise QueryError(
                501,
                f"{parts[0].function} of {spec.window.kind} windows cannot be asked: its parts are counted when "
                "a window fires; ask for another aggregate of the step, or write the results to a sink",
            )

    @abstractmethod
    def _made_folds(self) -> Folds:
        """Of the entries."""

    @abstractmethod
    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        """Ends of the panes that windows of a range consist of."""

    @abstractmethod
    def _windows(self, taken: Taken, first_ms: int, last_ms: int, limit: int) -> Found:
        """The windows of entries.

        Raises:
            QueryError: 413: a key has more than ``limit``.
        """

    def _value_type(self) -> pa.DataType:
        folds = self._folds
        cells = Cells(
            np.zeros((0, folds.cell_count), dtype=np.int64),
            np.zeros((0, (folds.cell_count + 7) // 8), dtype=np.uint8),
        )
        return folds.folds[self._index].results(cells).type

    def _values(self, cells: np.ndarray, presence: np.ndarray) -> pa.Array:
        return self._folds.folds[self._index].results(Cells(cells, presence))

    def _has_more(self, cells: np.ndarray) -> np.ndarray:
        """Which windows would have a result now; bool."""
        if self._discards and self._told is not None and self._told.is_kept:
            return self._told.has_more(cells)
        return np.ones(len(cells), dtype=np.bool_)

    @property
    def has_arrow_type(self) -> bool:
        """See :class:`StateFormat`."""
        return True

    # --- one key ---

    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        """See :class:`StateFormat`."""
        self.check_range(question)
        first_ms, last_ms = times_of(below_key(question))
        bounds = reading.pane_bounds(group, state_id, self._folds.cell_count)
        if bounds is None:
            return None
        ends = self._pane_ends(bounds, first_ms, last_ms)
        if len(ends) > PANES_MAX:
            raise QueryError(
                413,
                f"these windows consist of {len(ends):,} panes, at most {PANES_MAX:,} are read: ask for less time",
            )
        ends_ms = np.arange(ends.start, ends.stop, ends.step, dtype=np.int64)
        found = reading.pane_entries(group, state_id, user_key, ends_ms, self._folds.cell_count)
        count = len(found.ends_ms)
        fired_ms = np.full(count, bounds.fired_ms, dtype=np.int64)
        return Taken(*found, np.zeros(count, dtype=np.int64), fired_ms)

    def shown(self, found: Any, question: Question) -> Any:
        """See :class:`StateFormat`."""
        if found is None or not len(found.ends_ms):
            return ABSENT
        times = times_of(below_key(question))
        listed = _listed(self._windows(found, *times, question.limit), 1)[0]
        shown = [{**window, "value": plain(window["value"])} for window in listed]
        return (shown[::-1] if question.reverse else shown) or ABSENT

    # --- ranges of keys ---

    def runs(
        self,
        reading: RangeReading,
        group: int,
        state_id: int,
        bounds: KeyBounds,
        question: Question,
        check: Check,
        runs_max: int,
    ) -> Iterator[Entries]:
        """See :class:`StateFormat`: a run for each pane, or one of all that the group has."""
        panes = reading.pane_bounds(group, state_id, self._folds.cell_count)
        if panes is None:
            return
        check()
        ends = self._pane_ends(panes, *times_of(below_key(question)))
        if not len(ends):
            return
        prefix, fired_ms = layout.key_prefix(group, state_id), panes.fired_ms
        apart = list(islice(_panes_there(reading, prefix, ends), runs_max + 1))
        if len(apart) <= runs_max:
            for end_ms in apart:
                yield _run(reading, prefix, end_ms, bounds, fired_ms, reverse=question.reverse)
        else:
            yield _whole_run(reading, prefix, ends, bounds, fired_ms, check, reverse=question.reverse)

    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        """See :class:`StateFormat`."""
        of_key = below_key(question)
        first_ms, last_ms = times_of(of_key)
        by_key = [
            (key, [each for _, entries in found for each in entries])
            for key, found in groupby(block, key=lambda entry: entry[0])
        ]
        rows = self.block_rows
        for start in range(0, len(by_key), rows):
            some = by_key[start : start + rows]
            taken = self._taken(some)
            found = _listed(self._windows(taken, first_ms, last_ms, of_key.limit), len(some))
            yield from ((key, listed) for (key, _), listed in zip(some, found, strict=True) if listed)

    def _taken(self, by_key: Sequence[tuple[bytes, list[tuple[int, int, bytes]]]]) -> Taken:
        entries = [(number, *entry) for number, (_, found) in enumerate(by_key) for entry in found]
        numbers, ends, fired, data = zip(*entries, strict=True)
        cells, presence = decode_values(data, self._folds.cell_count)
        times = (np.array(each, dtype=np.int64) for each in (numbers, fired))
        # Kernels take no array that cannot be written, such as that of one entry.
        return Taken(np.array(ends, dtype=np.int64), cells.copy(), presence.copy(), *times)

    def plain_values(self, values: Sequence[Any]) -> list[Any]:
        """See :class:`StateFormat`."""
        if pa.types.is_integer(self._type):
            return list(values)
        return [[{**window, "value": plain(window["value"])} for window in listed] for listed in values]

    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        """See :class:`StateFormat`."""
        window = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("value", self._type)])
        return pa.array(values, pa.list_(window))


class WindowFormat(PaneFormat):
    """Tumbling, sliding, cumulative and global windows that have not fired, or still take late rows."""

    def __init__(self, spec: WindowAggregateSpec, index: int) -> None:
        """See :class:`PaneFormat`."""
        self._panes = panes_of(spec.window)
        super().__init__(spec, index)

    def _made_folds(self) -> Folds:
        return (
            Folds(self._spec.aggregates, self._spec.input_schema) if self._told is None else self._told.folds
        )

    @property
    def block_rows(self) -> int:
        """See :class:`StateFormat`."""
        return max(_BLOCK_WINDOWS // (self._panes.size_ms // self._panes.step_ms), 16)

    def _closed(self, fired_ms: np.ndarray) -> np.ndarray:
        """Windows that end up to here are over."""
        return np.where(fired_ms == NOTHING_MS, NOTHING_MS, fired_ms - self._lateness_ms)

    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        panes = self._panes
        after_ms = bounds.first_ms - 1
        if not self._is_global:
            after_ms = max(after_ms, first_ms)
            last_ms = min(bounds.last_ms, last_ms + panes.size_ms)
        else:
            last_ms = bounds.last_ms
        if bounds.fired_ms != NOTHING_MS:
            after_ms = max(after_ms, panes.dead_until(bounds.fired_ms - self._lateness_ms))
        first_end_ms = after_ms - (after_ms - panes.offset_ms) % panes.pane_ms + panes.pane_ms
        return range(first_end_ms, max(last_ms + 1, first_end_ms), panes.pane_ms)

    @property
    def _is_global(self) -> bool:
        return self._spec.window.kind == "global"

    def _windows(self, taken: Taken, first_ms: int, last_ms: int, limit: int) -> Found:
        closed_ms = self._closed(taken.fired_ms)
        single = self._panes.is_single
        parts = list(
            self._single(taken, closed_ms)
            if single
            else self._combined(taken, closed_ms, first_ms, last_ms, limit)
        )
        numbers, starts_ms, ends_ms = (np.concatenate([part[at] for part in parts]) for at in range(3))
        cells, presence = (np.concatenate([part[at] for part in parts]) for at in (3, 4))
        if self._is_global:
            assert self._told is not None, "global windows tell early"
            starts_ms, ends_ms = cells[:, self._told.first], cells[:, self._told.last] + 1
            within = (starts_ms <= last_ms) & (ends_ms > first_ms)
        else:
            within = (starts_ms >= first_ms) & (starts_ms <= last_ms)
        rows = np.flatnonzero(within & self._has_more(cells))
        rows = rows[np.lexsort((ends_ms[rows], numbers[rows]))]
        _check_count(numbers[rows], limit)
        return Found(numbers[rows], starts_ms[rows], ends_ms[rows], self._values(cells[rows], presence[rows]))

    def _single(self, taken: Taken, closed_ms: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Each entry is the whole of a window."""
        rows = np.flatnonzero(taken.ends_ms > closed_ms)
        ends_ms = taken.ends_ms[rows]
        starts_ms = ends_ms - self._panes.size_ms
        yield taken.numbers[rows], starts_ms, ends_ms, taken.cells[rows], taken.presence[rows]

    def _combined(
        self, taken: Taken, closed_ms: np.ndarray, first_ms: int, last_ms: int, limit: int
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Each window combines the panes of its keys; see ``WindowAggregateOperator``."""
        panes, (ends_ms, cells, presence, numbers, _) = self._panes, taken
        nothing = np.empty(0, dtype=np.int64)
        yield nothing, nothing, nothing, cells[:0], presence[:0]
        if not len(ends_ms):
            return
        count = int(numbers.max()) + 1
        after_ms, until_ms = max(int(closed_ms.min()), first_ms), last_ms + panes.size_ms
        made = 0
        for end_ms in panes.ends(np.unique(ends_ms).tolist(), until_ms, after_ms):
            start_ms = panes.start_of(end_ms)
            if not first_ms <= start_ms <= last_ms:
                continue
            made += 1
            if made > limit:
                raise _too_many(limit)
            within = (ends_ms > start_ms) & (ends_ms <= end_ms) & (closed_ms < end_ms)
            index = np.where(within, numbers, -1)
            whole = self._folds.merged(index, cells, presence, count)
            rows = np.unique(numbers[within])
            starts, ends = (np.full(len(rows), bound, dtype=np.int64) for bound in (start_ms, end_ms))
            yield rows, starts, ends, whole.integers[rows], whole.presence[rows]


class SessionFormat(PaneFormat):
    """Sessions that are not over."""

    def _made_folds(self) -> Folds:
        spec = self._spec
        return session_folds(spec.aggregates, spec.input_schema) if self._told is None else self._told.folds

    @property
    def _gap_ms(self) -> int:
        return self._spec.window.size_ms

    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        # A session may go on beyond the times that are asked for, and rows beyond them make two sessions one.
        gap_ms, after_ms = self._gap_ms, bounds.first_ms - 1
        if bounds.fired_ms != NOTHING_MS:
            after_ms = max(after_ms, bounds.fired_ms - gap_ms)
        first_end_ms = after_ms - after_ms % gap_ms + gap_ms
        return range(first_end_ms, max(bounds.last_ms + 1, first_end_ms), gap_ms)

    def _windows(self, taken: Taken, first_ms: int, last_ms: int, limit: int) -> Found:
        count = len(taken.ends_ms)
        # The number of a key tells it apart as well as its bytes.
        keys = weir_keys.KeyColumn(
            np.ascontiguousarray(taken.numbers).view(np.uint8), np.arange(0, 8 * count + 1, 8, dtype=np.int64)
        )
        groups = np.zeros(count, dtype=np.uint16)
        entries = WindowEntries(taken.ends_ms, keys, groups, taken.cells, taken.presence)
        block = Sessions(entries, taken.fired_ms, self._folds, self._gap_ms)
        numbers = taken.numbers[block.an_entry]
        ends_ms = block.lasts_ms + self._gap_ms
        within = (block.firsts_ms <= last_ms) & (ends_ms >= first_ms) & self._has_more(block.cells)
        rows = np.flatnonzero(within)
        rows = rows[np.lexsort((block.firsts_ms[rows], numbers[rows]))]
        _check_count(numbers[rows], limit)
        values = self._values(block.cells[rows], block.presence[rows])
        return Found(numbers[rows], block.firsts_ms[rows], ends_ms[rows], values)


def _listed(found: Found, count: int) -> list[list[dict[str, Any]]]:
    """The windows of each key."""
    listed: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    columns = (
        found.numbers.tolist(),
        found.starts_ms.tolist(),
        found.ends_ms.tolist(),
        found.values.to_pylist(),
    )
    for number, start, end, value in zip(*columns, strict=True):
        listed[number].append({"start": start, "end": end, "value": value})
    return listed


def _check_count(numbers: np.ndarray, limit: int) -> None:
    if len(numbers) > limit and int(np.bincount(numbers).max()) > limit:
        raise _too_many(limit)


def _too_many(limit: int) -> QueryError:
    return QueryError(413, f"a key has more than {limit:,} windows then: ask for less time, or raise limit")


def _panes_there(reading: RangeReading, prefix: bytes, ends: range) -> Iterator[int]:
    """Ends of panes of a group that have entries, ascending: a seek for each."""
    stop = _stop(prefix, ends)
    at = prefix + time_bytes(ends[0])
    while at < stop:
        found = next(iter(scan_entries(reading.scan, at, stop)), None)
        if found is None:
            return
        end_ms = time_of(found[0])
        yield end_ms
        at = prefix + time_bytes(end_ms + 1)


def _stop(prefix: bytes, ends: range) -> bytes:
    found = prefix_end(prefix) if ends[-1] >= _MS_MAX else prefix + time_bytes(ends[-1] + 1)
    assert found is not None, "it begins with a key group, which is not only 0xFF"
    return found


def _run(
    reading: RangeReading, prefix: bytes, end_ms: int, bounds: KeyBounds, fired_ms: int, *, reverse: bool
) -> Entries:
    """The keys of one pane."""
    pane, (start, stop) = prefix + time_bytes(end_ms), bounds
    last = prefix_end(pane) if stop is None else pane + stop
    assert last is not None, "it begins with a key group, which is not only 0xFF"
    if pane + start < last:
        for key, data in scan_entries(reading.scan, pane + start, last, reverse=reverse):
            yield key[TIME_STOP:], [(end_ms, fired_ms, data)]


def _whole_run(
    reading: RangeReading,
    prefix: bytes,
    ends: range,
    bounds: KeyBounds,
    fired_ms: int,
    check: Check,
    *,
    reverse: bool,
) -> Entries:
    """The keys of all panes of a group, where these are too many to be read side by side."""
    start, stop = bounds
    found: dict[bytes, list[tuple[int, int, bytes]]] = {}
    count = 0
    for number, (key, data) in enumerate(
        scan_entries(reading.scan, prefix + time_bytes(ends[0]), _stop(prefix, ends))
    ):
        if not number % _CHECKED:
            check()
        user_key = key[TIME_STOP:]
        if user_key >= start and (stop is None or user_key < stop):
            found.setdefault(user_key, []).append((time_of(key), fired_ms, data))
            count += 1
            if count > GROUP_ENTRIES_MAX:
                raise QueryError(
                    413,
                    f"these windows consist of more than {GROUP_ENTRIES_MAX:,} entries of a key group: ask for less "
                    "time, or for fewer keys",
                )
    yield from sorted(found.items(), reverse=reverse)
