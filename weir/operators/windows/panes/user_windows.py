"""Calls an author's code with what a window has: all of its rows, or accumulators of its panes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from weir.author.aggregator import Aggregator, WindowBounds
from weir.errors import UserFunctionError
from weir.operators.windows.panes.kept_values import KeptValues
from weir.operators.windows.rows.row_aggregates import RowAggregates
from weir.operators.windows.rows.row_chunks import chunks_of_rows, rows_of_chunks
from weir.rows.frames import frame_of
from weir.rows.records import EVENT_TIME_COLUMN, UNNAMED_COLUMN, int64_column, user_columns
from weir.specs.window_process import WindowProcessSpec
from weir.state.types import ValueType, value_type


class UserWindows(ABC):
    """What is done with rows as they come, and with windows that leave."""

    def __init__(self, spec: WindowProcessSpec, step: str, kept: KeptValues) -> None:
        self._spec, self._step, self._kept = spec, step, kept

    @abstractmethod
    def take(
        self, owners: Sequence[bytes], before: Sequence[int], rows: pa.RecordBatch, stops: Sequence[int]
    ) -> None:
        """Take in rows, those of each key and pane one after the other.

        Args:
            owners: of each key and pane.
            before: how many rows it had before these.
            rows: all of them.
            stops: the row after its last.
        """

    @abstractmethod
    def result(
        self, key: dict[str, Any], window: WindowBounds, owners: Sequence[bytes]
    ) -> pa.RecordBatch | None:
        """Rows of the result, of the columns that the author has declared; ``owners``: of its panes, by time."""

    @property
    def aggregates(self) -> RowAggregates | None:
        """Our own aggregates over kept rows, which take many windows at once; None: it is an author's code."""
        return None

    def results(self, windows: Sequence[Sequence[bytes]]) -> tuple[np.ndarray, pa.RecordBatch] | None:
        """Where there are :attr:`aggregates`: results of many windows, each told by the owners of its panes.

        Returns:
            For each row of the result the number of its window, ascending, and the rows; None: there are none.
        """
        raise NotImplementedError

    def _about(self, key: dict[str, Any], window: WindowBounds) -> str:
        of_key = "" if self._spec.is_keyless else f" of {key}"
        return f"of the window {tuple(window)}{of_key}"

    def _called(
        self, name: str, call: Callable[[], Any], about: str, rows: pa.RecordBatch | None = None
    ) -> Any:
        try:
            return call()
        except Exception as error:
            raised = UserFunctionError(
                f"step {self._step!r}: {name} raised {type(error).__name__}: {error}; {about}"
            )
            raised.rows = rows
            raise raised from error

    def _checked(self, name: str, frame: object, about: str) -> pa.RecordBatch:
        schema = self._spec.schema
        if not isinstance(frame, pl.DataFrame):
            raise UserFunctionError(
                f"step {self._step!r}: {name} returned {type(frame).__name__}, not a pl.DataFrame or None; {about}"
            )
        # A call for each window: what is as declared, as mostly, is not made again.
        if frame.columns != schema.names:
            missing = [column for column in schema.names if column not in frame.columns]
            if missing or len(frame.columns) > len(schema.names):
                raise UserFunctionError(
                    f"step {self._step!r}: {name} returned columns {', '.join(frame.columns)}; declared are "
                    f"{', '.join(schema.names)}; {about}"
                )
            frame = frame.select(schema.names)
        try:
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            if table.schema != schema:
                table = table.cast(schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
            raise UserFunctionError(
                f"step {self._step!r}: {name} returned other types than declared: {error}; {about}"
            ) from error
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


class RowsWindows(UserWindows):
    """Keeps rows, and gives all of a window to a function."""

    @override
    def take(
        self, owners: Sequence[bytes], before: Sequence[int], rows: pa.RecordBatch, stops: Sequence[int]
    ) -> None:
        self._kept.put(list(zip(owners, before, chunks_of_rows(rows, stops), strict=True)))

    @override
    def result(
        self, key: dict[str, Any], window: WindowBounds, owners: Sequence[bytes]
    ) -> pa.RecordBatch | None:
        chunks = [data for of_owner in self._kept.of(owners) for data in of_owner]
        rows, _ = rows_of_chunks(chunks, self._spec.kept_schema)
        if rows.num_rows > 1:
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(EVENT_TIME_COLUMN, "ascending")]))
        frame = frame_of(rows.select(user_columns(rows.schema)))
        function = self._spec.factory
        name = getattr(function, "__qualname__", type(function).__name__)
        about = f"{self._about(key, window)} with {rows.num_rows:,} rows"
        given = (window, frame) if self._spec.is_keyless else (key, window, frame)
        made = self._called(f"function {name}", lambda: function(*given), about, rows)
        return None if made is None else self._checked(f"function {name}", made, about)

    @property
    @override
    def aggregates(self) -> RowAggregates | None:
        factory = self._spec.factory
        return factory if isinstance(factory, RowAggregates) and not self._spec.is_keyless else None

    @override
    def results(self, windows: Sequence[Sequence[bytes]]) -> tuple[np.ndarray, pa.RecordBatch] | None:
        aggregates = self.aggregates
        assert aggregates is not None
        loaded = rows_of_windows(self._kept, windows, self._spec.kept_schema)
        if loaded is None:
            return None
        rows, number_of = loaded
        # Both sorts keep the order of what is equal.
        order = np.lexsort((int64_column(rows, EVENT_TIME_COLUMN), number_of))
        rows = rows.take(pa.array(order))
        frame = frame_of(rows.select(user_columns(rows.schema)))
        frame = frame.with_columns(pl.Series(UNNAMED_COLUMN, number_of[order]))
        about = f"of {len(windows):,} windows with {rows.num_rows:,} rows"
        made = self._called("an aggregate", lambda: aggregates.of_windows(frame), about, rows)
        found = made[UNNAMED_COLUMN].to_numpy()
        return found, self._checked("an aggregate", made.drop(UNNAMED_COLUMN), about)


class AggregatorWindows(UserWindows):
    """Keeps an accumulator for each key and pane."""

    def __init__(self, spec: WindowProcessSpec, step: str, kept: KeptValues) -> None:
        super().__init__(spec, step, kept)
        self._aggregator: Aggregator = spec.factory()
        self._name = type(self._aggregator).__qualname__
        self._type: ValueType = value_type(self._aggregator.accumulator)

    @override
    def take(
        self, owners: Sequence[bytes], before: Sequence[int], rows: pa.RecordBatch, stops: Sequence[int]
    ) -> None:
        pieces = [rows.slice(start, stop - start) for start, stop in pairwise([0, *stops])]
        changed = []
        for owner, piece, data in zip(owners, pieces, self._kept.first(owners), strict=True):
            frame = frame_of(piece.select(user_columns(piece.schema)))
            about = f"with {piece.num_rows:,} rows of one key"

            def added(data: bytes | None = data, frame: pl.DataFrame = frame) -> bytes:
                before = self._aggregator.create() if data is None else self._type.decode(data)
                return self._type.encode(self._aggregator.add(before, frame))

            changed.append((owner, 0, self._called(f"{self._name}.add", added, about, piece)))
        self._kept.put(changed)

    @override
    def result(
        self, key: dict[str, Any], window: WindowBounds, owners: Sequence[bytes]
    ) -> pa.RecordBatch | None:
        about = self._about(key, window)
        parts = [self._type.decode(data) for data in self._kept.first(owners) if data is not None]

        def merged() -> Any:
            whole = parts[0]
            for part in parts[1:]:
                whole = self._aggregator.merge(whole, part)
            return whole

        whole = self._called(f"{self._name}.merge", merged, about)
        row = self._called(f"{self._name}.result", lambda: self._aggregator.result(whole), about)
        frame = self._called(
            f"{self._name}.result",
            lambda: pl.DataFrame({name: [row[name]] for name in row}, strict=False),
            about,
        )
        return self._checked(f"{self._name}.result", frame, about)


def rows_of_windows(
    kept: KeptValues, windows: Sequence[Sequence[bytes]], schema: pa.Schema | None = None
) -> tuple[pa.RecordBatch, np.ndarray] | None:
    """Return the kept rows of windows, told by the owners of their panes, and the number of each row's window.

    None: there are none.
    """
    found = kept.of([owner for owners in windows for owner in owners])
    chunks = [data for of_owner in found for data in of_owner]
    if not chunks:
        return None
    window_of = np.repeat(np.arange(len(windows)), [len(owners) for owners in windows])
    rows, counts = rows_of_chunks(chunks, schema)
    return rows, np.repeat(np.repeat(window_of, [len(of_owner) for of_owner in found]), counts)


def make_user_windows(spec: WindowProcessSpec, step: str, kept: KeptValues) -> UserWindows:
    """Make the windows of functions, or those of aggregators."""
    return (RowsWindows if spec.form == "rows" else AggregatorWindows)(spec, step, kept)
