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
    elif isinstance(spec, MapBatchesSpec | MapSpec | FlatMapSpec | KeyedProcessSpec):
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
    seen: set[str] = set()
    for expression in expressions:
        _check_expression(step, expression, schema)
        for column in _evaluate(step, expression, schema):
            if column.name in SYSTEM_COLUMNS:
                raise GraphError(f"step {step!r}: {column.name!r} is a system column and cannot be replaced")
            if column.name in seen:
                raise GraphError(
                    f"step {step!r}: two expressions write column {column.name!r}; name one with .alias()"
                )
            seen.add(column.name)
            dtype = arrow_type(column)
            if pa.types.is_null(dtype):
                raise GraphError(
                    f"step {step!r}: column {column.name!r} has no type; cast it, e.g. .cast(pl.Int64)"
                )
            fields[column.name] = pa.field(column.name, dtype)
    return pa.schema(list(fields.values()))


def _check_expression(step: str, expression: object, schema: pa.Schema) -> None:
    if not isinstance(expression, pl.Expr):
        raise GraphError(
            f"step {step!r}: expected a Polars expression, such as pl.col('x') > 1, "
            f"got {type(expression).__name__}"
        )
    roots = expression.meta.root_names()
    known = [*schema.names, *SYSTEM_COLUMNS[:2]]
    for name in roots:
        if name not in known:
            raise GraphError(f"step {step!r}: there is no column {name!r}{did_you_mean(name, known)}")
    if _crosses_rows(expression, roots):
        raise GraphError(
            f"step {step!r}: {expression} depends on the other rows of a batch, "
            "and batches are cut anywhere; use key_by(...).aggregate(...)"
        )


def _crosses_rows(expression: pl.Expr, roots: list[str]) -> bool:
    """Whether the expression is known to look at several rows; Polars cannot tell for shifts."""
    try:
        if not expression.meta.is_row_separable():
            return True
        return bool(roots) and not expression.meta.is_length_preserving()
    except pl.exceptions.PolarsError:
        return False


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
        dtype = schema.field(name).type
        if not (pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_binary(dtype)):
            raise GraphError(
                f"step {step!r}: key column {name!r} is {dtype}; "
                "keys are integers, strings or bytes, so cast it first"
            )
