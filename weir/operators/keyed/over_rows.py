"""Values over the rows of a key before a row, in the order of event time; vectorised for the rows that leave together.

Rows wait (:class:`weir.operators.time_order.TimeOrder`) until the watermark has passed their time, and leave in the
order of event time, those of one time in that of further columns. What later rows look back at, and running values, are
one value of the key, ``weir.state.handles.stored_rows``: as many rows as the longest frame has, with the running values
as of each.

A row that comes when the watermark has passed its time is late: rows that follow it have left. It is dropped and
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pyarrow as pa

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import Json, Operator, OperatorContext
from weir.errors import WeirError
from weir.keys import hashing as weir_keys
from weir.operators.keyed import over_frames
from weir.operators.keyed.over_frames import Running
from weir.operators.keyed.row_ranks import row_ranks
from weir.operators.keyed.state_codec import (
    check_row_codecs,
    counted_before,
    fits_key_forms,
    kept_snapshots,
    key_forms,
    keyed_snapshot,
)
from weir.operators.time_order import TimeOrder
from weir.rows import row_watermarks
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    KEY_HASH_COLUMN,
    SYSTEM_COLUMNS,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    int64_column,
)
from weir.rows.row_watermarks import AS_OF_COLUMN
from weir.specs.arrow_form import arrow_form
from weir.specs.over import BEFORE_STATE, WAITING_STATE, OverColumn, OverSpec
from weir.state.handles.block import Keys
from weir.state.handles.stored_rows import StoredRows, encoded_rows, read_rows, write_rows
from weir.state.tables.values.value_table import ValueTable

#: Rows that may be read at a time: keys of a batch, by the rows that each may have.
_ROWS_AT_A_TIME = 200_000


class OverOperator(Operator):
    """The operator of the module."""

    def __init__(self, spec: OverSpec) -> None:
        self._spec = spec
        self._rows_before = max(
            (each.preceding or 0 for each in spec.columns if each.frame == "rows"), default=0
        )
        self._time_before = max(
            (each.preceding or 0 for each in spec.columns if each.frame == "range"), default=-1
        )
        self._names = spec.looked_at
        self._outputs = {each.output for each in spec.columns}
        self._watermark_ms = WATERMARK_MIN_MS
        #: Dropped, also before the checkpoint that the job started from; metrics have it.
        self.late_rows = 0
        self._max_parallelism = 0
        self._codec: dict[str, Json] = {}
        self._types: list[pa.DataType] = []

    # --- opening ---

    def _codec_of(self, schema: pa.Schema) -> dict[str, Json]:
        spec = self._spec
        return {
            "keys": list(spec.key_columns),
            "key_forms": key_forms(schema, spec.key_columns),
            # Rows that wait have all columns.
            "types": {
                field.name: arrow_form(field.type) for field in schema if field.name not in self._outputs
            },
            "order": [spec.time, *(asdict(each) for each in spec.order)],
            "columns": [
                [*asdict(each).values(), arrow_form(schema.field(each.output).type)] for each in spec.columns
            ],
            "before": [[name, arrow_form(schema.field(name).type)] for name in self._names],
        }

    def check_restored(self, context: OperatorContext) -> None:
        """Refuse the state of other columns; see :class:`Operator`."""
        assert context.schema is not None
        needed = self._codec_of(context.schema)
        types: Mapping[str, Json] = needed["types"]
        kept: dict[int, Json] = {}
        for index, value in kept_snapshots(context, self._spec.kind).items():
            codec: dict[str, Json] = value["codec"]
            # Older checkpoints do not say of which types keys and rows that wait are.
            stored: Mapping[str, Json] = codec.get("types", types)
            had = {name: stored.get(name) for name in types}
            told = {**codec, "types": had}
            if fits_key_forms(codec.get("key_forms", []), key_forms(context.schema, self._spec.key_columns)):
                told["key_forms"] = needed["key_forms"]
            kept[index] = {**value, "codec": told}
        check_row_codecs(replace(context, restored=kept), self._spec.kind, needed)

    def open(self, context: OperatorContext) -> None:
        """Open the states.

        Raises:
            StateError: there is no store, or a checkpoint's state cannot be read with this spec.
        """
        schema = context.schema
        assert schema is not None
        self.check_restored(context)
        # Older checkpoints do not say it.
        kept = {
            index: {"late_rows": 0, **value}
            for index, value in kept_snapshots(context, self._spec.kind).items()
        }
        self.late_rows = counted_before(context, kept, "late_rows")
        self._step = context.operator_name
        self._schema = schema
        self._codec = self._codec_of(schema)
        self._types = self._spec.kept_types(schema)
        self._before: ValueTable = declared_tables(context).values(BEFORE_STATE)
        self._max_parallelism = context.max_parallelism
        self._waiting = TimeOrder(context, WAITING_STATE)
        self._waiting.open()

    # --- rows come in ---

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows wait for their time; nothing leaves.

        Raises:
            StateError: the store cannot be read or written.
        """
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        in_time: np.ndarray = times_ms >= self._watermark_ms
        late_ms = row_watermarks.late_ms(batch, times_ms)
        if late_ms is not None:
            in_time &= late_ms == WATERMARK_MIN_MS
        batch = row_watermarks.without_column(batch)
        if not in_time.all():
            self.late_rows += int((~in_time).sum())
            batch, times_ms = batch.filter(pa.array(in_time)), times_ms[in_time]
        if batch.num_rows:
            if batch.schema.get_field_index(KEY_HASH_COLUMN) < 0:
                column = weir_keys.key_bytes(batch, self._spec.key_columns)
                batch = batch.append_column(KEY_HASH_COLUMN, pa.array(weir_keys.hash_keys(column)))
            # A row waits for the watermark that is above its time.
            self._waiting.put(batch.append_column(AS_OF_COLUMN, pa.array(times_ms + 1)))
        return iter(())

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Rows leave whose time the watermark has passed.

        Raises:
            StateError: the store cannot be read or written.
        """
        self._watermark_ms = max(self._watermark_ms, time_ms)
        while (rows := self._waiting.take(time_ms, WATERMARK_MIN_MS)) is not None:
            yield self._told(rows)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Let all rows leave that wait."""
        yield from self.on_watermark(WATERMARK_MAX_MS)

    # --- rows leave ---

    def _told(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with their further columns; ``rows`` has all of each of its times."""
        times_ms = int64_column(rows, EVENT_TIME_COLUMN)
        ranks = np.zeros(rows.num_rows, dtype=np.int64)
        if self._spec.order:
            ranks = row_ranks(
                pl.DataFrame(rows.select([each.name for each in self._spec.order])), self._spec.order
            )
            rows = rows.take(pa.array(sorting := np.lexsort((ranks, times_ms))))
            times_ms, ranks = times_ms[sorting], ranks[sorting]
        keys = keys_of(rows, self._spec.key_columns, self._max_parallelism)
        keys_max = max(1, _ROWS_AT_A_TIME // max(1, self._rows_before))
        numbers, parts = list[np.ndarray](), list[list[pa.Array]]()
        for start in range(0, len(keys.distinct), keys_max):
            is_here = (keys.inverse >= start) & (keys.inverse < start + keys_max)
            # Those of a key together.
            found = np.flatnonzero(is_here)
            found = found[np.argsort(keys.inverse[found], kind="stable")]
            part = keys.distinct.take(np.arange(start, min(start + keys_max, len(keys.distinct))))
            parts.append(
                self._columns_of(part, keys.inverse[found] - start, rows.take(pa.array(found)), ranks[found])
            )
            numbers.append(found)
        back = pa.array(np.argsort(np.concatenate(numbers), kind="stable"))
        added = [
            pa.concat_arrays([part[at] for part in parts]).take(back) for at in range(len(self._spec.columns))
        ]
        return self._with(rows, added)

    def _with(self, rows: pa.RecordBatch, added: list[pa.Array]) -> pa.RecordBatch:
        """Rows as they leave: system columns come last."""
        outputs = dict(zip((each.output for each in self._spec.columns), added, strict=True))
        columns, fields = list[pa.Array](), list[pa.Field]()
        for field in self._schema:
            if field.name in outputs:
                columns.append(outputs[field.name])
                fields.append(field)
            elif field.name in rows.schema.names:
                columns.append(rows.column(field.name))
                fields.append(rows.schema.field(field.name))
        for field in rows.schema:
            if field.name in SYSTEM_COLUMNS:
                columns.append(rows.column(field.name))
                fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _columns_of(
        self, distinct: Keys, of_row: np.ndarray, rows: pa.RecordBatch, ranks: np.ndarray
    ) -> list[pa.Array]:
        """The further columns of rows.

        Args:
            distinct: keys, each once.
            of_row: of each row the position of its key in them; int64, ascending.
            rows: those of a key in their order.
            ranks: of rows of one time; int64.
        """
        state_keys = distinct.state_keys(self._before)
        stored = read_rows(self._before.get_stored(state_keys, will_write=True))
        count = len(stored.orders)
        old = stored.decoded(np.arange(count), self._types) if count else []
        keys = np.concatenate([stored.keys, of_row])
        order = np.argsort(keys, kind="stable")
        is_new = order >= count
        times = np.concatenate([stored.orders, self._times_of(rows)])[order]
        keys = keys[order]
        both = {
            name: _joined(old[at] if count else None, rows.column(name)).take(pa.array(order))
            for at, name in enumerate(self._names)
        }
        stops = _peer_stops(of_row, self._times_of(rows), ranks)
        made, carried = list[pa.Array](), list[Running]()
        for each in self._spec.columns:
            dtype = self._schema.field(each.output).type
            try:
                if each.function == "lag":
                    lagged = _lagged(both[str(each.column)], keys, each.preceding or 0)
                    made.append(lagged.filter(pa.array(is_new)))
                elif each.is_unbounded:
                    at = len(self._names) + 2 * len(carried)
                    before = _carried(stored, old[at : at + 2])
                    found, at_peers = _running(each, rows, of_row, before, stops)
                    carried.append(found)
                    made.append(over_frames.told(each, at_peers, dtype))
                else:
                    column = None if each.column is None else both[each.column]
                    values = over_frames.values_of(column, len(keys))
                    made.append(
                        over_frames.told(each, self._framed(each, values, keys, times, is_new, stops), dtype)
                    )
            except WeirError as error:
                raise WeirError(
                    f"step {self._step!r}: {each.output!r} ({each.function} of {each.column!r}): {error}"
                ) from error
        self._keep(state_keys, stored, old, keys, order, rows, carried)
        return made

    def _framed(
        self,
        each: OverColumn,
        values: over_frames.Values,
        keys: np.ndarray,
        times: np.ndarray,
        is_new: np.ndarray,
        stops: np.ndarray,
    ) -> Running:
        """An aggregate over so many rows, or ms, before each new row."""
        new = np.flatnonzero(is_new)
        assert each.preceding is not None
        if each.frame == "rows":
            starts = np.maximum(over_frames.key_starts(keys), np.arange(len(keys)) - each.preceding)[new]
            return over_frames.framed(each.function, values, starts, new + 1)
        starts = over_frames.range_starts(keys, times, each.preceding)[new]
        # The new rows of a key lie together, behind the others: its peers are as far from it as among new rows.
        ends = new + (stops - np.arange(len(stops)))
        return over_frames.framed(each.function, values, starts, ends)

    def _keep(
        self,
        state_keys: list[bytes],
        stored: StoredRows,
        old: list[pa.Array],
        keys: np.ndarray,
        order: np.ndarray,
        rows: pa.RecordBatch,
        carried: list[Running],
    ) -> None:
        """Write what later rows look back at: the last rows of each key, with the running values."""
        times = np.concatenate([stored.orders, self._times_of(rows)])[order]
        lasts = np.append(keys[1:] != keys[:-1], True)
        ends = np.flatnonzero(lasts)
        last = ends[np.cumsum(lasts) - lasts]
        stays = (last - np.arange(len(keys))) < max(1, self._rows_before)
        if self._time_before >= 0:
            stays |= times >= times[last] - self._time_before
        kept = order[stays]
        columns = [rows.column(name) for name in self._names]
        for each, found in zip(self._spec.running, carried, strict=True):
            running = found.counts if each.function == "count" else found.numbers
            numbers = pa.array(running).cast(self._types[len(columns)])
            columns += [numbers, pa.array(found.counts.astype(np.int64))]
        columns.append(rows.column(EVENT_TIME_COLUMN))
        taken = pa.array(kept)
        all_rows = [
            _joined(old[at] if old else None, column).take(taken) for at, column in enumerate(columns)
        ]
        encoded = encoded_rows(all_rows)
        counts = np.bincount(keys[stays], minlength=len(state_keys))
        starts, lengths = encoded.offsets[:-1].astype(np.int64), np.diff(encoded.offsets).astype(np.int64)
        values = write_rows(counts, times[stays], starts, lengths, encoded.data)
        self._before.write_stored(list(zip(state_keys, values, strict=True)), [])

    def _times_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """What "range" goes by; int64, shape (rows,)."""
        if self._spec.time is None:
            return int64_column(rows, EVENT_TIME_COLUMN)
        found: np.ndarray = rows.column(self._spec.time).view(pa.int64()).to_numpy(zero_copy_only=False)
        return found

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the state mean, and how many rows were late."""
        return keyed_snapshot(self._spec.kind, self._codec, late_rows=self.late_rows)


def _joined(old: pa.Array | None, new: pa.Array) -> pa.Array:
    return new if old is None else pa.concat_arrays([old.cast(new.type), new])


def _lagged(column: pa.Array, keys: np.ndarray, rows: int) -> pa.Array:
    """The value so many rows of the same key before; null where there are not so many."""
    every = np.arange(len(keys))
    before = every - rows
    found = before >= over_frames.key_starts(keys)
    return column.take(pa.array(np.where(found, before, 0), mask=~found))


def _carried(stored: StoredRows, columns: list[pa.Array]) -> tuple[Running, np.ndarray]:
    """A running value after the last stored row of each key that has some, and these keys."""
    keys = np.flatnonzero(stored.counts)
    if not columns:
        nothing = np.empty(0, dtype=np.int64)
        return Running(nothing, nothing), keys[:0]
    last = pa.array((stored.firsts + stored.counts - 1)[keys])
    numbers, count = (column.take(last).to_numpy(zero_copy_only=False) for column in columns)
    return Running(numbers, count), keys


def _running(
    each: OverColumn,
    rows: pa.RecordBatch,
    of_row: np.ndarray,
    before: tuple[Running, np.ndarray],
    stops: np.ndarray,
) -> tuple[Running, Running]:
    """An aggregate of all rows before, up to each row, and as it is told; ``before`` of :func:`_carried`."""
    values = over_frames.values_of(None if each.column is None else rows.column(each.column), rows.num_rows)
    found = over_frames.running(each.function, values, of_row, *before)
    if each.frame == "range":
        return found, Running(found.numbers[stops - 1], found.counts[stops - 1])
    return found, found


def _peer_stops(keys: np.ndarray, times_ms: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return of each row the one after the last of its key that is equal to it in the order."""
    differs = (keys[1:] != keys[:-1]) | (times_ms[1:] != times_ms[:-1]) | (ranks[1:] != ranks[:-1])
    ends = np.append(np.flatnonzero(differs) + 1, len(keys))
    stops: np.ndarray = ends[np.concatenate([[0], np.cumsum(differs)])] if len(keys) else ends[:0]
    return stops
