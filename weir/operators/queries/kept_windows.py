"""What windows keep for an author's code: their rows, or accumulators, of the windows that are not over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
            return Cut(self._told(reading, group, user_key, found.value))
        return ABSENT if found is ABSENT else self._told(reading, group, user_key, found)

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
        groups = {key: entries[0][1].group for key, entries in block}
        for key, windows in self._windows.live(reading, block, question):
            # Whoever counts keys needs no more.
            yield key, windows if question.counts else self._told(reading, groups[key], key, windows)

    def _told(
        self, reading: RangeReading, group: int, user_key: bytes, windows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        rows = sum(window["value"] for window in windows)
        if rows > _ROWS_MAX:
            raise _too_large(f"{rows:,} rows, at most {_ROWS_MAX:,}")
        prefix = layout.key_prefix(group, reading.number_of(self._state))
        panes: dict[int, list[bytes]] = {}
        told, size_bytes = [], 0
        for window in windows:
            ends = self._pane_ends(window["start"], window["end"])
            fresh = [end_ms for end_ms in ends if end_ms not in panes]

            def begun(end_ms: int) -> Iterator[tuple[bytes, bytes]]:
                owner = owner_of_pane(prefix, end_ms, user_key)
                return reading.scan(owner, stop_of_pane(owner))

            for end_ms, entries in begun_together(fresh, begun):
                if not len(panes) % _CHECKED:
                    reading.check()
                panes[end_ms] = [data for _, data in entries]
            size_bytes += sum(len(data) for end_ms in ends for data in panes[end_ms])
            if size_bytes > _BYTES_MAX:
                raise _too_large(f"more than {_BYTES_MAX >> 20} MiB")
            try:
                value = self._value([panes[end_ms] for end_ms in ends], window["value"])
            except _Changed:
                raise QueryError(503, "a window got rows, or left, while it was read: try again") from None
            told.append({**window, "value": value})
        return told


class KeptRowsFormat(KeptFormat):
    """All rows, by event time."""

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
