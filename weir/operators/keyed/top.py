"""The first rows of each key in an order, as a changelog; vectorised for the keys of a batch.

A row that does not enter the top of its key costs a look at the order of the key's last row. What enters is sorted
together with what was there. Changes are those from before the batch to after it: a row that enters and is driven out
again by the same batch is never told. Where every version is to be told, rows enter one after the other instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import Json, Operator, OperatorContext
from weir.operators.keyed import version_kernels as kernels
from weir.operators.keyed.every_version import Caused, in_order
from weir.operators.keyed.row_ranks import row_ranks
from weir.operators.keyed.state_codec import check_row_codecs, keyed_snapshot
from weir.rows.changes import (
    CHANGE_COLUMN,
    CHANGE_FIELD,
    CHANGES,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
)
from weir.rows.records import EVENT_TIME_COLUMN, SYSTEM_COLUMNS
from weir.specs import TopSpec
from weir.specs.arrow_form import arrow_form
from weir.state.handles.block import Keys
from weir.state.handles.stored_rows import StoredRows, encoded_rows, packed_rows, rows_of
from weir.state.tables.values.packed_table import PackedTable

#: Rows that may be read at a time: keys of a batch, by the rows that each may have.
_ROWS_AT_A_TIME = 200_000
#: Where fewer of the changes are new rows, those are picked out before they are encoded.
_NEW_SHARE = 0.8
#: Rows that are told at a time where every version is.
_TOLD_AT_A_TIME = 65_536
_LOWEST = np.iinfo(np.int64).min
_CODES = {change: code for code, change in enumerate(CHANGES)}
_CHANGE_VALUES = pa.array(CHANGES, pa.string())


@dataclass(frozen=True)
class Merged:
    """The rows of keys before and after a batch. Row numbers: those that were stored, then those of the batch."""

    #: Rows after it, those of a key together and in their order; int64.
    kept: np.ndarray
    #: Positions of their keys, ascending, and places in them, from 0 on; int64.
    keys: np.ndarray
    places: np.ndarray
    #: Stored rows that are there no more, and their keys; int64.
    gone: np.ndarray
    gone_keys: np.ndarray


def merge(
    rows_max: int,
    stored: StoredRows,
    new_orders: np.ndarray,
    new_keys: np.ndarray,
    *,
    prefers_later: bool,
) -> Merged:
    """The first rows of each key that has new rows which may enter.

    Args:
        rows_max: of a key.
        stored: what was there, of all keys.
        new_orders: of new rows, the highest go first; int64.
        new_keys: positions of their keys; int64.
        prefers_later: of rows of one order, the later one goes first.
    """
    is_touched = np.zeros(len(stored.counts), dtype=np.bool_)
    is_touched[new_keys] = True
    stored_keys = stored.keys
    old = np.flatnonzero(is_touched[stored_keys])
    keys = np.concatenate([stored_keys[old], new_keys])
    orders = np.concatenate([stored.orders[old], new_orders])
    ids = np.concatenate([old, len(stored.orders) + np.arange(len(new_keys))])
    arrival = np.arange(len(keys))
    # Not minus: the lowest number has no opposite.
    sorting = np.lexsort((~arrival if prefers_later else arrival, ~orders, keys))
    keys, ids = keys[sorting], ids[sorting]
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    places = np.arange(len(keys)) - np.maximum.accumulate(np.where(is_first, np.arange(len(keys)), 0))
    stays = places < rows_max
    leaves = ~stays & (ids < len(stored.orders))
    return Merged(ids[stays], keys[stays], places[stays], ids[leaves], keys[leaves])


@dataclass(frozen=True)
class Told:
    """Rows of the changelog, those of a key together; numbers as in :class:`Merged`."""

    rows: np.ndarray
    keys: np.ndarray
    #: Positions in ``CHANGES``, and places from 0 on.
    changes: np.ndarray
    places: np.ndarray


def changed_rows(merged: Merged, stored_count: int) -> Told:
    """What is told without places: rows that left, and rows that entered."""
    entered = np.flatnonzero(merged.kept >= stored_count)
    rows = np.concatenate([merged.gone, merged.kept[entered]])
    keys = np.concatenate([merged.gone_keys, merged.keys[entered]])
    changes = np.repeat([_CODES[DELETE], _CODES[INSERT]], [len(merged.gone), len(entered)])
    order = np.argsort(keys, kind="stable")
    return Told(rows[order], keys[order], changes[order], np.zeros(len(rows), dtype=np.int64))


def changed_places(merged: Merged, stored: StoredRows) -> Told:
    """What is told of each place: the row that was in it, if any, and the one that is in it now."""
    was_there = merged.places < stored.counts[merged.keys]
    before = np.where(was_there, stored.firsts[merged.keys] + merged.places, -1)
    other = np.flatnonzero(before != merged.kept)
    updated = other[was_there[other]]
    rows = np.concatenate([before[updated], merged.kept[other]])
    after = np.where(was_there[other], _CODES[UPDATE_AFTER], _CODES[INSERT])
    changes = np.concatenate([np.full(len(updated), _CODES[UPDATE_BEFORE]), after])
    at = np.concatenate([updated, other])
    # A place's row before comes ahead of its row after: the sort is stable.
    order = np.argsort(at, kind="stable")
    at = at[order]
    return Told(rows[order], merged.keys[at], changes[order], merged.places[at])


def _causes(stored: StoredRows, merged: Merged, told: Told, new_rows: np.ndarray) -> np.ndarray:
    """The row of the batch because of which each row is told, and whose times it has; int64.

    A row that was stored changes because of the last row of its key that entered.
    """
    count = len(stored.orders)
    is_entered = merged.kept >= count
    last = np.zeros(len(stored.counts), dtype=np.int64)
    np.maximum.at(last, merged.keys[is_entered], new_rows[merged.kept[is_entered] - count])
    causes: np.ndarray = last[told.keys]
    is_new = told.rows >= count
    causes[is_new] = new_rows[told.rows[is_new] - count]
    return causes


def orders_of(column: pa.Array, *, ascending: bool) -> np.ndarray:
    """Numbers that sort as the column does, the highest first; nulls and NaN are the lowest. int64, shape (rows,)."""
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        valid = pc.fill_null(pc.invert(pc.is_nan(column)), False)
        bits = pc.fill_null(column, 0.0).to_numpy().view(np.int64)
        # Minus zero is zero.
        bits = np.where(bits == _LOWEST, 0, bits)
        numbers = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    else:
        valid = column.is_valid()
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        elif pa.types.is_temporal(column.type):
            column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
        plain = pc.fill_null(column, 0).to_numpy()
        is_wide = plain.dtype == np.uint64
        numbers = (plain ^ np.uint64(1 << 63)).view(np.int64) if is_wide else plain.astype(np.int64)
    numbers = ~numbers if ascending else numbers
    # No value is as low as none: the last two of 64 bits are equal.
    return np.where(valid.to_numpy(zero_copy_only=False), np.maximum(numbers, _LOWEST + 1), _LOWEST)


class TopOperator(Operator):
    """Top rows of each key; the state of a key are its rows, one value of ``weir.state.handles.stored_rows``."""

    knows_rows_by_time = True

    def __init__(self, spec: TopSpec) -> None:
        self._spec = spec
        self._table: PackedTable | None = None
        self._max_parallelism = 0
        self._schema: pa.Schema | None = None
        self._codec: dict[str, Json] = {}
        self._tells_places = spec.rank is not None or spec.rows == 1

    def _columns_of(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that are kept."""
        added = {CHANGE_COLUMN, self._spec.rank}
        return [field for field in schema if field.name not in added]

    def _codec_of(self, schema: pa.Schema) -> dict[str, Json]:
        spec = self._spec
        order: list[Json] = [spec.by, spec.ascending, spec.prefers_later, spec.rows]
        # Of several columns; a state of one has nothing of it.
        order += [asdict(each) for each in spec.order]
        return {
            "keys": list(spec.key_columns),
            "order": order,
            "columns": [[field.name, arrow_form(field.type)] for field in self._columns_of(schema)],
        }

    def check_restored(self, context: OperatorContext) -> None:
        """Check that the restored rows have the codec of today's schema, as :class:`Operator` asks."""
        assert context.schema is not None
        check_row_codecs(context, self._spec.kind, self._codec_of(context.schema))

    def open(self, context: OperatorContext) -> None:
        """Open the state.

        Raises:
            StateError: there is no store, or a checkpoint's state cannot be read with this spec.
        """
        assert context.schema is not None
        self.check_restored(context)
        self._codec = self._codec_of(context.schema)
        kept_columns = self._columns_of(context.schema)
        self._names = [field.name for field in kept_columns]
        self._table = declared_tables(context).packed("top")
        self._max_parallelism = context.max_parallelism

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the rows change.

        Raises:
            StateError: the store cannot be read or written.
        """
        spec = self._spec
        keys = keys_of(batch, spec.key_columns, self._max_parallelism)
        keys_max = max(1, _ROWS_AT_A_TIME // spec.rows)
        count = len(keys.distinct)
        if count <= keys_max:
            yield from (told for told, _ in self._processed(batch, keys))
            return
        parts = self._parts(batch, keys, keys_max)
        yield from in_order(parts) if spec.every_version else (told for told, _ in parts)

    def _parts(self, batch: pa.RecordBatch, keys: Keys, keys_max: int) -> Iterator[Caused]:
        """What is changed of so many keys at a time."""
        for start in range(0, len(keys.distinct), keys_max):
            rows = np.flatnonzero((keys.inverse >= start) & (keys.inverse < start + keys_max))
            for told, causes in self._processed(batch.take(pa.array(rows)), keys.take(rows)):
                yield told, rows[causes]

    def _orders(self, stored: StoredRows, batch: pa.RecordBatch) -> np.ndarray:
        """Numbers that sort as rows do, the highest first: of stored rows, then of those of the batch; int64.

        Of several columns they are good for these rows only, and the state has none.
        """
        spec = self._spec
        if not spec.order:
            by = EVENT_TIME_COLUMN if spec.by is None else spec.by
            return np.concatenate([stored.orders, orders_of(batch.column(by), ascending=spec.ascending)])
        names = [each.name for each in spec.order]
        given = pl.DataFrame(batch.select(names))
        if len(stored.orders):
            types = [*(batch.column(name).type for name in self._names), pa.int64()]
            columns = dict(
                zip(self._names, stored.decoded(np.arange(len(stored.orders)), types), strict=False)
            )
            kept = pl.DataFrame(pa.table({name: columns[name] for name in names}))
            given = pl.concat([kept, given], how="vertical_relaxed")
        return ~row_ranks(given, spec.order)

    def _processed(self, batch: pa.RecordBatch, keys: Keys) -> Iterator[Caused]:
        table, spec = self._table, self._spec
        assert table is not None
        distinct = keys.distinct
        stored = rows_of(table.read_values(distinct.hashes, distinct.column))
        all_orders = self._orders(stored, batch)
        orders = all_orders[len(stored.orders) :]
        stored = replace(stored, orders=all_orders[: len(stored.orders)])
        new_rows = self._entering(stored, keys.inverse, orders)
        if not len(new_rows):
            return
        new_keys, new_orders = keys.inverse[new_rows], orders[new_rows]
        merged = merge(spec.rows, stored, new_orders, new_keys, prefers_later=spec.prefers_later)
        count = len(stored.orders)
        if spec.every_version:
            kept = new_rows[merged.kept[merged.kept >= count] - count]
            self._write(batch.take(pa.array(kept)), count + kept, stored, merged, new_orders, distinct)
            yield from self._versions(batch, stored, all_orders, new_rows, new_keys)
            return
        told = changed_places(merged, stored) if self._tells_places else changed_rows(merged, count)
        causes = _causes(stored, merged, told, new_rows)
        changes = self._changelog(batch, stored, told, new_rows, causes)
        self._write(changes, told.rows, stored, merged, new_orders, distinct)
        yield changes, causes

    def _versions(
        self,
        batch: pa.RecordBatch,
        stored: StoredRows,
        orders: np.ndarray,
        new_rows: np.ndarray,
        new_keys: np.ndarray,
    ) -> Iterator[Caused]:
        """What the rows that may enter change, one after the other; ``orders``: of stored rows and of the batch."""
        most, count = self._spec.rows, len(stored.orders)
        room = np.minimum(stored.counts + np.bincount(new_keys, minlength=len(stored.counts)), most)
        # A key may have more than it is to have now.
        sizes = np.minimum(stored.counts, most)
        room = np.maximum(room, sizes)
        starts = np.cumsum(room) - room
        top = np.empty(int(room.sum()), dtype=np.int64)
        places = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        top[np.repeat(starts, sizes) + places] = np.repeat(stored.firsts, sizes) + places
        size = max(_TOLD_AT_A_TIME, 2 * most)
        rows, causes, at = (np.empty(size, dtype=np.int64) for _ in range(3))
        changes = np.empty(size, dtype=np.uint8)
        first, entering = 0, count + new_rows
        while first < len(new_rows):
            first, told_count = kernels.top_versions(
                *(first, entering, new_keys, orders, most, self._spec.prefers_later, self._tells_places),
                *(starts, sizes, top, rows, causes, changes, at),
            )
            if not told_count:
                continue
            chosen = slice(told_count)
            because = new_rows[causes[chosen]]
            every = np.arange(batch.num_rows)
            numbers = rows[chosen].copy()
            told = Told(numbers, new_keys[causes[chosen]], changes[chosen].copy(), at[chosen].copy())
            yield self._changelog(batch, stored, told, every, because), because

    def _entering(self, stored: StoredRows, inverse: np.ndarray, orders: np.ndarray) -> np.ndarray:
        """Rows that go before the last one of their key, or whose key has room."""
        if not len(stored.orders):
            return np.arange(len(orders))
        lasts = stored.orders[np.maximum(np.cumsum(stored.counts) - 1, 0)]
        has_room = (stored.counts < self._spec.rows)[inverse]
        last = lasts[inverse]
        return np.flatnonzero(has_room | (orders >= last if self._spec.prefers_later else orders > last))

    def _write(
        self,
        changes: pa.RecordBatch,
        numbers: np.ndarray,
        stored: StoredRows,
        merged: Merged,
        new_orders: np.ndarray,
        keys: Keys,
    ) -> None:
        """Write the rows of the keys that are in ``merged``.

        Args:
            changes: rows, among them every one that entered once, and in the order that ``merged`` has.
            numbers: their numbers.
            stored: what was there.
            merged: what is there now.
            new_orders: of new rows.
            keys: all of the batch, each once.
        """
        assert self._table is not None
        count = len(stored.orders)
        is_new = merged.kept >= count
        # Rows are taken out of the batch once, for the changelog. A few old ones among them are encoded, too.
        at = np.flatnonzero(numbers >= count)
        if len(at) < _NEW_SHARE * len(numbers):
            changes, at = changes.take(pa.array(at)), np.arange(len(at))
        encoded = encoded_rows(self._row_columns(changes))
        starts, lengths = np.empty(len(is_new), dtype=np.int64), np.empty(len(is_new), dtype=np.int64)
        row_orders = np.empty(len(is_new), dtype=np.int64)
        old = merged.kept[~is_new]
        starts[~is_new], lengths[~is_new], row_orders[~is_new] = (
            stored.starts[old],
            stored.lengths[old],
            stored.orders[old],
        )
        # Where no old row stays, as of one row for each key, there is nothing to put together.
        data = np.concatenate([stored.data, encoded.data]) if len(old) else encoded.data
        starts[is_new] = encoded.offsets[at] + len(data) - len(encoded.data)
        lengths[is_new] = encoded.offsets[at + 1] - encoded.offsets[at]
        row_orders[is_new] = new_orders[merged.kept[is_new] - count]
        if self._spec.order:
            row_orders[:] = 0
        positions, counts = np.unique(merged.keys, return_counts=True)
        values = packed_rows(counts, row_orders, starts, lengths, data)
        self._table.write_values(keys.hashes, keys.column, positions, values)

    def _row_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """What is kept of rows: the time too, so that there are two columns at least."""
        return [batch.column(name) for name in [*self._names, EVENT_TIME_COLUMN]]

    def _changelog(
        self,
        batch: pa.RecordBatch,
        stored: StoredRows,
        told: Told,
        new_rows: np.ndarray,
        causes: np.ndarray,
    ) -> pa.RecordBatch:
        """The rows that are told; ``causes``: of each the row of the batch that it is told because of."""
        count = len(stored.orders)
        is_new = told.rows >= count
        old = told.rows[~is_new]
        rows = np.empty(len(told.rows), dtype=np.int64)
        # Rows that were stored come after those of the batch.
        rows[is_new] = new_rows[told.rows[is_new] - count]
        rows[~is_new] = batch.num_rows + np.arange(len(old))
        taken = pa.array(rows)
        types = [batch.column(name).type for name in self._names]
        decoded = stored.decoded(old, [*types, pa.int64()]) if len(old) else None
        columns = []
        for position, name in enumerate(self._names):
            column = batch.column(name)
            if decoded is not None:
                column = pa.concat_arrays([column, decoded[position].cast(column.type)])
            columns.append(column.take(taken))
        fields = [batch.schema.field(name) for name in self._names]
        if self._spec.rank is not None:
            columns.append(pa.array(told.places + 1))
            fields.append(pa.field(self._spec.rank, pa.int64(), nullable=False))
        columns.append(_CHANGE_VALUES.take(pa.array(told.changes)))
        fields.append(CHANGE_FIELD)
        times = pa.array(causes)
        for field in batch.schema:
            if field.name in SYSTEM_COLUMNS:
                columns.append(batch.column(field.name).take(times))
                fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the state mean."""
        return keyed_snapshot(self._spec.kind, self._codec)
