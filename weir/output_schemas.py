"""What columns leave an operator, given what enters it: the type check of the dataflow API.

``weir.streams`` asks for every step as it is written down; ``weir.graph_checks`` asks again for graphs made
by hand.
All errors are :class:`GraphError` and begin with the step's name.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from weir.errors import GraphError
from weir.records import SYSTEM_COLUMNS
from weir.schemas import arrow_type, empty_frame, schema_difference
from weir.specs import (
    Aggregate,
    FilterSpec,
    FlatMapSpec,
    KeyedAggregateSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapSpec,
    OperatorSpec,
    UserOperatorSpec,
    WithColumnsSpec,
)
from weir.spelling import did_you_mean


def output_schema(step: str, spec: OperatorSpec, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
    """User columns of a step's output.

    Args:
        step: the step's name, for messages.
        spec: what the step does; not a source.
        inputs: user columns of each input, at least one.

    Raises:
        GraphError: the step cannot run on these inputs.
    """
    first = inputs[0]
    for position, other in enumerate(inputs[1:], start=2):
        difference = schema_difference(first, other)
        if difference:
            raise GraphError(f"step {step!r}: input {position} has other columns than input 1: {difference}")
    if isinstance(spec, FilterSpec):
        check_predicate(step, spec.predicate, first)
    elif isinstance(spec, WithColumnsSpec):
        return _with_columns_schema(step, spec.expressions, first)
    elif isinstance(spec, MapBatchesSpec | MapSpec | FlatMapSpec | KeyedProcessSpec | UserOperatorSpec):
        return spec.schema
    elif isinstance(spec, KeyedAggregateSpec):
        return aggregate_schema(step, spec.aggregates, first)
    return _merge_nullability(inputs)


def _merge_nullability(inputs: tuple[pa.Schema, ...]) -> pa.Schema:
    fields = [
        field.with_nullable(any(schema.field(field.name).nullable for schema in inputs))
        for field in inputs[0]
    ]
    return pa.schema(fields)


def check_predicate(step: str, predicate: pl.Expr, schema: pa.Schema) -> None:
    """Refuse a predicate that does not give one boolean per row of ``schema``.

    Raises:
        GraphError: not an expression, an unknown column, or another type than boolean.
    """
    _check_expression(step, predicate, schema)
    result = _evaluate(step, predicate, schema)
    if result.width != 1:
        raise GraphError(
            f"step {step!r}: the predicate gives {result.width} columns; "
            "combine them with pl.all_horizontal(...)"
        )
    dtype = result.to_series().dtype
    if dtype != pl.Boolean:
        raise GraphError(
            f"step {step!r}: the predicate gives {dtype}, not Boolean; compare it with something"
        )


def _with_columns_schema(step: str, expressions: tuple[pl.Expr, ...], schema: pa.Schema) -> pa.Schema:
    if not expressions:
        raise GraphError(f"step {step!r}: with_columns needs at least one expression")
    fields = {field.name: field for field in schema}
    for name, dtype in written_columns(step, expressions, schema).items():
        fields[name] = pa.field(name, dtype)
    return pa.schema(list(fields.values()))


def written_columns(step: str, expressions: tuple[pl.Expr, ...], schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns that ``with_columns`` adds or replaces, in order.

    Raises:
        GraphError: an expression is wrong, writes a system column, or two write the same column.
    """
    written: dict[str, pa.DataType] = {}
    for expression in expressions:
        _check_expression(step, expression, schema)
        for column in _evaluate(step, expression, schema):
            name, dtype = column.name, arrow_type(column)
            if name in SYSTEM_COLUMNS:
                raise GraphError(f"step {step!r}: {name!r} is a system column and cannot be replaced")
            if name in written:
                raise GraphError(f"step {step!r}: two expressions write {name!r}; name one with .alias()")
            if pa.types.is_null(dtype):
                raise GraphError(f"step {step!r}: column {name!r} has no type; cast it, e.g. .cast(pl.Int64)")
            written[name] = dtype
    return written


def _check_expression(step: str, expression: object, schema: pa.Schema) -> None:
    if not isinstance(expression, pl.Expr):
        raise GraphError(
            f"step {step!r}: expected a Polars expression, such as pl.col('x') > 1, "
            f"got {type(expression).__name__}"
        )
    known = [*schema.names, *SYSTEM_COLUMNS[:2]]
    for name in expression.meta.root_names():
        if name not in known:
            raise GraphError(f"step {step!r}: there is no column {name!r}{did_you_mean(name, known)}")
    if _crosses_rows(expression):
        raise GraphError(
            f"step {step!r}: {expression} depends on the other rows of a batch, "
            "and batches are cut anywhere; use key_by(...).aggregate(...)"
        )


def _crosses_rows(expression: pl.Expr) -> bool:
    """Whether a part of the expression looks at several rows; of Python functions Polars cannot tell."""
    try:
        if not expression.meta.is_row_separable():
            return True
    except pl.exceptions.PolarsError:
        pass
    return any(_crosses_rows(part) for part in expression.meta.pop())


def _evaluate(step: str, expression: pl.Expr, schema: pa.Schema) -> pl.DataFrame:
    try:
        return empty_frame(schema).select(expression)
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[0]
        raise GraphError(f"step {step!r}: {expression} cannot be computed: {reason}") from error


def aggregate_schema(step: str, aggregates: tuple[Aggregate, ...], schema: pa.Schema) -> pa.Schema:
    """The input's columns followed by one column per aggregate, in order.

    Raises:
        GraphError: no aggregate, an unknown or non-numeric column, or an output name that is taken.
    """
    if not aggregates:
        raise GraphError(f"step {step!r}: give at least one aggregate, such as n=weir.count()")
    fields = list(schema)
    taken = {*schema.names, *SYSTEM_COLUMNS}
    for aggregate in aggregates:
        if aggregate.output in taken:
            raise GraphError(
                f"step {step!r}: output column {aggregate.output!r} exists already; choose another name"
            )
        taken.add(aggregate.output)
        fields.append(pa.field(aggregate.output, _aggregate_type(step, aggregate, schema)))
    return pa.schema(fields)


def _aggregate_type(step: str, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
    if aggregate.function == "count" and aggregate.column is None:
        return pa.int64()
    if aggregate.column is None or aggregate.column not in schema.names:
        raise GraphError(
            f"step {step!r}: {aggregate.function} over {aggregate.column!r}: there is no such column"
            f"{did_you_mean(str(aggregate.column), schema.names)}"
        )
    dtype = schema.field(aggregate.column).type
    if aggregate.function == "count":
        return pa.int64()
    if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
        raise GraphError(
            f"step {step!r}: {aggregate.function} over {aggregate.column!r}: "
            f"the column is {dtype}, not a number"
        )
    if aggregate.function == "mean" or pa.types.is_floating(dtype):
        return pa.float64()
    return pa.int64()


def check_key_columns(step: str, columns: Iterable[str], schema: pa.Schema) -> None:
    """Refuse keys that are absent or have no stable hash (floating point, nested).

    Raises:
        GraphError: names the column and the mend.
    """
    names = list(columns)
    if not names:
        raise GraphError(f"step {step!r}: key_by needs at least one column")
    for position, name in enumerate(names):
        if name in names[:position]:
            raise GraphError(f"step {step!r}: key column {name!r} is there twice")
        if name not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no key column {name!r}{did_you_mean(name, schema.names)}"
            )
        _check_key_type(step, name, schema.field(name).type)


def _check_key_type(step: str, name: str, dtype: pa.DataType) -> None:
    """The rule of ``weir.key_encoding``, repeated here because that module loads compiled kernels."""
    if pa.types.is_floating(dtype):
        raise GraphError(
            f"step {step!r}: key column {name!r} is {dtype}, and equal floating-point values may differ in "
            "their bytes; cast it to an integer or a string before key_by"
        )
    text = pa.types.is_string(dtype) or pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype)
    number = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_temporal(dtype)
    if not (text or number) or pa.types.is_interval(dtype):
        raise GraphError(
            f"step {step!r}: key column {name!r} is {dtype}; keys are strings, bytes, integers, booleans, "
            "dates or times, or several of them"
        )
