"""The keyed operator of built-in running aggregates; users' own are in ``keyed_process``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.author.keyed_rows import declared_tables
from weir.author.operator import Json, Operator, OperatorContext
from weir.errors import CheckpointError, StateError
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import NO_TIMES, Cells, FoldRows, event_times
from weir.operators.aggregation.fold import Conditions, Fold
from weir.operators.aggregation.fold_classes import cell_count, made_folds
from weir.operators.aggregation.part_entries import part_keys
from weir.operators.aggregation.parts import Pieces, make_parts
from weir.operators.keyed import row_kernels as kernels
from weir.operators.keyed.hot_rows import HotParts, split_hot_parts, told_apart
from weir.operators.keyed.state_codec import (
    AggregateCodec,
    aggregate_codec,
    check_aggregate_codecs,
    codec_from_json,
    counted_before,
    kept_snapshots,
    keyed_snapshot,
)
from weir.rows.records import KEY_HASH_COLUMN, KEY_PART_COLUMN, taken, user_columns
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.opened import OperatorTables


class KeyedParts:
    """The parts of one step's running aggregates."""

    def __init__(self, aggregates: Sequence[Aggregate], tables: OperatorTables) -> None:
        # Cells of results are never filled from parts: each row changes its key's cells.
        parts = make_parts(aggregates, [0] * len(aggregates))
        self._parts = [(part, tables.cells(part.cell_count, part.name)) for part in parts]

    def take(
        self, batch: pa.RecordBatch, masks: list[np.ndarray], hashes: np.ndarray, keys: weir_keys.KeyColumn
    ) -> list[np.ndarray]:
        """Take in rows; returns masks for the cells of their keys."""
        masks = list(masks)
        for part, table in self._parts:

            def update(rows: np.ndarray, values: weir_keys.KeyColumn, table: CellTable = table) -> Pieces:
                is_all = len(rows) == len(hashes)
                some_hashes = hashes if is_all else hashes[rows]
                some_keys = keys if is_all else weir_keys.select_keys(keys, rows)
                found, users = part_keys(some_hashes, some_keys, values)
                return table.pieces(found, users.data, users.offsets)

            part.take(batch.column(part.column), masks, update, table)
        return masks


class KeyedAggregateOperator(Operator):
    """Running aggregates per key, kept in :class:`CellTable`.

    Input: any columns, the key columns among them. Output: the user columns, one column per aggregate, the system
    columns. ``per_event``: every row, with the values after that row. ``per_batch``: the last row of each key
    of the batch, with the final values (a batch whose keys do not fit in the cache counts as several).
    Nulls are skipped; an aggregate without a value so far is null, a count is 0.

    State survives restarts as long as key columns and aggregates stay the same; see ``state_codec`` beside it.
    """

    def __init__(self, spec: KeyedAggregateSpec) -> None:
        #: Keys met by deployments before this one.
        self._keys_before = 0
        self._spec, self._tells_batches = spec, spec.tells_batches
        self._conditions = Conditions(spec.aggregates)
        self._state: CellTable | None = None
        self._keys_at_close = 0
        self._input_schema: pa.Schema | None = None
        self._folds: list[Fold] = []
        self._needs_times = True
        #: Where the key is, if it is one column, and its hash; -1: nowhere.
        self._only_key = self._hash = -1
        #: Where the column is that says which rows stand for several; -1: there is none.
        self._hot_part = -1
        #: Of the aggregates' columns, by name, as they came last.
        self._fields: dict[str, pa.Field] = {}
        #: Where the aggregates stand: after the user columns.
        self._user_columns = 0
        self._last = np.empty(0, dtype=np.int32)
        places = {aggregate.output: place for place, aggregate in enumerate(spec.aggregates)}
        #: Where the aggregates that have columns are among all, in the order of the columns.
        self._shown = [places[aggregate.output] for aggregate in spec.results]

    def check_restored(self, context: OperatorContext) -> None:
        """Check that the restored state has the codec of today's aggregates, as :class:`Operator` asks."""
        kept = kept_snapshots(context, self._spec.kind)
        stored = {codec_from_json(value["codec"]) for value in kept.values()}
        # The step passes on all columns that somebody reads.
        check_aggregate_codecs(context.operator_name, stored, aggregate_codec(self._spec, context.schema))

    def open(self, context: OperatorContext) -> None:
        """Take the stage's store.

        Raises:
            StateError: there is none, or a checkpoint's state cannot be read with this spec.
        """
        self._step = context.operator_name
        self.check_restored(context)
        kept = kept_snapshots(context, self._spec.kind)
        self._stored_codecs = {codec_from_json(value["codec"]) for value in kept.values()}
        self._codec = aggregate_codec(self._spec, None)
        self._keys_before = counted_before(context, kept, "distinct_keys")
        tables = declared_tables(context)
        self._state = tables.cells(cell_count(self._spec.aggregates, context.schema))
        self._parts = KeyedParts(self._spec.aggregates, tables)

    @property
    def state(self) -> CellTable:
        """The accumulators, for metrics.

        Raises:
            StateError: the operator is not open.
        """
        if self._state is None:
            raise StateError("this keyed operator is not open")
        return self._state

    @property
    def distinct_keys(self) -> int:
        """Keys met for the first time by this subtask, also before the checkpoint that the job started from.

        Read by heartbeats from another thread, also after the end.
        """
        state = self._state
        return self._keys_at_close if state is None else self._keys_before + state.keys_created

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Update the state of the rows' keys. Emits as the spec says.

        Raises:
            StateError: the store cannot be read or written.
            CheckpointError: rows that were under way were added up for other aggregates.
            WeirError: a sum of integers passes 64 bits, or one of decimals 38 digits.
        """
        state, is_per_batch = self.state, self._tells_batches
        if self._input_schema is None or not self._input_schema.equals(batch.schema):
            self._prepare(batch.schema)
        parts: HotParts | None = None
        if self._hot_part >= 0:
            batch, parts = split_hot_parts(self._step, batch, self._hot_part, self._folds)
            if not is_per_batch:
                raise CheckpointError(told_apart(self._step))
        keys, hashes = self._keys(batch)
        masks = self._parts.take(batch, self._conditions.masks(batch), hashes, keys)
        if parts is not None:
            masks = parts.masks(masks, batch.num_rows)
        for start, stop, slots in state.pieces(hashes, keys.data, keys.offsets):
            piece = batch if stop - start == batch.num_rows else batch.slice(start, stop - start)
            times_ms = event_times(piece) if self._needs_times else NO_TIMES
            cells = Cells(state.cells, state.presence)
            folded = [
                (fold, FoldRows(self._column(piece, fold), mask[start:stop], times_ms))
                for fold, mask in zip(self._folds, masks, strict=True)
            ]
            if not is_per_batch:
                columns = [fold.running(slots, cells, rows) for fold, rows in folded]
                state.end_piece()
                yield self._with_columns(piece, columns)
                continue
            for fold, rows in folded:
                fold.take(slots, cells, rows)
            if parts is not None:
                parts.merge(self._folds, start, stop, slots, cells)
            state.end_piece()
            last = self._last_rows(slots)
            told = Cells(state.cells[slots[last]], state.presence[slots[last]])
            columns = [fold.results(told) for fold in self._folds]
            yield self._with_columns(taken(piece, last), columns)

    def _prepare(self, schema: pa.Schema) -> None:
        """Rows come with this schema from now on.

        Raises:
            StateMismatchError: state cannot be read with its types.
        """
        self._input_schema = schema
        codec = aggregate_codec(self._spec, schema)
        check_aggregate_codecs(self._step, self._stored_codecs, codec)
        self._codec = codec
        self._folds = made_folds(self._spec.aggregates, schema)
        self._needs_times = any(fold.needs_times for fold in self._folds)
        self._user_columns = len(user_columns(schema))
        self._only_key, self._hash = _places(schema, self._spec.key_columns)
        self._hot_part = schema.get_field_index(KEY_PART_COLUMN)

    def _keys(self, batch: pa.RecordBatch) -> tuple[weir_keys.KeyColumn, np.ndarray]:
        """Keys and their hashes, uint64; small batches pay for every look at a schema."""
        keys = None if self._only_key < 0 else weir_keys.plain_key_bytes(batch.column(self._only_key))
        if keys is None:
            keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        if self._hash < 0:
            return keys, weir_keys.hash_keys(keys)
        return keys, batch.column(self._hash).to_numpy(zero_copy_only=True)

    def _column(self, piece: pa.RecordBatch, fold: Fold) -> pa.Array | None:
        name = fold.aggregate.column
        return None if name is None else piece.column(name)

    def _last_rows(self, slots: np.ndarray) -> np.ndarray:
        if self._last.size < self.state.capacity:
            self._last = np.empty(self.state.capacity, dtype=np.int32)
        rows = np.empty(len(slots), dtype=np.int32)
        return rows[: kernels.last_rows(slots, self._last, rows)]

    def _with_columns(self, piece: pa.RecordBatch, columns: list[pa.Array]) -> pa.RecordBatch:
        """User columns, aggregates, system columns."""
        for index, place in enumerate(self._shown):
            name, column = self._folds[place].aggregate.output, columns[place]
            field = self._fields.get(name)
            if field is None or field.type != column.type:
                field = self._fields[name] = pa.field(name, column.type)
            piece = piece.add_column(self._user_columns + index, field, column)
        return piece

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes in the store mean; the accumulators themselves are there, written by their table."""
        known = [codec for codec in self._stored_codecs if _knows_types(codec)]
        codec = self._codec if _knows_types(self._codec) or not known else known[0]
        return keyed_snapshot(self._spec.kind, codec.to_json(), distinct_keys=self.distinct_keys)

    def close(self) -> None:
        """Let go of the table, which the runtime flushes before and closes after."""
        self._keys_at_close = self.distinct_keys
        self._state = None


def _places(schema: pa.Schema, key_columns: Sequence[str]) -> tuple[int, int]:
    """Where the key is, if it is one column, and its hash; -1: nowhere."""
    only = schema.get_field_index(key_columns[0]) if len(key_columns) == 1 else -1
    return only, schema.get_field_index(KEY_HASH_COLUMN)


def _knows_types(codec: AggregateCodec) -> bool:
    return None not in {item[-1] for item in (*codec.keys, *codec.aggregates)}
