"""Aggregates over a changelog, as a changelog: vectorised for the keys of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import Json, Operator, OperatorContext
from weir.errors import StateMismatchError, WeirError
from weir.operators.aggregation.columns import (
    array_of,
    as_numbers,
    numbers,
    rows_that_count,
)
from weir.operators.aggregation.fold import Conditions
from weir.operators.keyed.changelog_totals import KEEPS_VALUES, Totals, TotalsForm
from weir.operators.keyed.changelog_values import kept_values, of_values
from weir.operators.keyed.every_version import Caused, told_of
from weir.operators.keyed.state_codec import differing, kept_snapshots, keyed_snapshot
from weir.rows.change_codes import (
    CHANGE_VALUES,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    adds_rows,
    change_codes,
)
from weir.rows.changes import CHANGE_FIELD
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.aggregate_functions import stored_function
from weir.specs.arrow_form import arrow_form
from weir.specs.canonical import canonical_expression
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.specs.keyed import Aggregate
from weir.state.handles.block import Keys
from weir.state.packed import PackedValues
from weir.state.tables.values.packed_table import PackedTable


class ChangelogAggregateOperator(Operator):
    """Count, sum, mean, min, max and quantiles of the rows that are there, one row for each key.

    Input: a changelog. Output: the columns of ``ChangelogAggregateSpec.output_schema``, then both time columns, those
    of the key's last row in the batch. A batch tells each key once: its first result, the results before and after, or
    that the key's last row went. Nulls are skipped; an aggregate without values is null, a count is 0.
    """

    knows_rows_by_time = True

    def __init__(self, spec: ChangelogAggregateSpec) -> None:
        self._spec = spec
        self._set_sums([False] * len(spec.aggregates))
        self._conditions = Conditions(spec.aggregates)

    def _codec_of(self, context: OperatorContext) -> dict[str, Json]:
        schema, given = context.schema, context.input_schema
        assert schema is not None
        # A mean is a float of whichever numbers it is made: their sum is kept as they are.
        numbers = {} if given is None else {"numbers": _number_forms(self._spec.aggregates, given)}
        return numbers | {
            "keys": [[name, arrow_form(schema.field(name).type)] for name in self._spec.key_columns],
            "aggregates": [
                [
                    stored_function(each),
                    each.column,
                    arrow_form(schema.field(each.output).type),
                    _condition(each),
                ]
                for each in self._spec.aggregates
            ],
            "outputs": [each.output for each in self._spec.aggregates],
            # What was told is taken back as it was.
            "told": [[each.function, *each.parameters] for each in self._spec.aggregates],
        }

    def check_restored(self, context: OperatorContext) -> None:
        """Check that the restored state has the codec of today's schema, as :class:`Operator` asks."""
        assert context.schema is not None
        needed = self._codec_of(context)
        for value in kept_snapshots(context, self._spec.kind).values():
            stored, wanted = value["codec"], needed
            for part in ("numbers", "told"):
                if part not in stored or part not in needed:
                    # Older checkpoints do not say.
                    stored, wanted = ({**codec, part: None} for codec in (stored, wanted))
            # Older checkpoints have no names, and conditions as a version of Polars showed them.
            is_same = stored == (wanted if "outputs" in stored else _older(wanted, self._spec))
            if not is_same:
                then, now = differing(stored, wanted)
                raise StateMismatchError(
                    f"step {context.operator_name!r}: the checkpoint's aggregates are of {then}, the job now needs "
                    f"{now}; write them as they were and in the same order, start without the checkpoint, or "
                    "give the step another name if it may begin empty"
                )

    def open(self, context: OperatorContext) -> None:
        """Open the state.

        Raises:
            StateError: there is no store.
            StateMismatchError: a checkpoint's state cannot be read with this spec.
        """
        assert context.schema is not None
        self._fields = [context.schema.field(each.output) for each in self._spec.aggregates]
        self.check_restored(context)
        self._codec = self._codec_of(context)
        self._table: PackedTable = declared_tables(context).packed("totals")
        self._max_parallelism = context.max_parallelism

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the changes of the batch change.

        Raises:
            InputError: a value of ``_change`` is unknown.
            StateError: the store cannot be read or written.
            WeirError: a value does not fit 64 bits, or a sum of integers passes them.
        """
        self._set_sums(_float_columns(self._spec.aggregates, batch.schema))
        yield from told_of(batch, self._keys, self._changed, every_version=self._spec.every_version)

    def _keys(self, batch: pa.RecordBatch) -> Keys:
        return keys_of(batch, self._spec.key_columns, self._max_parallelism)

    def _changed(self, batch: pa.RecordBatch) -> Iterator[Caused]:
        """What the changes change together."""
        keys = self._keys(batch)
        distinct = keys.distinct
        stored = self._table.read_values(distinct.hashes, distinct.column)
        before = self._form.read(stored)
        after = before.copy()
        self._add(batch, keys.inverse, after)
        self._table.write_values(distinct.hashes, distinct.column, *self._form.written(stored, after))
        yield from self._told(batch, keys.last_rows, before, after)

    def _set_sums(self, sums_are_floats: list[bool]) -> None:
        self._sums_are_floats = sums_are_floats
        self._form = TotalsForm(self._spec.aggregates, sums_are_floats)

    def _add(self, batch: pa.RecordBatch, inverse: np.ndarray, totals: Totals) -> None:
        signs = np.where(adds_rows(change_codes(batch)), 1, -1).astype(np.int64)
        np.add.at(totals.rows, inverse, signs)
        masks = self._conditions.masks(batch)
        for index, (aggregate, mask) in enumerate(zip(self._spec.aggregates, masks, strict=True)):
            values, valid = self._values(batch, aggregate, mask)
            keys, own = inverse, signs
            if len(valid):
                taken = np.flatnonzero(valid)
                keys, own = inverse[taken], signs[taken]
                values = values[taken] if values is not None else None
            np.add.at(totals.counts[:, index], keys, own)
            if values is None:
                continue
            if aggregate.function in KEEPS_VALUES:
                self._add_values(totals.values[index], keys, values, own)
            elif self._sums_are_floats[index]:
                self._add_floats(totals, index, keys, values, own)
            else:
                _add_integers(aggregate, totals.sums[:, index], keys, values, own)

    def _add_floats(
        self, totals: Totals, index: int, keys: np.ndarray, values: np.ndarray, signs: np.ndarray
    ) -> None:
        """Add floats to sums; those that are not finite are counted, because no sum could be rid of them."""
        finite = np.isfinite(values)
        if not finite.all():
            counts = totals.not_finite[:, self._form.float_sums.index(index)]
            for kind, found in enumerate((np.isnan(values), np.isposinf(values), np.isneginf(values))):
                np.add.at(counts[:, kind], keys[found], signs[found])
            keys, values, signs = keys[finite], values[finite], signs[finite]
        np.add.at(totals.sums[:, index].view(np.float64), keys, values * signs)

    def _values(
        self, batch: pa.RecordBatch, aggregate: Aggregate, mask: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Values of a column (None: only their number counts), and which rows count (of length 0: all)."""
        column = None if aggregate.column is None else batch.column(aggregate.column)
        if aggregate.function == "count" or column is None:
            return None, mask if column is None else rows_that_count(column, mask)
        if aggregate.function in KEEPS_VALUES:
            return kept_values(aggregate, column, mask)
        target = pa.int64() if pa.types.is_integer(column.type) else pa.float64()
        return numbers(aggregate, column, mask, target)

    @staticmethod
    def _add_values(
        pairs: list[tuple[np.ndarray, np.ndarray]], keys: np.ndarray, values: np.ndarray, signs: np.ndarray
    ) -> None:
        """Add values of keys to those that each has."""
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        found, firsts = np.unique(keys[order], return_index=True)
        for key, rows in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            old_values, old_counts = pairs[key]
            merged, places = np.unique(
                np.concatenate([old_values.view(values.dtype), values[rows]]), return_inverse=True
            )
            counts = np.zeros(len(merged), dtype=np.int64)
            np.add.at(counts, places, np.concatenate([old_counts, signs[rows]]))
            stays = counts != 0
            pairs[key] = merged[stays].view(np.int64), counts[stays]

    # --- the result ---

    def results_of(self, values: list[bytes], schema: pa.Schema, given: pa.Schema) -> list[pa.Array]:
        """Return the columns of the aggregates for a question, from an operator that is not open.

        Args:
            values: of keys in the store.
            schema: of the step's output.
            given: of its input.
        """
        aggregates = self._spec.aggregates
        self._fields = [schema.field(each.output) for each in aggregates]
        self._set_sums(_float_columns(aggregates, given))
        return self._results(self._form.read(PackedValues.from_list(values)))

    def _results(self, totals: Totals) -> list[pa.Array]:
        """The columns of the aggregates."""
        found = []
        for index, (aggregate, field) in enumerate(zip(self._spec.aggregates, self._fields, strict=True)):
            counts = totals.counts[:, index]
            if aggregate.function == "count":
                found.append(pa.array(np.maximum(counts, 0)))
                continue
            valid = counts > 0
            if aggregate.function in KEEPS_VALUES:
                is_float = self._sums_are_floats[index]
                found.append(of_values(aggregate, field.type, totals.values[index], is_float=is_float))
                continue
            sums = np.ascontiguousarray(totals.sums[:, index])
            if self._sums_are_floats[index]:
                sums = _with_not_finite(
                    sums.view(np.float64), totals.not_finite[:, self._form.float_sums.index(index)]
                )
            if aggregate.function == "mean":
                sums = sums / np.where(valid, counts, 1)
            found.append(array_of(sums, valid))
        return found

    def _told(
        self, batch: pa.RecordBatch, last_rows: np.ndarray, before: Totals, after: Totals
    ) -> Iterator[Caused]:
        old, new = self._results(before), self._results(after)
        was, is_now = before.rows > 0, after.rows > 0
        differs = np.zeros(len(was), dtype=bool)
        for left, right in zip(old, new, strict=True):
            differs |= ~_equal(left, right)
        tells_before = was & (~is_now | differs)
        tells_after = is_now & (~was | differs)
        # The row before a change, then the one after it, key by key.
        keys = np.repeat(np.arange(len(was)), 2)
        told = np.flatnonzero(np.stack([tells_before, tells_after], axis=1).ravel())
        if not len(told):
            return
        changes = np.stack(
            [np.where(is_now, UPDATE_BEFORE, DELETE), np.where(was, UPDATE_AFTER, INSERT)], axis=1
        ).ravel()[told]
        keys, is_after = keys[told], told % 2
        causes = last_rows[keys]
        rows = pa.array(causes)
        names = [*self._spec.key_columns]
        columns = [batch.column(name).take(rows) for name in names]
        fields = [batch.schema.field(name) for name in names]
        places = pa.array(keys + is_after * len(was))
        for left, right, field in zip(old, new, self._fields, strict=True):
            columns.append(pa.concat_arrays([left, right]).take(places))
            fields.append(field)
        columns.append(CHANGE_VALUES.take(pa.array(changes)))
        fields.append(CHANGE_FIELD)
        for field in batch.schema:
            if field.name in SYSTEM_COLUMNS:
                columns.append(batch.column(field.name).take(rows))
                fields.append(field)
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), causes

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the state mean."""
        return keyed_snapshot(self._spec.kind, self._codec)


def _condition(aggregate: Aggregate) -> str:
    return "" if aggregate.condition is None else canonical_expression(aggregate.condition)


def _older(codec: dict[str, Json], spec: ChangelogAggregateSpec) -> dict[str, Json]:
    shown = [
        [*told[:3], str(each.condition)]
        for told, each in zip(codec["aggregates"], spec.aggregates, strict=True)
    ]
    return {name: codec[name] for name in codec if name != "outputs"} | {"aggregates": shown}


def _float_columns(aggregates: Sequence[Aggregate], schema: pa.Schema) -> list[bool]:
    """Return whether the values of each are summed as floats; the mean of integers is that of their exact sum."""
    return [
        each.column is not None and pa.types.is_floating(schema.field(each.column).type)
        for each in aggregates
    ]


def _number_forms(aggregates: Sequence[Aggregate], schema: pa.Schema) -> list[Json]:
    """Return as which numbers the values of each are kept; null where only their number counts."""
    forms = zip(aggregates, _float_columns(aggregates, schema), strict=True)
    return [
        None if each.function in ("count", "quantile") else "float64" if is_float else "int64"
        for each, is_float in forms
    ]


def _add_integers(
    aggregate: Aggregate, sums: np.ndarray, keys: np.ndarray, values: np.ndarray, signs: np.ndarray
) -> None:
    """Add to the sums of keys; int64.

    Raises:
        WeirError: one passes 64 bits.
    """
    if not len(values):
        return
    # Integers wrap around, floats tell whether they did.
    about = values.astype(np.float64)
    highest = np.abs(about).max() * len(values) + np.abs(sums.astype(np.float64)).max()
    wanted = sums.astype(np.float64) if highest >= 2.0**62 else None
    np.add.at(sums, keys, values * signs)
    if wanted is None:
        return
    np.add.at(wanted, keys, about * signs)
    if (np.abs(wanted - sums.astype(np.float64)) > 2.0**62).any():
        raise WeirError(
            f"aggregate {aggregate.output!r} ({aggregate.function} of {aggregate.column!r}): a key's sum passes 64 "
            "bits; cast the column to float64 first"
        )


def _with_not_finite(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of all values.

    Args:
        sums: of those that are finite; float64, shape (keys,).
        counts: how many are NaN, infinity and minus infinity; shape (keys, 3). Below 0: taken away before they came.
    """
    nan, above, below = (counts[:, kind] > 0 for kind in range(3))
    if not (nan.any() or above.any() or below.any()):
        return sums
    return np.select([nan | (above & below), above, below], [np.nan, np.inf, -np.inf], sums)


def _equal(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Where both are equal, or both null; bits of floats are compared, so that a NaN is itself."""
    valid = left.is_valid().to_numpy(zero_copy_only=False)
    both = valid == right.is_valid().to_numpy(zero_copy_only=False)
    filled = [as_numbers(array).fill_null(0).to_numpy() for array in (left, right)]
    bits = [np.ascontiguousarray(array).view(np.int64) for array in filled]
    same: np.ndarray = both & ((bits[0] == bits[1]) | ~valid)
    return same
