"""Rows of keys that are kept until some of them make a result: of windows of so many rows, and of triggers as code."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.operators.windows.rows.row_aggregates import RowAggregates
from weir.rows.frames import frame_of
from weir.rows.records import EVENT_TIME_COLUMN, UNNAMED_COLUMN
from weir.rows.schemas import arrow_type, is_widened_by
from weir.specs.windows import WINDOW_END, WINDOW_START, WindowAggregate

#: Rows of all windows that are put together at once, about: one row may be in many.
_ROWS_MAX = 1 << 20


class Kept(NamedTuple):
    """Rows by key; those of one key in the order in which they came."""

    rows: pl.DataFrame
    #: Where those of each key begin, and where the last one's end; int64, shape (keys + 1,).
    starts: np.ndarray
    #: How many of each key were kept before; int64.
    held: np.ndarray
    #: Key columns of each key.
    keys: pa.RecordBatch


class KeptRows:
    """Puts rows of one step together, and makes results of them."""

    def __init__(
        self,
        key_columns: tuple[str, ...],
        aggregates: tuple[WindowAggregate, ...],
        input_schema: pa.Schema,
        schema: pa.Schema,
    ) -> None:
        """``input_schema``: what is kept of rows; ``schema``: user columns of results."""
        self._key_columns, self._input_schema, self._schema = key_columns, input_schema, schema
        self._aggregates = RowAggregates(aggregates, schema)
        time = pl.col(EVENT_TIME_COLUMN)
        self._made = [time.min().alias(WINDOW_START), (time.max() + 1).alias(WINDOW_END)]
        self._made += self._aggregates.expressions

    def joined(
        self, batch: pa.RecordBatch, inverse: np.ndarray, kept: Sequence[bytes | None], *, adds: bool
    ) -> Kept:
        """What is kept of the keys of a batch, and its own rows.

        Args:
            batch: with the key columns, and with what is kept if it ``adds`` rows.
            inverse: the number of each row's key; each key has one.
            kept: what :meth:`encoded` returned, by key.
            adds: the rows of the batch are rows to keep; else they only say which keys are meant.
        """
        names = [*self._input_schema.names, EVENT_TIME_COLUMN]
        held = np.zeros(len(kept), dtype=np.int64)
        pieces = []
        for number, data in enumerate(kept):
            if data:
                frame = pl.read_ipc_stream(io.BytesIO(data))
                held[number] = frame.height
                pieces.append(frame.with_columns(pl.lit(number, dtype=pl.Int64).alias(UNNAMED_COLUMN)))
        if pieces:
            pieces = self._with_columns(pieces)
        added = np.zeros(len(kept), dtype=np.int64)
        if adds:
            added = np.bincount(inverse, minlength=len(kept))
            given = frame_of(batch.select(names))
            pieces.append(given.with_columns(pl.Series(UNNAMED_COLUMN, inverse, dtype=pl.Int64)))
        rows = (
            pl.concat(pieces).sort(UNNAMED_COLUMN, maintain_order=True).drop(UNNAMED_COLUMN)
            if pieces
            else pl.DataFrame()
        )
        _, firsts = np.unique(inverse, return_index=True)
        keys = batch.select(list(self._key_columns)).take(pa.array(firsts))
        return Kept(rows, np.concatenate([[0], np.cumsum(held + added)]), held, keys)

    def _with_columns(self, pieces: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """Kept rows with the columns and types of now: what rows of before have not is null.

        Raises:
            StateMismatchError: a column is of a type that does not hold what was kept.
        """
        wanted = {**_types_of(self._input_schema), EVENT_TIME_COLUMN: pl.Int64(), UNNAMED_COLUMN: pl.Int64()}
        if all(piece.schema == wanted for piece in pieces):
            return pieces
        for name, dtype in wanted.items():
            for then in {piece.schema[name] for piece in pieces if name in piece.columns} - {dtype}:
                before, now = (arrow_type(pl.Series([], dtype=each)) for each in (then, dtype))
                if not is_widened_by(before, now):
                    raise StateMismatchError(
                        f"rows that a window of so many rows kept have column {name!r} as {before}, and the job as "
                        f"{now}, which does not hold every such value; start without the checkpoint, or give the step "
                        "another name if it may begin with empty state"
                    )
        return [
            piece.select(
                pl.col(name).cast(dtype) if name in piece.columns else pl.lit(None, dtype).alias(name)
                for name, dtype in wanted.items()
            )
            for piece in pieces
        ]

    def told(
        self, kept: Kept, of_key: np.ndarray, begins: np.ndarray, stops: np.ndarray
    ) -> Iterator[tuple[pa.RecordBatch, slice]]:
        """Results of some rows of a key each, in batches, and which of the results these are.

        Args:
            kept: of :meth:`joined`.
            of_key: the key of each result.
            begins: the first of its rows,
            stops: and the one after its last; there is at least one.
        """
        lengths = stops - begins
        bounds = np.flatnonzero(np.diff(np.cumsum(lengths) // _ROWS_MAX)) + 1
        for start, stop in itertools.pairwise([0, *bounds.tolist(), len(of_key)]):
            part = slice(start, stop)
            some = lengths[part]
            if not len(some):
                continue
            index = np.repeat(begins[part] - np.cumsum(some) + some, some) + np.arange(some.sum())
            window = pl.Series(UNNAMED_COLUMN, np.repeat(np.arange(stop - start), some))
            taken = kept.rows[index].with_columns(window)
            made = taken.group_by(UNNAMED_COLUMN, maintain_order=True).agg(self._made)
            yield self._result(made, kept.keys.take(pa.array(of_key[part]))), part

    def encoded(self, kept: Kept, begins: np.ndarray) -> list[bytes]:
        """The rows of each key from these on, to be kept: an Arrow IPC stream, or nothing."""
        return [
            _encoded(kept.rows[begin:stop])
            for begin, stop in zip(begins.tolist(), kept.starts[1:].tolist(), strict=True)
        ]

    def _result(self, made: pl.DataFrame, keys: pa.RecordBatch) -> pa.RecordBatch:
        table = (
            self._aggregates.checked(made).drop(UNNAMED_COLUMN).to_arrow(compat_level=pl.CompatLevel.oldest())
        )
        columns = [
            keys.column(field.name)
            if field.name in self._key_columns
            else table.column(field.name).combine_chunks().cast(field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@lru_cache(maxsize=64)
def _types_of(schema: pa.Schema) -> pl.Schema:
    return frame_of(pa.RecordBatch.from_pylist([], schema=schema)).schema


def _encoded(rows: pl.DataFrame) -> bytes:
    if not rows.height:
        return b""
    sink = io.BytesIO()
    rows.rechunk().write_ipc_stream(sink, compat_level=pl.CompatLevel.oldest())
    return sink.getvalue()
