"""The first rows of each key of a changelog, as a changelog; vectorised for the keys of a batch.

All rows of a key are kept in their order, since one that follows comes up when one before it is taken away. Rows that
are equal in the order go by their columns, never by which came first: that hangs on which versions the steps before
have told, and so on how batches were cut. So the table is made of the rows that are there alone.

Rows are told apart by the bytes of their columns. A row that is taken away before it came (rows of a key that come over
several channels) is owed: the next one that equals it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.keyed.every_version import Caused, told_of
from weir.operators.keyed.row_ranks import row_ranks
from weir.operators.keyed.top import Told, TopOperator
from weir.rows.change_codes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, adds_rows, change_codes
from weir.specs import ChangelogTopSpec
from weir.specs.row_order import OrderColumn, is_unordered
from weir.state.handles.block import Keys
from weir.state.handles.stored_rows import StoredRows, encoded_rows, packed_rows, rows_of
from weir.state.packed import PackedValues
from weir.state.tables.values.packed_table import PackedTable

#: A name that no column has.
_BYTES = "\1bytes"


class ChangelogTopOperator(TopOperator):
    """Top rows of a changelog; the state of a key are its rows, as in :class:`TopOperator`, and those that are owed.

    Rows have numbers: first those that were stored, then those of the batch.
    """

    def __init__(self, spec: ChangelogTopSpec) -> None:
        super().__init__(spec)
        self._owed: PackedTable | None = None

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._owed = declared_tables(context).packed("owed")

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the rows change.

        Raises:
            InputError: ``_change`` has a text that is no change.
            StateError: the store cannot be read or written.
        """
        yield from told_of(batch, self._keys, self._changed, every_version=self._spec.every_version)

    def _keys(self, batch: pa.RecordBatch) -> Keys:
        return keys_of(batch, self._spec.key_columns, self._max_parallelism)

    def _changed(self, batch: pa.RecordBatch) -> Iterator[Caused]:
        """What the rows change together."""
        table, owed_table, spec = self._table, self._owed, self._spec
        assert table is not None
        assert owed_table is not None
        assert spec.by is not None
        adds = adds_rows(change_codes(batch))
        keys = self._keys(batch)
        distinct = keys.distinct
        stored, owed = (
            rows_of(each.read_values(distinct.hashes, distinct.column)) for each in (table, owed_table)
        )
        count, rows = len(stored.orders), encoded_rows(self._row_columns(batch))
        both = weir_keys.joined_keys([stored.encoded, rows, owed.encoded])
        # Equal rows are of one key, for their bytes have it.
        firsts, _, same = weir_keys.distinct_keys(weir_keys.hash_keys(both), both)
        of_stored, of_batch, of_owed = np.split(same, [count, count + batch.num_rows])
        there = np.concatenate([of_stored, of_batch[adds]])
        totals = np.bincount(there, minlength=len(firsts))
        totals -= np.bincount(np.concatenate([of_batch[~adds], of_owed]), minlength=len(firsts))
        ids = np.concatenate([np.arange(count), count + np.flatnonzero(adds)])[_last_ones(there, totals)]
        orders = self._orders(stored, batch)
        key_of = np.concatenate([stored.keys, keys.inverse])
        sorting, tied = _sorted(key_of[ids], orders[ids], same[ids])
        if len(tied):
            numbers, inverse = np.unique(same[ids[tied]], return_inverse=True)
            ranks = np.zeros(len(ids), dtype=np.int64)
            ranks[tied] = self._ranks(weir_keys.select_keys(both, firsts[numbers]), batch.schema)[inverse]
            sorting, _ = _sorted(key_of[ids], orders[ids], ranks)
        kept = ids[sorting]
        starts = np.concatenate([stored.starts, len(stored.data) + rows.offsets[:-1]])
        lengths = np.concatenate([stored.lengths, np.diff(rows.offsets)])
        data = np.concatenate([stored.data, rows.data])
        kept_orders = np.zeros(len(kept), dtype=np.int64) if spec.order else orders[kept]
        _write(table, distinct, stored, key_of[kept], kept_orders, starts[kept], lengths[kept], data)
        self._write_owed(owed_table, distinct, owed, totals, firsts, both, np.append(key_of, owed.keys))
        told = self._told(stored, kept, key_of, same)
        if len(told.rows):
            # What was stored changes because of the last row of its key.
            causes = keys.last_rows[told.keys]
            is_new = told.rows >= count
            causes[is_new] = told.rows[is_new] - count
            yield self._changelog(batch, stored, told, np.arange(batch.num_rows), causes), causes

    def _ranks(self, rows: weir_keys.KeyColumn, schema: pa.Schema) -> np.ndarray:
        """Numbers by which rows go that are equal in the order, the lowest first: places by their columns; int64."""
        nothing = np.zeros(len(rows), dtype=np.int64)
        starts, lengths = rows.offsets[:-1].astype(np.int64), np.diff(rows.offsets).astype(np.int64)
        stored = StoredRows(np.array([len(rows)]), nothing, starts, lengths, rows.data)
        types = [schema.field(name).type for name in self._names]
        columns = stored.decoded(np.arange(len(rows)), [*types, pa.int64()])
        frame = pl.DataFrame(
            [
                pl.Series(name, column)
                for name, column, dtype in zip(self._names, columns, types, strict=False)
                if not is_unordered(dtype)
            ]
        )
        # Minus zero is zero, and is another row.
        frame = frame.with_columns(pl.Series(_BYTES, rows.to_list(), pl.Binary))
        ranks = row_ranks(frame, [OrderColumn(name, ascending=True) for name in frame.columns])
        return -ranks if self._spec.prefers_later else ranks

    def _row_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """What is kept of rows: their columns, and no time, by which equal rows would differ."""
        return [
            *(batch.column(name) for name in self._names),
            pa.array(np.zeros(batch.num_rows, dtype=np.int64)),
        ]

    def _write_owed(
        self,
        table: PackedTable,
        keys: Keys,
        owed: StoredRows,
        totals: np.ndarray,
        firsts: np.ndarray,
        rows: weir_keys.KeyColumn,
        key_of: np.ndarray,
    ) -> None:
        """Write which rows were taken away more often than they came.

        Args:
            table: of rows that are owed,
            keys: all of the batch, each once.
            owed: what the table has of them.
            totals: by different row: how often it is there, below 0 if it is owed.
            firsts: by different row: one of those in ``rows`` that equal it.
            rows: bytes of all rows.
            key_of: by row: the position of its key.
        """
        some = np.repeat(firsts, np.maximum(-totals, 0))
        if not len(some) and not len(owed.orders):
            return
        some = some[np.argsort(key_of[some], kind="stable")]
        lengths = np.diff(rows.offsets)[some]
        nothing = np.zeros(len(some), dtype=np.int64)
        _write(table, keys, owed, key_of[some], nothing, rows.offsets[some], lengths, rows.data)

    def _told(self, stored: StoredRows, kept: np.ndarray, key_of: np.ndarray, same: np.ndarray) -> Told:
        """What the rows that are there now change in the first ones of their keys.

        Args:
            stored: what was there.
            kept: rows that are there now, those of a key together and in their order.
            key_of: by row: its key.
            same: by row: a number that equal rows have in common.
        """
        most = self._spec.rows
        before = np.arange(len(stored.orders))
        places_before, places = _places(stored.keys), _places(key_of[kept])
        before, places_before = before[places_before < most], places_before[places_before < most]
        after, places = kept[places < most], places[places < most]
        if self._tells_places:
            return _changed_places(before, places_before, after, places, key_of, same)
        net = np.bincount(same[before], minlength=len(same)) - np.bincount(same[after], minlength=len(same))
        gone, entered = before[_last_ones(same[before], net)], after[_last_ones(same[after], -net)]
        rows = np.concatenate([gone, entered])
        changes = np.repeat([DELETE, INSERT], [len(gone), len(entered)])
        order = np.argsort(key_of[rows], kind="stable")
        return Told(rows[order], key_of[rows][order], changes[order], np.zeros(len(rows), dtype=np.int64))


def _changed_places(
    before: np.ndarray,
    places_before: np.ndarray,
    after: np.ndarray,
    places: np.ndarray,
    key_of: np.ndarray,
    same: np.ndarray,
) -> Told:
    """What is told of each place of each key: the row that was in it, and the one that is in it now."""
    most = 1 + max(places_before.max(initial=0), places.max(initial=0))
    at_before, at_after = key_of[before] * most + places_before, key_of[after] * most + places
    at = np.union1d(at_before, at_after)
    old, new = np.full(len(at), -1, dtype=np.int64), np.full(len(at), -1, dtype=np.int64)
    old[np.searchsorted(at, at_before)] = before
    new[np.searchsorted(at, at_after)] = after
    changed = (old < 0) | (new < 0)
    changed |= same[old] != same[new]
    at, old, new = at[changed], old[changed], new[changed]
    left, came = np.flatnonzero(old >= 0), np.flatnonzero(new >= 0)
    rows = np.concatenate([old[left], new[came]])
    changes = np.concatenate(
        [np.where(new[left] >= 0, UPDATE_BEFORE, DELETE), np.where(old[came] >= 0, UPDATE_AFTER, INSERT)]
    )
    at = np.concatenate([at[left], at[came]])
    order = np.argsort(at, kind="stable")
    return Told(rows[order], at[order] // most, changes[order], at[order] % most)


def _sorted(keys: np.ndarray, orders: np.ndarray, ties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put rows in order: those of a key together, the highest orders first, of equal ones the lowest ``ties``.

    Returns:
        Positions of rows in that order; and of those that only ``ties`` tells apart from others, in no order.
    """
    sorting = np.lexsort((ties, ~orders, keys))
    is_tied = (np.diff(keys[sorting]) == 0) & (np.diff(orders[sorting]) == 0)
    if not (is_tied & (np.diff(ties[sorting]) != 0)).any():
        return sorting, sorting[:0]
    return sorting, sorting[np.append(is_tied, False) | np.append(False, is_tied)]


def _places(keys: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... for the rows of each key, which lie together."""
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    every = np.arange(len(keys))
    places: np.ndarray = every - np.maximum.accumulate(np.where(is_first, every, 0))
    return places


def _last_ones(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Positions, ascending, of the last ``counts[n]`` of those with number ``n``; none if that is below 1."""
    order = np.argsort(numbers, kind="stable")[::-1]
    found: np.ndarray = np.sort(order[_places(numbers[order]) < counts[numbers[order]]])
    return found


def _write(
    table: PackedTable,
    keys: Keys,
    stored: StoredRows,
    key_of: np.ndarray,
    orders: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    data: np.ndarray,
) -> None:
    """Write the rows of all keys; those of a key lie together, ``key_of`` (int64) has the position of each row's."""
    counts = np.bincount(key_of, minlength=len(keys))
    written = np.flatnonzero((counts > 0) | (stored.counts > 0))
    counts = counts[written]
    there = np.flatnonzero(counts)
    made = packed_rows(counts[there], orders, starts, lengths, data)
    value_starts, value_lengths = np.zeros((2, len(written)), dtype=np.int64)
    value_starts[there], value_lengths[there] = made.starts, made.lengths
    values = PackedValues(made.data, value_starts, value_lengths)
    table.write_values(keys.hashes, keys.column, written, values)
