"""Operators that keep nothing: filter and with_columns by Polars expressions, and pass-through.

Expressions see only the columns that they name, so a string column is converted only where it is used. All
system columns of the input survive, also ``_key_hash``: rows stay where they are and the builder refuses to
replace a key column after ``key_by``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import AheadFilter, Operator, OperatorContext
from weir.errors import UserFunctionError
from weir.operators.stateless.quick_forms import QuickExpressions
from weir.operators.stateless.small_predicates import SmallPredicate, small_predicate
from weir.rows.frames import has_arrays, whole_rows
from weir.rows.records import KEY_HASH_COLUMN, SYSTEM_COLUMNS, system_schema, taken
from weir.rows.schemas import small_type
from weir.specs import FilterSpec, PassThroughSpec, SelectSpec, UnionSpec, WithColumnsSpec
from weir.specs.row_wise import has_selector, named_columns

#: Of columns that come back from Polars as what they were; times are, too, but for seconds.
_KEPT_TYPES = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32()),
    }
)


class ExpressionInput:
    """Turns record batches into frames of the columns that some expressions read; zero-copy for numbers."""

    def __init__(self, expressions: Sequence[pl.Expr]) -> None:
        """Find the columns; selectors such as ``pl.all()`` see every user column, and no other."""
        self._all_columns = any(has_selector(e) for e in expressions)
        self._names = list(dict.fromkeys(name for e in expressions for name in named_columns(e)))
        self._has_arrays: bool | None = None

    def frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """A frame with as many rows as the batch, at least one column."""
        if self._all_columns:
            names = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
        else:
            names = self._names or [SYSTEM_COLUMNS[0]]
        chosen = batch.select(names)
        if self._has_arrays is None:
            # Types do not change from batch to batch, and looking at them takes longer than a small frame.
            self._has_arrays = has_arrays(chosen.schema)
        # Four times faster than pl.from_arrow for small batches.
        return pl.DataFrame(whole_rows(chosen) if self._has_arrays else chosen)


class FilterOperator(AheadFilter):
    """Keeps rows for which the predicate is true. Output schema: the input's."""

    def __init__(self, spec: FilterSpec) -> None:
        self._predicate = spec.predicate
        self._quick = QuickExpressions([spec.predicate])
        self._input = ExpressionInput([spec.predicate])
        self._name = spec.kind
        self._schema: pa.Schema | None = None
        self._small: SmallPredicate | None = None

    def open(self, context: OperatorContext) -> None:
        """Remember the step's name for messages."""
        self._name = context.operator_name

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Zero or one batch; the very input if every row is kept."""
        known = self.kept_ahead(batch)
        if known is not None:
            return self._keep(batch, known)
        try:
            mask = self._quick.select(self._input.frame(batch)).to_series()
        except pl.exceptions.PolarsError as error:
            raise self._failure(error) from error
        if len(mask) != batch.num_rows:  # a literal gives one value for all rows
            return (batch,) if mask[0] else ()
        kept = mask.sum()
        if kept == batch.num_rows:
            return (batch,)
        if not kept:
            return ()
        return (batch.filter(mask.to_arrow()),)

    def kept_ahead(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Which rows it will keep, if the predicate is so simple that it can neither fail nor look at other rows."""
        if self._schema is None or not self._schema.equals(batch.schema):
            self._schema = batch.schema
            self._small = small_predicate(self._predicate, batch.schema)
        return None if self._small is None else self._small.mask(batch)

    def _failure(self, error: Exception) -> UserFunctionError:
        return UserFunctionError(f"step {self._name!r}: {self._predicate} failed: {_first_line(error)}")

    @staticmethod
    def _keep(batch: pa.RecordBatch, mask: np.ndarray) -> Iterable[pa.RecordBatch]:
        kept = mask.nonzero()[0]
        if len(kept) == batch.num_rows:
            return (batch,)
        # Taking rows by number is what a hash exchange does next: its code is still in the caches then.
        return (taken(batch, kept),) if len(kept) else ()


class SharingFilterOperator(FilterOperator):
    """Hands on, as new columns, parts of its predicate that the next step needs, too. They stand as in WithColumns."""

    def __init__(self, spec: FilterSpec) -> None:
        super().__init__(spec)
        assert spec.over_shared is not None
        self._shared = QuickExpressions(spec.shared)
        self._over_shared = spec.over_shared
        self._names = [each.meta.output_name() for each in spec.shared]

    @override
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Zero or one batch."""
        try:
            frame = self._shared.with_columns(self._input.frame(batch))
            mask = frame.select(self._over_shared).to_series()
        except pl.exceptions.PolarsError as error:
            raise self._failure(error) from error
        kept = mask.sum()
        if not kept:
            return ()
        told = frame.select(self._names)
        if kept < batch.num_rows:
            batch, told = batch.filter(mask.to_arrow()), told.filter(mask)
        return (_with_series(batch, told.get_columns()),)

    @override
    def kept_ahead(self, batch: pa.RecordBatch) -> np.ndarray | None:
        return None


def make_filter(spec: FilterSpec) -> FilterOperator:
    """The operator of a filter."""
    return SharingFilterOperator(spec) if spec.shared else FilterOperator(spec)


class WithColumnsOperator(Operator):
    """Adds or replaces columns. New ones stand after the user columns and before the system columns.

    Polars computes them, but for those that only give a column another name.
    """

    def __init__(self, spec: WithColumnsSpec) -> None:
        self._all = spec.expressions
        self._name = spec.kind
        self._input_schema: pa.Schema | None = None
        #: What Polars computes.
        self._written: tuple[str, ...] = ()

    def open(self, context: OperatorContext) -> None:
        """Remember the step's name for messages."""
        self._name = context.operator_name

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return one batch with as many rows."""
        is_new = self._input_schema is None or self._input_schema != batch.schema
        if is_new:
            self._divide(batch.schema)
        made: dict[str, pa.Array] = {new: batch.column(place) for new, place in self._places.items()}
        if self._computes:
            frame = self._input.frame(batch)
            if is_new:
                self._written = tuple(self._told(self._expressions.select, frame.clear()).columns)
            frame = self._told(self._expressions.with_columns, frame)
            made |= {name: _to_arrow(frame.get_column(name)) for name in self._written}
        if is_new:
            self._output_schema = self._schema(batch.schema, made)
            self._input_schema = batch.schema
        columns = [made[name] if name in made else batch.column(name) for name in self._output_schema.names]
        return (pa.RecordBatch.from_arrays(columns, schema=self._output_schema),)

    def _divide(self, schema: pa.Schema) -> None:
        """Tell names from what Polars computes, for rows of this schema."""
        # Until it has computed a batch.
        self._input_schema = None
        try:
            named = {each.meta.output_name(): _named_column(each, schema) for each in self._all}
        except pl.exceptions.PolarsError:
            # One stands for several columns.
            named = {}
        renamed = {new: old for new, old in named.items() if old is not None}
        self._order = list(named)
        others = [each for each in self._all if not renamed or each.meta.output_name() not in renamed]
        self._computes = bool(others)
        self._expressions, self._input = QuickExpressions(others), ExpressionInput(others)
        #: Where the columns are that get another name, by that.
        self._places = {new: schema.get_field_index(old) for new, old in renamed.items()}

    def _schema(self, schema: pa.Schema, made: Mapping[str, pa.Array]) -> pa.Schema:
        """What leaves the step: new columns in the order of the expressions."""
        fields = {field.name: field for field in schema if field.name not in SYSTEM_COLUMNS}
        for name in self._order if made.keys() == {*self._order} else made:
            fields[name] = pa.field(name, made[name].type)
        system = [field for field in schema if field.name in SYSTEM_COLUMNS]
        return pa.schema([*fields.values(), *system])

    def _told(self, compute: Callable[[pl.DataFrame], pl.DataFrame], frame: pl.DataFrame) -> pl.DataFrame:
        try:
            return compute(frame)
        except pl.exceptions.PolarsError as error:
            raise UserFunctionError(
                f"step {self._name!r}: an expression failed: {_first_line(error)}"
            ) from error


def _named_column(expression: pl.Expr, schema: pa.Schema) -> str | None:
    """The column to which an expression only gives a name; None: Polars is to compute it, if only its type."""
    if not expression.meta.undo_aliases().meta.is_column():
        return None
    (name,) = expression.meta.root_names()
    index = schema.get_field_index(name)
    return name if index >= 0 and _keeps_type(schema.field(index).type) else None


def _keeps_type(dtype: pa.DataType) -> bool:
    """Whether a column comes back from Polars as what it was."""
    if pa.types.is_timestamp(dtype):
        return bool(dtype.unit != "s")
    return dtype in _KEPT_TYPES


class PassThroughOperator(Operator):
    """Forwards batches by reference."""

    def __init__(self, spec: PassThroughSpec) -> None:
        self._spec = spec

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The very input."""
        return (batch,)


class SelectOperator(Operator):
    """Keeps some user columns and computes others, and keeps all system columns."""

    def __init__(self, spec: SelectSpec) -> None:
        self._columns = spec.columns
        self._computed = WithColumnsOperator(WithColumnsSpec(spec.expressions)) if spec.expressions else None
        self._names = [item for item in spec.columns if isinstance(item, str)]

    def open(self, context: OperatorContext) -> None:
        """Learn what expressions are called."""
        if self._computed is not None:
            assert context.schema is not None
            self._computed.open(context)
            self._names = context.schema.names

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return one batch, which shares memory with the input."""
        if self._computed is not None:
            (batch,) = self._computed.process(batch)
        system = [name for name in batch.schema.names if name in SYSTEM_COLUMNS]
        return (batch.select([*self._names, *system]),)


class UnionOperator(Operator):
    """Forwards the rows of all inputs, which differ at most in what may be null, under one schema."""

    def __init__(self, spec: UnionSpec) -> None:
        self._spec = spec
        self._schema: pa.Schema | None = None

    def open(self, context: OperatorContext) -> None:
        """Learn the schema of the output."""
        self._schema = None if context.schema is None else system_schema(context.schema)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The input; the very one where its schema is that of the output."""
        if self._schema is None or batch.schema.equals(self._schema, check_metadata=True):
            return (batch,)
        index = batch.schema.get_field_index(KEY_HASH_COLUMN)
        schema = self._schema if index < 0 else self._schema.append(batch.schema.field(index))
        columns = [batch.column(name) for name in schema.names]
        return (pa.RecordBatch.from_arrays(columns, schema=schema),)


def _with_series(batch: pa.RecordBatch, added: Sequence[pl.Series]) -> pa.RecordBatch:
    """Rows with further columns, which stand before the system columns."""
    columns = {name: batch.column(name) for name in batch.schema.names if name not in SYSTEM_COLUMNS}
    fields = [field for field in batch.schema if field.name in columns]
    for series in added:
        columns[series.name] = array = _to_arrow(series)
        fields.append(pa.field(series.name, array.type))
    system = [field for field in batch.schema if field.name in SYSTEM_COLUMNS]
    arrays = [*columns.values(), *(batch.column(field.name) for field in system)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, *system]))


def _to_arrow(series: pl.Series) -> pa.Array:
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    return _of_type(array, small_type(array.type))


def _of_type(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    # To the type that it has costs 25 µs.
    return array if array.type == dtype else array.cast(dtype)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
