"""What windows keep for an author's code: their rows, or accumulators, of the windows that are not over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from typing_extensions import override

from weir.author.aggregator import Aggregator
from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.panes import PaneFormat
from weir.operators.queries.reading import RangeReading, StateReading, begun_together
from weir.operators.queries.state_format import ABSENT, Cut, StateFormat
from weir.operators.windows.panes.kept_values import owner_of_pane, stop_of_pane
from weir.operators.windows.rows.row_chunks import rows_of_chunks
from weir.protocol.queries import QueryError, Question
from weir.questions.json_values import arrow_column, plain
from weir.rows.python_values import row_dicts
from weir.rows.records import EVENT_TIME_COLUMN, user_columns
from weir.specs.window_process import WindowProcessSpec
from weir.state import layout
from weir.state.types import value_type

#: Of the windows of one key.
_ROWS_MAX, _BYTES_MAX = 100_000, 16 << 20
#: Keys of a range that are read at a time, each pane of each with a seek.
_BLOCK_ROWS = 64
#: Panes between two looks whether a question may go on.
_CHECKED = 64
#: Ends of the panes of a window, from its bounds.
PaneEnds = Callable[[int, int], range]
#: Of a key, with the numbers of their rows.
_Windows = Sequence[dict[str, Any]]


class _Changed(Exception):
    """What was read of a window is not of one moment."""


class KeptFormat(StateFormat, ABC):
    """Windows as they would be told if their rows were counted, with what is kept of them instead of the count."""

    has_times = True
    is_copied = True

    def __init__(self, windows: PaneFormat, state: str, pane_ends: PaneEnds) -> None:
        """How it is read.

        Args:
            windows: the number of their rows.
            state: under which name the job has the number of what is kept.
            pane_ends: of a window.
        """
        self._windows, self._state, self._pane_ends = windows, state, pane_ends
        self.others = (state,)
        self.moves_entries = windows.moves_entries

    @property
    @override
    def block_rows(self) -> int:
        return _BLOCK_ROWS

    @abstractmethod
    def _value(self, panes: Sequence[list[bytes]], count: int) -> Any:
        """What is told of a window with so many rows: from what its panes keep, by time.

        Raises:
            _Changed: it cannot be all.
        """

    # --- one key ---

    @override
    def read(
        self, reading: StateReading, group: int, state_id: int, user_key: bytes, question: Question
    ) -> Any:
        found = self._windows.one(reading, group, state_id, user_key, question)
        if isinstance(found, Cut):
            return Cut(self._of_key(reading, group, user_key, found.value))
        return ABSENT if found is ABSENT else self._of_key(reading, group, user_key, found)

    def _of_key(
        self, reading: RangeReading, group: int, user_key: bytes, windows: _Windows
    ) -> list[dict[str, Any]]:
        return self._told(windows, self._panes(reading, [(group, user_key, windows)]))

    @override
    def shown(self, found: Any, question: Question) -> Any:
        if isinstance(found, Cut):
            return Cut(plain(found.value))
        return ABSENT if found is ABSENT else plain(found)

    # --- ranges of keys ---

    @override
    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries | None]:
        return self._windows.runs(reading, keys)

    @override
    def live(
        self, reading: RangeReading, block: list[tuple[bytes, Any]], question: Question
    ) -> Iterable[tuple[bytes, Any]]:
        found = self._windows.live(reading, block, question)
        if question.counts:
            # Whoever counts keys needs no more.
            yield from found
            return
        groups = {key: entries[0][1].group for key, entries in block}
        listed = list(found)
        panes = self._panes(reading, [(groups[key], key, windows) for key, windows in listed])
        for key, windows in listed:
            yield key, self._told(windows, panes)

    def _panes(
        self, reading: RangeReading, keys: Sequence[tuple[int, bytes, _Windows]]
    ) -> Iterator[tuple[int, list[bytes]]]:
        """What the panes of the windows of some keys keep, with their ends; those of each key once, by time."""
        state_id = reading.number_of(self._state)
        owners = (
            (end_ms, owner_of_pane(layout.key_prefix(group, state_id), end_ms, user_key))
            for group, user_key, windows in keys
            for end_ms in self._ends_of(windows)
        )

        def begun(pane: tuple[int, bytes]) -> Iterator[tuple[bytes, bytes]]:
            return reading.scan(pane[1], stop_of_pane(pane[1]))

        for number, ((end_ms, _), entries) in enumerate(begun_together(owners, begun)):
            if not number % _CHECKED:
                reading.check()
            yield end_ms, [data for _, data in entries]

    def _ends_of(self, windows: _Windows) -> list[int]:
        """The ends of all panes of some windows.

        Raises:
            QueryError: 413: they have too many rows.
        """
        rows = sum(window["value"] for window in windows)
        if rows > _ROWS_MAX:
            raise _too_large(f"{rows:,} rows, at most {_ROWS_MAX:,}")
        return list(
            dict.fromkeys(
                end_ms for window in windows for end_ms in self._pane_ends(window["start"], window["end"])
            )
        )

    def _told(self, windows: _Windows, panes: Iterator[tuple[int, list[bytes]]]) -> list[dict[str, Any]]:
        """The windows of a key, whose panes come next."""
        kept = dict(islice(panes, len(self._ends_of(windows))))
        told, size_bytes = [], 0
        for window in windows:
            ends = self._pane_ends(window["start"], window["end"])
            size_bytes += sum(len(data) for end_ms in ends for data in kept[end_ms])
            if size_bytes > _BYTES_MAX:
                raise _too_large(f"more than {_BYTES_MAX >> 20} MiB")
            try:
                value = self._value([kept[end_ms] for end_ms in ends], window["value"])
            except _Changed:
                raise QueryError(503, "a window got rows, or left, while it was read: try again") from None
            told.append({**window, "value": value})
        return told


class KeptRowsFormat(KeptFormat):
    """The format of kept rows, by event time."""

    def __init__(self, spec: WindowProcessSpec, windows: PaneFormat, state: str, pane_ends: PaneEnds) -> None:
        super().__init__(windows, state, pane_ends)
        self._schema = spec.kept_schema
        self._type = pa.struct(list(self._schema))

    def _value(self, panes: Sequence[list[bytes]], count: int) -> Any:
        chunks = [data for pane in panes for data in pane]
        if not chunks:
            raise _Changed
        whole, counts = rows_of_chunks(chunks, self._schema)
        if counts.sum() != count:
            raise _Changed
        rows = whole.take(pa.compute.sort_indices(whole, sort_keys=[(EVENT_TIME_COLUMN, "ascending")]))
        return row_dicts(rows.select(user_columns(rows.schema)))

    @property
    @override
    def has_arrow_type(self) -> bool:
        return True

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        window = [("start", pa.int64()), ("end", pa.int64()), ("value", pa.list_(self._type))]
        return pa.array(values, pa.list_(pa.struct(window)))


class AccumulatorsFormat(KeptFormat):
    """Accumulators, those of all panes of a window merged by the author's code."""

    def __init__(self, spec: WindowProcessSpec, windows: PaneFormat, state: str, pane_ends: PaneEnds) -> None:
        super().__init__(windows, state, pane_ends)
        # One of its own: that of the subtask is in another thread.
        self._aggregator: Aggregator = spec.factory()
        self._decode = value_type(self._aggregator.accumulator).decode

    def _value(self, panes: Sequence[list[bytes]], count: int) -> Any:
        parts = [self._decode(data) for pane in panes for data in pane]
        if not parts:
            raise _Changed
        whole = parts[0]
        for part in parts[1:]:
            try:
                whole = self._aggregator.merge(whole, part)
            except Exception as error:
                name = type(self._aggregator).__qualname__
                raise QueryError(500, f"{name}.merge raised {type(error).__name__}: {error}") from error
        return whole

    @override
    def arrow_values(self, values: Sequence[Any]) -> pa.Array:
        return arrow_column(self.plain_values(values))


def _too_large(what: str) -> QueryError:
    return QueryError(413, f"the windows of a key have {what}: ask for less time")
