"""Keyed operators: built-in running aggregates, and the base of users' own keyed operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir import keys as weir_keys
from weir.errors import StateError
from weir.operators import aggregate_kernels as kernels
from weir.operators.aggregates import Accumulator, cell_count, make_accumulators
from weir.operators.base import Json, Operator, OperatorContext
from weir.operators.state_codec import (
    AggregateCodec,
    aggregate_codec,
    check_aggregate_codecs,
    check_user_codec,
    codec_from_json,
    kept_snapshots,
    keyed_snapshot,
)
from weir.records import KEY_HASH_COLUMN, user_columns
from weir.specs import KeyedAggregateSpec, KeyedProcessSpec
from weir.state import layout
from weir.state.api import StateBackend, StoreStats
from weir.state.cache import WriteBackCache
from weir.state.cached_entries import CachedEntries
from weir.state.capture import Capture
from weir.state.columnar import ColumnarState

__all__ = ["KeyedAggregateOperator", "KeyedProcess", "KeyedProcessOperator", "KeyedState", "row_hashes"]


def row_hashes(batch: pa.RecordBatch, keys: weir_keys.KeyColumn) -> np.ndarray:
    """The ``_key_hash`` column (behind a HASH exchange), else the hashes of ``keys``; uint64, shape (rows,)."""
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    if index < 0:
        return weir_keys.hash_keys(keys)
    hashes: np.ndarray = batch.column(index).to_numpy(zero_copy_only=True)
    return hashes


def _open_backend(context: OperatorContext) -> StateBackend:
    if context.state is None:
        raise StateError(f"operator {context.operator_name!r} keeps keyed state, but its stage has no store")
    return context.state


class KeyedAggregateOperator(Operator):
    """Count, sum, min, max and mean per key, kept in :class:`ColumnarState`.

    Input: any columns, the key columns among them. Output: the user columns, one column per aggregate, the system
    columns. ``per_event``: every row, with the values after that row. ``per_batch``: the last row of each key
    of the batch, with the final values (a batch whose keys do not fit in the cache counts as several).
    Nulls are skipped; an aggregate without a value so far is null, a count is 0.

    State survives restarts as long as key columns and aggregates stay the same; see ``weir.operators.state_codec``.
    """

    def __init__(self, spec: KeyedAggregateSpec) -> None:
        #: Keys met by deployments before this one.
        self._keys_before = 0
        self._spec = spec
        self._backend: StateBackend | None = None
        self._state: ColumnarState | None = None
        self._keys_at_close = 0
        self._input_schema: pa.Schema | None = None
        self._accumulators: list[Accumulator] = []
        #: Where the aggregates stand: behind the user columns.
        self._user_columns = 0
        self._last = np.empty(0, dtype=np.int32)

    def open(self, context: OperatorContext) -> None:
        """Take the stage's store.

        Raises:
            StateError: there is none, or a checkpoint's state cannot be read with this spec.
        """
        self._step = context.operator_name
        kept = kept_snapshots(context, self._spec.kind)
        self._stored_codecs = {codec_from_json(value["codec"]) for value in kept.values()}
        self._codec = aggregate_codec(self._spec, None)
        check_aggregate_codecs(self._step, self._stored_codecs, self._codec)
        # Each key is counted once over all subtasks: what subtasks counted that are gone counts for the lowest one.
        indices = context.subtask_indices or tuple(range(context.parallelism))
        lowest = context.subtask_index == min(indices)
        self._keys_before = sum(
            value["distinct_keys"]
            for index, value in kept.items()
            if index == context.subtask_index or (lowest and index not in indices)
        )
        self._backend = _open_backend(context)
        self._state = ColumnarState(
            self._backend,
            context.state_id,
            cell_count(self._spec.aggregates),
            context.state_cache_bytes,
            context.max_parallelism,
        )

    @property
    def state(self) -> ColumnarState:
        """The accumulators, for metrics and for rescaling.

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
            WeirError: an integer sum passes 64 bits.
        """
        state = self.state
        if self._input_schema is None or not self._input_schema.equals(batch.schema):
            self._input_schema = batch.schema
            codec = aggregate_codec(self._spec, batch.schema)
            check_aggregate_codecs(self._step, self._stored_codecs, codec)
            self._codec = codec
            self._accumulators = make_accumulators(self._spec.aggregates, batch.schema)
            self._user_columns = len(user_columns(batch.schema))
        keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        hashes = row_hashes(batch, keys)
        for start, stop, slots in state.pieces(hashes, keys.data, keys.offsets):
            piece = batch.slice(start, stop - start)
            columns = [
                accumulator.update(state, slots, self._column(piece, accumulator))
                for accumulator in self._accumulators
            ]
            if self._spec.emit == "per_batch":
                rows = pa.array(self._last_rows(slots))
                piece, columns = piece.take(rows), [column.take(rows) for column in columns]
            yield self._with_columns(piece, columns)

    def _column(self, piece: pa.RecordBatch, accumulator: Accumulator) -> pa.Array | None:
        name = accumulator.aggregate.column
        return None if name is None else piece.column(name)

    def _last_rows(self, slots: np.ndarray) -> np.ndarray:
        if self._last.size < self.state.capacity:
            self._last = np.empty(self.state.capacity, dtype=np.int32)
        rows = np.empty(len(slots), dtype=np.int32)
        return rows[: kernels.last_rows(slots, self._last, rows)]

    def _with_columns(self, piece: pa.RecordBatch, columns: list[pa.Array]) -> pa.RecordBatch:
        """User columns, aggregates, system columns."""
        for index, (accumulator, column) in enumerate(zip(self._accumulators, columns, strict=True)):
            field = pa.field(accumulator.aggregate.output, column.type)
            piece = piece.add_column(self._user_columns + index, field, column)
        return piece

    def flush(self) -> None:
        """Write changed accumulators to the store and make them durable."""
        self.state.flush()
        if self._backend is not None:
            self._backend.flush()

    def flush_part(self, share: float) -> bool:
        """Write a share of the changed accumulators; True: all of them are durable."""
        if not self.state.flush_part(share):
            return False
        if self._backend is not None:
            self._backend.flush()
        return True

    def capture(self) -> Capture | None:
        """Note changed accumulators, for another thread to write."""
        return self.state.capture()

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes in the store mean; the accumulators themselves are there, written by :meth:`capture`."""
        known = [codec for codec in self._stored_codecs if _knows_types(codec)]
        codec = self._codec if _knows_types(self._codec) or not known else known[0]
        return keyed_snapshot(self._spec.kind, codec.to_json(), distinct_keys=self.distinct_keys)

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write changed accumulators of these key groups; they stay cached."""
        self.state.flush_groups(groups)

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write changed accumulators of these key groups and forget them."""
        self.state.drop_groups(groups)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Read accumulators of these key groups from the store."""
        self.state.adopt_groups(groups)

    def copy_groups(self, groups: Iterable[int], count_max: int) -> CachedEntries:
        """The accumulators of these key groups that are cached."""
        return self.state.copy_groups(groups, count_max)

    def good_copies(self, groups: Iterable[int]) -> list[int]:
        """Those of these key groups whose copy is good."""
        return self.state.good_copies(groups)

    def changes_since_copy(self, groups: Iterable[int]) -> CachedEntries:
        """Accumulators that were used since they were copied."""
        return self.state.changes_since_copy(groups)

    def warm_up(self, entries: CachedEntries, groups: Iterable[int]) -> bool:
        """Cache accumulators that came from the owner."""
        return self.state.warm_up(entries, groups)

    def keep_groups(self, groups: Iterable[int]) -> None:
        """All accumulators that the owner had cached have come."""
        self.state.keep_groups(groups)

    def clear_groups(self, groups: Iterable[int]) -> None:
        """Forget accumulators of groups that are not owned."""
        self.state.clear_groups(groups)

    def close(self) -> None:
        """Forget the cache without writing; the task manager flushes before and closes the store after."""
        self._keys_at_close = self.distinct_keys
        self._state = None


def _knows_types(codec: AggregateCodec) -> bool:
    return None not in {item[-1] for item in (*codec.keys, *codec.aggregates)}


class KeyedState:
    """A user operator's view of its own state: bytes under user keys, cached, written back at flush.

    ``groups`` arguments are the rows' key groups (uint16, see ``weir.keys.key_groups``), one per key.
    """

    def __init__(self, backend: StateBackend, state_id: int, cache_bytes: int, max_parallelism: int) -> None:
        self._cache = WriteBackCache(backend, cache_bytes)
        self._state_id = state_id
        self.max_parallelism = max_parallelism

    def groups(self, hashes: np.ndarray) -> np.ndarray:
        """Key groups of key hashes; uint16, as long as ``hashes``."""
        return weir_keys.key_groups(hashes, self.max_parallelism)

    def get_many(self, groups: np.ndarray, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where there is none."""
        return self._cache.get_many(layout.encode_keys(groups, self._state_id, keys))

    def put_many(self, groups: np.ndarray, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write pairs; of a repeated key the last one wins."""
        self._cache.put_many(layout.encode_keys(groups, self._state_id, keys), values)

    def delete_many(self, groups: np.ndarray, keys: Sequence[bytes]) -> None:
        """Delete keys; absent ones are ignored."""
        self._cache.delete_many(layout.encode_keys(groups, self._state_id, keys))

    def scan_group(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        """All user keys and values of one key group, in key order."""
        prefix = layout.key_prefix(group, self._state_id)
        return ((key[len(prefix) :], value) for key, value in self._cache.scan_prefix(prefix))

    def flush(self) -> None:
        """Write changes to the store and make them durable."""
        self._cache.flush()

    def capture(self) -> Capture | None:
        """Note all changes, for another thread to write; None: there are none."""
        return self._cache.capture()

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write the changes of these key groups; they stay cached."""
        self._cache.flush_prefixes(self._prefixes(groups))

    def drop_groups(self, groups: Iterable[int]) -> None:
        """Write the changes of these key groups, then forget them: they have a new owner."""
        prefixes = self._prefixes(groups)
        self._cache.flush_prefixes(prefixes)
        self._cache.leave_prefixes(prefixes)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Read these key groups from the store: what is cached of them is older."""
        self._cache.return_to_prefixes(self._prefixes(groups))

    def hot_keys(self, groups: Iterable[int], count_max: int) -> list[bytes]:
        """State keys of these key groups that were used last, the latest first."""
        return self._cache.recent_keys(self._prefixes(groups), count_max)

    def _prefixes(self, groups: Iterable[int]) -> frozenset[bytes]:
        return frozenset(layout.state_prefix(group, self._state_id) for group in groups)

    def stats(self) -> StoreStats:
        """Counters and memory of the cache."""
        return self._cache.stats()


class KeyedProcess(Operator):
    """Base of users' keyed operators: subclass it, override :meth:`process`, use :attr:`keyed_state`.

    Everything below ``open`` is as in :class:`weir.operators.base.Operator`; an overridden ``open`` calls
    ``super().open(context)`` first.

    Only what is in ``keyed_state`` survives a restart and moves with its keys; attributes of the object are lost.
    Whoever changes what the bytes of values mean gives ``state_codec`` another name, and lists in ``readable_codecs``
    the older ones that the operator can still read; state of any other codec is refused at the start from a checkpoint.
    """

    #: Name of the form of the values that are written.
    state_codec: ClassVar[str] = "1"
    #: Names of older forms that are understood.
    readable_codecs: ClassVar[tuple[str, ...]] = ()

    _keyed_state: KeyedState | None = None
    _key_columns: tuple[str, ...] = ()

    def open(self, context: OperatorContext) -> None:
        """Take the stage's store.

        Raises:
            StateError: there is none.
        """
        self._keyed_state = KeyedState(
            _open_backend(context), context.state_id, context.state_cache_bytes, context.max_parallelism
        )

    def bind(self, key_columns: tuple[str, ...]) -> None:
        """Tell it the columns that ``key_by`` named; called by :class:`KeyedProcessOperator` before ``open``."""
        self._key_columns = key_columns

    @property
    def keyed_state(self) -> KeyedState:
        """This operator's state.

        Raises:
            StateError: the operator is not open.
        """
        if self._keyed_state is None:
            raise StateError("this keyed operator is not open; does its open() call super().open(context)?")
        return self._keyed_state

    def keys(self, batch: pa.RecordBatch) -> tuple[np.ndarray, list[bytes]]:
        """Key groups (uint16) and canonical key bytes of the batch's rows, for calls of :attr:`keyed_state`."""
        column = weir_keys.key_bytes(batch, self._key_columns)
        data, offsets = column.data.tobytes(), column.offsets.tolist()
        keys = [data[start:stop] for start, stop in pairwise(offsets)]
        return self.keyed_state.groups(row_hashes(batch, column)), keys

    def flush(self) -> None:
        """Write changed state to the store and make it durable."""
        self.keyed_state.flush()

    def capture(self) -> Capture | None:
        """Note changed state, for another thread to write; with a ``flush`` of one's own, that is called instead."""
        if type(self).flush is not KeyedProcess.flush:
            return super().capture()
        return self.keyed_state.capture()

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write changed state of these key groups; it stays cached."""
        self.keyed_state.flush_groups(groups)

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write changed state of these key groups and forget it."""
        self.keyed_state.drop_groups(groups)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Read the state of these key groups from the store."""
        self.keyed_state.adopt_groups(groups)

    def hot_keys(self, groups: Iterable[int], count_max: int) -> list[bytes]:
        """The state keys of these key groups that were used last."""
        return self.keyed_state.hot_keys(groups, count_max)


class KeyedProcessOperator(Operator):
    """Runs a user's :class:`KeyedProcess` in a subtask."""

    def __init__(self, spec: KeyedProcessSpec) -> None:
        self._spec = spec
        self._user = spec.factory()
        if isinstance(self._user, KeyedProcess):
            self._user.bind(spec.key_columns)

    @property
    def user(self) -> Operator:
        """The user's operator, for metrics and for rescaling."""
        return self._user

    def open(self, context: OperatorContext) -> None:
        """Open the user's operator; it finds in ``context.restored`` what its own ``snapshot`` gave.

        Raises:
            StateError: it cannot read the checkpoint's state.
        """
        kept = kept_snapshots(context, self._spec.kind)
        for value in kept.values():
            readable = getattr(self._user, "readable_codecs", ())
            check_user_codec(context.operator_name, value["codec"], self._codec(), readable)
        restored = {index: value["user"] for index, value in kept.items()}
        self._user.open(replace(context, restored=restored))

    def _codec(self) -> dict[str, Json]:
        return {
            "name": getattr(self._user, "state_codec", KeyedProcess.state_codec),
            "keys": list(self._spec.key_columns),
        }

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a batch."""
        return self._user.process(batch)

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """What the user's operator makes of a watermark."""
        return self._user.on_watermark(time_ms)

    def flush(self) -> None:
        """Make the user's state durable."""
        self._user.flush()

    def flush_part(self, share: float) -> bool:
        """Make a share of the user's state durable."""
        return self._user.flush_part(share)

    def capture(self) -> Capture | None:
        """Note the user's changed state, for another thread to write."""
        return self._user.capture()

    def snapshot(self, checkpoint_id: int) -> Json:
        """The codec of the user's state, and what the user's operator gives."""
        return keyed_snapshot(self._spec.kind, self._codec(), user=self._user.snapshot(checkpoint_id))

    def commit(self, checkpoint_id: int) -> None:
        """Tell the user's operator."""
        self._user.commit(checkpoint_id)

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write the user's changed state of these key groups."""
        self._user.flush_groups(groups)

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write the user's state of these key groups and forget it."""
        self._user.release_groups(groups)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Let the user's operator take these key groups."""
        self._user.adopt_groups(groups)

    def hot_keys(self, groups: Iterable[int], count_max: int) -> list[bytes]:
        """The user's state keys that were used last."""
        return self._user.hot_keys(groups, count_max)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """What the user's operator emits at the end."""
        return self._user.finish()

    def close(self) -> None:
        """Close the user's operator."""
        self._user.close()
