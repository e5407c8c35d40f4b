"""Aggregates in windows, as they would leave the step now: put together from panes, with the operator's own kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation.columns import Cells
from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.pane_heads import PaneHead
from weir.operators.queries.pane_parts import PART_ENTRIES_MAX, AskedPart, AskedTexts, TooManyEntriesError
from weir.operators.queries.pane_runs import PaneEntry, Place, pane_run, panes_there, whole_run
from weir.operators.queries.reading import PaneBounds, RangeReading, StateReading
from weir.operators.queries.state_format import (
    ABSENT,
    StateFormat,
    below_key,
    first_of,
    times_of,
)
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.known_texts import KnownTexts
from weir.operators.windows.panes.text_folds import TextByTimeFold
from weir.operators.windows.panes.told import ToldCells
from weir.operators.windows.panes.window_parts import LoadedPart
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import plain
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregateSpec
from weir.state.tables.cells.accumulators import decode_values

#: Panes of one key that are read for one question: about 10 us for ten of them, for which rows may wait.
PANES_MAX = 20_000


_Item = TypeVar("_Item")


class Taken(NamedTuple):
    """Entries of some keys, none of them dead; int64, shape (entries,)."""

    ends_ms: np.ndarray
    cells: np.ndarray
    presence: np.ndarray
    #: Which key each is of.
    numbers: np.ndarray
    #: Up to where the windows of its key group have fired; ``NOTHING_MS``: none has.
    fired_ms: np.ndarray
    #: Of sessions: may be over because of its last time; bool.
    by_time: np.ndarray
    #: What the aggregate keeps of them beside cells; None: nothing.
    part: LoadedPart | KnownTexts | None

    def fill(self, index: np.ndarray, into: Cells) -> None:
        """Write what results say that consist of entries beside cells; ``index``: see :meth:`WindowParts.fill`."""
        if isinstance(self.part, LoadedPart):
            self.part.fill(index, into)


class Found(NamedTuple):
    """Windows that have rows, in the order of keys and times."""

    numbers: np.ndarray
    starts_ms: np.ndarray
    ends_ms: np.ndarray
    values: pa.Array


class Wanted(NamedTuple):
    """Which windows of a key are asked for."""

    #: Both inclusive.
    first_ms: int
    last_ms: int
    limit: int
    #: More than ``limit`` are no error: nobody looks at those after one more.
    cuts: bool = False
    #: The last ones come first.
    reverse: bool = False

    def ordered(self, ascending: Sequence[_Item]) -> Sequence[_Item]:
        """Return items in the order that is asked for."""
        return ascending[::-1] if self.reverse else ascending


#: User keys and their entries.
_ByKey = Sequence[tuple[bytes, list[PaneEntry]]]


class PaneFormat(StateFormat):
    """The format of an aggregate of windows that consist of panes."""

    has_times = True

    def __init__(self, spec: WindowAggregateSpec, index: int, part_state: str | None = None) -> None:
        """How an aggregate is read.

        Args:
            spec: of the step.
            index: of the aggregate that is asked.
            part_state: under which name the job has the number of what it keeps beside cells; None: cells say all.
        """
        self._index, self._spec = index, spec
        self._told = ToldCells(spec) if spec.updates != WindowUpdates() else None
        self._folds = self._made_folds()
        self._lateness_ms = spec.updates.lateness_ms
        self._discards = spec.updates.results == "discarding"
        self._type = self._value_type()
        self._part: AskedPart | AskedTexts | None = None
        if part_state is not None:
            if isinstance(self._folds.folds[index], TextByTimeFold):
                self._part = AskedTexts(part_state)
            else:
                part = next(part for part in self._folds.parts if index in part.members)
                self._part = AskedPart(part, part_state)
            self.others, self.is_copied = (part_state,), True

    @abstractmethod
    def _made_folds(self) -> Folds:
        """Return the folds of the entries."""

    @abstractmethod
    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        """Ends of the panes that windows of a range consist of."""

    @abstractmethod
    def _windows(self, taken: Taken, wanted: Wanted) -> Found:
        """The windows of entries.

        Raises:
            QueryError: 413: a key has more than the limit.
        """

    def _value_type(self) -> pa.DataType:
        folds = self._folds
        cells = Cells(
            np.zeros((0, folds.cell_count), dtype=np.int64),
            np.zeros((0, (folds.cell_count + 7) // 8), dtype=np.uint8),
        )
        return folds.folds[self._index].results(cells).type

    def _values(self, taken: Taken, cells: np.ndarray, presence: np.ndarray) -> pa.Array:
        fold = self._folds.folds[self._index]
        if isinstance(fold, TextByTimeFold) and isinstance(taken.part, KnownTexts):
            return fold.results_of(Cells(cells, presence), taken.part)
        return fold.results(Cells(cells, presence))

    def _has_more(self, cells: np.ndarray) -> np.ndarray:
        """Which windows would have a result now; bool."""
        if self._discards and self._told is not None and self._told.is_kept:
            return self._told.has_more(cells)
        return np.ones(len(cells), dtype=np.bool_)

    @property
    @override
    def has_arrow_type(self) -> bool:
        return True

    # --- one key ---

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        self.check_range(question)
        first_ms, last_ms = times_of(below_key(question))
        cell_count = self._folds.cell_count
        bounds = reading.pane_bounds(group, state_id, cell_count)
        if bounds is None:
            return None
        ends = self._pane_ends(bounds, first_ms, last_ms)
        if len(ends) > PANES_MAX:
            raise QueryError(
                413,
                f"these windows consist of {len(ends):,} panes, at most {PANES_MAX:,} are read: ask for less time",
            )
        ends_ms = np.arange(ends.start, ends.stop, ends.step, dtype=np.int64)
        found = reading.pane_entries(group, state_id, user_key, ends_ms, cell_count)
        count = len(found.ends_ms)
        try:
            part = self._part_of(reading, found.ends_ms, [user_key] * count, [Place(group, state_id)] * count)
        except TooManyEntriesError:
            raise too_large() from None
        # After the entries: those of windows that have fired since may be gone.
        place_ms = reading.fired_ms(group, state_id, cell_count, by_now=not self.moves_entries)
        fired_ms = np.full(count, place_ms, dtype=np.int64)
        ends_by_time = self._ends_by_time(reading, Place(group, state_id))
        by_time = np.full(count, ends_by_time, dtype=np.bool_)
        return Taken(*found, np.zeros(count, dtype=np.int64), fired_ms, by_time, part)

    @override
    def shown(self, found: Any, question: Question) -> Any:
        if found is None or not len(found.ends_ms):
            return ABSENT
        wanted = Wanted(*times_of(below_key(question)), question.limit, question.cuts, question.reverse)
        listed = _listed(self._windows(found, wanted), 1)[0]
        shown = ({**window, "value": plain(window["value"])} for window in wanted.ordered(listed))
        return first_of(shown, question)

    # --- ranges of keys ---

    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
        """Yield a run for each pane, or one run of all that the group has."""
        head = PaneHead(reading, keys.group, keys.state_id)
        yield None
        is_whole = head.look()
        head.begin_ends()
        if not is_whole:
            yield None
        ends_ms = head.ends()
        cell_count = self._folds.cell_count
        panes = (
            None if ends_ms is None else reading.bounds_of(keys.group, keys.state_id, cell_count, *ends_ms)
        )
        if panes is None:
            return
        keys.check()
        ends = self._pane_ends(panes, *times_of(below_key(keys.question)))
        if not len(ends):
            return
        if not is_whole and len(ends) <= keys.runs_max:
            # As many as may be read side by side: nobody needs to know which of them are there.
            yield from head.begin_panes(keys, ends)
            return
        if not is_whole:
            is_whole = yield from head.read_on()
        apart: list[int] = []
        for end_ms in panes_there(head.scan, keys.prefix, ends):
            if end_ms is not None:
                apart.append(end_ms)
            elif not is_whole:
                yield None
            if len(apart) > keys.runs_max:
                yield whole_run(head.scan, keys, ends)
                return
        for end_ms in apart:
            yield pane_run(head.scan, keys, end_ms)

    @override
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        of_key = below_key(question)
        wanted = Wanted(*times_of(of_key), of_key.limit)
        by_key = [
            (key, [each for _, entries in found for each in entries])
            for key, found in groupby(block, key=lambda entry: entry[0])
        ]
        rows = self.block_rows
        for start in range(0, len(by_key), rows):
            for some, taken in self._taken(reading, by_key[start : start + rows]):
                found = _listed(self._windows(taken, wanted), len(some))
                yield from ((key, listed) for (key, _), listed in zip(some, found, strict=True) if listed)

    def _taken(self, reading: RangeReading, by_key: _ByKey) -> Iterator[tuple[_ByKey, Taken]]:
        """The entries of some keys, of fewer at a time if they have much beside cells."""
        entries = [(number, key, *entry) for number, (key, found) in enumerate(by_key) for entry in found]
        numbers, keys, ends, places, data = zip(*entries, strict=True)
        ends_ms = np.array(ends, dtype=np.int64)
        try:
            part = self._part_of(reading, ends_ms, keys, places)
        except TooManyEntriesError:
            if len(by_key) == 1:
                raise too_large() from None
            half = len(by_key) // 2
            yield from self._taken(reading, by_key[:half])
            yield from self._taken(reading, by_key[half:])
            return
        cell_count = self._folds.cell_count
        cells, presence = decode_values(data, cell_count)
        # After the entries: those of windows that have fired since may be gone.
        by_now = not self.moves_entries
        fired = {
            place: reading.fired_ms(place.group, place.state_id, cell_count, by_now=by_now)
            for place in set(places)
        }
        fired_ms = np.array([fired[place] for place in places], dtype=np.int64)
        # Kernels take no array that cannot be written, such as that of one entry.
        arrays = ends_ms, cells.copy(), presence.copy(), np.array(numbers, dtype=np.int64), fired_ms
        ended = {place: self._ends_by_time(reading, place) for place in fired}
        by_time = np.array([ended[place] for place in places], dtype=np.bool_)
        yield by_key, Taken(*arrays, by_time, part)

    def _ends_by_time(self, reading: RangeReading, place: Place) -> bool:
        """Return whether entries of a group are over because of their last time; only those of sessions are."""
        return self.moves_entries and reading.ends_by_time(
            place.group, place.state_id, self._folds.cell_count
        )

    def _part_of(
        self, reading: RangeReading, ends_ms: np.ndarray, keys: Sequence[bytes], places: Sequence[Place]
    ) -> LoadedPart | KnownTexts | None:
        return None if self._part is None else self._part.of(reading, ends_ms, keys, places)

    @override
    def plain_values(self, values: Sequence[Any]) -> list[Any]:
        if pa.types.is_integer(self._type):
            return list(values)
        return [[{**window, "value": plain(window["value"])} for window in listed] for listed in values]

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        window = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("value", self._type)])
        return pa.array(values, pa.list_(window))


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


def too_large() -> QueryError:
    """Return the error that a key has more different values or buckets in its windows than are read at a time."""
    return QueryError(
        413,
        f"the windows of a key have more than {PART_ENTRIES_MAX:,} entries of values: ask for less time, or for the "
        "keys around it",
    )
