"""Joins rows with a table outside, whose rows are looked up by the keys of a batch and remembered for a while."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.operator import Operator, OperatorContext
from weir.errors import InputError
from weir.keys import hashing as weir_keys
from weir.operators.joins.remembered_rows import FoundRows, KeyRows, RememberedRows, spread_parts
from weir.rows import row_watermarks
from weir.rows.records import as_authors_see, plain_array, system_schema, user_columns, watermarks_of
from weir.specs.lookup_joins import LookupJoinSpec
from weir.state.handles.block import Keys


class TableReader(Protocol):
    """A table outside; made by what ``TableSpec.reader`` names, and used by the subtask's thread."""

    def find(self, keys: pa.RecordBatch) -> pa.Table:
        """The rows that have one of these keys; may block.

        Args:
            keys: key columns of the table, without nulls; no key is there twice.

        Returns: the columns that are read, of the types that the table declares; rows of a key in one order.

        Raises:
            WeirError: the table cannot be read; one line that names it.
        """
        ...

    def close(self) -> None:
        """Let go of what is open; safe to call twice."""
        ...


class LookupJoinOperator(Operator):
    """Adds the table's columns to each row: a row leaves once for each row of the table that has its key.

    A batch leaves when all of its keys are answered: rows keep their order, and nothing is under way at a barrier. What
    was found, also that there is nothing, is remembered; it does not survive a restart.
    """

    def __init__(self, spec: LookupJoinSpec) -> None:
        self._spec = spec
        self._reader: TableReader | None = None

    def open(self, context: OperatorContext) -> None:
        """Open the table.

        Raises:
            WeirError: it cannot be opened.
        """
        spec, table = self._spec, self._spec.table
        self._step = context.operator_name
        self._clock = context.clock
        self._batch_size = context.batch_size
        self._schema = pa.schema([table.schema.field(name) for name in spec.read])
        # A null where none may be is told by its column's name.
        self._loose = pa.schema([field.with_nullable(True) for field in self._schema])
        self._remembered = RememberedRows(self._loose, spec.cache_rows, spec.cache_ttl_ms / 1000)
        module, _, name = table.reader.partition(":")
        make = getattr(importlib.import_module(module), name)
        self._reader = make(table, spec.keys, spec.read, self._step)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with those of the table.

        Raises:
            WeirError: the table cannot be read.
        """
        watermarks_ms = watermarks_of(batch)
        batch = as_authors_see(batch)
        rows, firsts, counts = self._found(batch)
        if batch.num_rows <= self._batch_size and bool((counts == 1).all()):
            places = plain_array(firsts)
            found = [
                pc.take(_whole(rows.column(name)), places, boundscheck=False) for name, _ in self._spec.added
            ]
            made = self._with_columns(batch, found)
            yield (made if watermarks_ms is None else row_watermarks.with_column(made, watermarks_ms))
            return
        leaving = np.maximum(counts, 1) if self._spec.how == "left" else counts
        columns = [_whole(rows.column(name)) for name, _ in self._spec.added]
        # Many rows of the table may have one key: what leaves is cut as what comes.
        for left, right in spread_parts(firsts, leaving, self._batch_size):
            made = self._joined(batch, columns, left, right, counts[left] == 0)
            yield (made if watermarks_ms is None else row_watermarks.with_column(made, watermarks_ms[left]))

    def _found(self, batch: pa.RecordBatch) -> FoundRows:
        """Where the table's rows of each row of a batch are; a key with a null has none."""
        # A number that no row of the table can have is a null, too.
        arrays = [
            _of_type(batch.column(name), self._schema.field(other).type) for name, other in self._spec.on
        ]
        now_s, numbers = self._clock.monotonic_s(), _whole_numbers(arrays)
        if numbers is not None and (known := self._remembered.of_numbers(numbers, now_s)) is not None:
            return known
        there = np.ones(batch.num_rows, dtype=np.bool_)
        for each in arrays:
            if each.null_count:
                there &= each.is_valid().to_numpy(zero_copy_only=False)
        keyed = pa.RecordBatch.from_arrays(arrays, names=list(self._spec.keys))
        if not there.all():
            keyed = keyed.filter(pa.array(there))
        firsts, counts = (np.zeros(batch.num_rows, dtype=np.int64) for _ in range(2))
        if not keyed.num_rows:
            return FoundRows(self._loose.empty_table(), firsts, counts)
        column = weir_keys.key_bytes(keyed, self._spec.keys)
        keys = Keys(weir_keys.hash_keys(column), column, 1)
        distinct = keys.distinct.user_keys

        def ask(positions: np.ndarray) -> KeyRows:
            asked = keyed.take(pa.array(keys.first_rows[positions]))
            return self._asked(asked, [distinct[at] for at in positions.tolist()])

        own = None if numbers is None else numbers[keys.first_rows]
        found = self._remembered.found(distinct, now_s, ask, own)
        firsts[there], counts[there] = found.firsts[keys.inverse], found.counts[keys.inverse]
        return FoundRows(found.rows, firsts, counts)

    def _asked(self, asked: pa.RecordBatch, keys: list[bytes]) -> KeyRows:
        """The table's rows of some keys, from the table itself."""
        assert self._reader is not None
        found = self._reader.find(asked)
        self._check(found)
        if not found.num_rows:
            return KeyRows(found, np.zeros(len(keys), dtype=np.int64))
        (rows,) = found.select(self._spec.keys).combine_chunks().to_batches()
        numbers = {key: number for number, key in enumerate(keys)}
        own = weir_keys.key_bytes(rows, self._spec.keys).to_list()
        of = np.array([numbers.get(key, -1) for key in own], dtype=np.int64)
        order = np.argsort(of, kind="stable")[int((of < 0).sum()) :]
        counts = np.bincount(of[order], minlength=len(keys)).astype(np.int64)
        return KeyRows(found.take(pa.array(order)), counts)

    def _check(self, found: pa.Table) -> None:
        for column in self._schema:
            if not column.nullable and found.column(column.name).null_count:
                raise InputError(
                    f"step {self._step!r}: column {column.name!r} of {self._spec.table.shown} has a null; declare it "
                    "as weir.Nullable(...), or without NOT NULL, if that is right"
                )

    def _joined(
        self,
        batch: pa.RecordBatch,
        columns: list[pa.Array],
        left: np.ndarray,
        right: np.ndarray,
        is_alone: np.ndarray,
    ) -> pa.RecordBatch:
        """Rows of the batch beside rows of the table, of which ``columns`` are added; nulls where ``is_alone``."""
        every = len(left) == batch.num_rows and bool((left == np.arange(len(left))).all())
        taken = batch if every else batch.take(pa.array(left))
        places = pa.array(np.where(is_alone, 0, right), mask=is_alone)
        return self._with_columns(taken, [column.take(places) for column in columns])

    def _with_columns(self, batch: pa.RecordBatch, columns: list[pa.Array]) -> pa.RecordBatch:
        """The rows of the batch with the table's columns beside those of the user."""
        user = len(user_columns(batch.schema))
        fields = self._spec.added_fields()
        found = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, fields, strict=True)
        ]
        schema = system_schema(pa.schema([*list(batch.schema)[:user], *fields]))
        return pa.RecordBatch.from_arrays(
            [*batch.columns[:user], *found, *batch.columns[user:]], schema=schema
        )

    def close(self) -> None:
        """Close the table."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _whole_numbers(keys: list[pa.Array]) -> np.ndarray | None:
    """The values of a key of one column of BIGINT without nulls; int64, shape (rows,)."""
    if len(keys) != 1 or not pa.types.is_int64(keys[0].type) or keys[0].null_count:
        return None
    numbers: np.ndarray = keys[0].to_numpy(zero_copy_only=True)
    return numbers


def _of_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A key column as the table has it: whole numbers that the table cannot have are null."""
    if column.type == wanted or not pa.types.is_integer(wanted):
        return column
    number = pl.Series(pa.array([], wanted)).dtype
    return pl.Series(column).cast(number, strict=False).to_arrow()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
