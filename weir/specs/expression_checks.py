"""Polars expressions of a step: what they read and write, checked when the step is written down."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import polars as pl
import pyarrow as pa

from weir.errors import GraphError
from weir.rows.records import SYSTEM_COLUMNS
from weir.rows.schemas import arrow_type, empty_frame
from weir.specs.row_wise import changes_length, crosses_rows, has_selector, named_columns
from weir.spelling import did_you_mean


def check_is_name(where: str, value: object) -> None:
    """Refuse what is no name of a column, such as ``pl.col("x") * 2``; ``where``: of whom.

    Raises:
        GraphError: it is none.
    """
    if not isinstance(value, str):
        raise GraphError(
            f"{where} takes the name of a column, got {type(value).__name__}; make what is computed a column first, "
            "in a with_columns step"
        )


def check_key_columns(step: str, columns: Iterable[str], schema: pa.Schema) -> None:
    """Refuse keys that are absent or have no stable hash (floating point, nested).

    Raises:
        GraphError: names the column and the mend.
    """
    names = list(columns)
    if not names:
        raise GraphError(f"step {step!r}: key_by needs at least one column")
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise GraphError(
                f'step {step!r}: key_by takes names of columns, key_by("a", "b"), got {type(name).__name__}; '
                "make what is computed a column first, in a with_columns step"
            )
        if name in names[:position]:
            raise GraphError(f"step {step!r}: key column {name!r} is there twice")
        if name not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no key column {name!r}{did_you_mean(name, schema.names)}"
            )
        _check_key_type(step, name, schema.field(name).type)


def _check_key_type(step: str, name: str, dtype: pa.DataType) -> None:
    """The rule of ``weir.keys.hashing``, repeated here because that module loads compiled kernels."""
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


def check_predicate(step: str, predicate: pl.Expr, schema: pa.Schema) -> None:
    """Refuse a predicate that does not give one boolean per row of ``schema``.

    Raises:
        GraphError: not an expression, an unknown column, or another type than boolean.
    """
    _check_expression(step, predicate, schema)
    _check_selectors(step, [predicate])
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


def check_event_time(step: str, expression: pl.Expr, schema: pa.Schema) -> None:
    """Refuse an expression that does not give one integer, a time in ms since 1970, per row of ``schema``.

    Raises:
        GraphError: not an expression, an unknown column, or another type than integer.
    """
    _check_expression(step, expression, schema)
    _check_selectors(step, [expression])
    result = _evaluate(step, expression, schema)
    if result.width != 1:
        raise GraphError(
            f"step {step!r}: the event time is one column, and {expression} gives {result.width}"
        )
    dtype = result.to_series().dtype
    if dtype.is_temporal():
        raise GraphError(
            f"step {step!r}: the event time is {dtype}; it must be integer ms since 1970, as .dt.epoch('ms') gives"
        )
    if not dtype.is_integer():
        raise GraphError(f"step {step!r}: the event time is {dtype}; it must be integer ms since 1970")


def with_columns_written(
    step: str, expressions: tuple[pl.Expr, ...], schema: pa.Schema
) -> dict[str, pa.DataType]:
    """Return what :func:`written_columns` does, of a step that writes at least one column.

    Raises:
        GraphError: as there, or there is no expression.
    """
    if not expressions:
        raise GraphError(f"step {step!r}: with_columns needs at least one expression")
    return written_columns(step, expressions, schema)


def with_fields(schema: pa.Schema, written: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of ``schema`` with those that are written, which replace theirs in their places."""
    fields = {field.name: field for field in schema}
    fields |= {name: pa.field(name, dtype) for name, dtype in written.items()}
    return pa.schema(list(fields.values()))


def written_columns(step: str, expressions: tuple[pl.Expr, ...], schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns that ``with_columns`` adds or replaces, in order.

    Raises:
        GraphError: an expression is wrong, writes a system column, or two write the same column.
    """
    written: dict[str, pa.DataType] = {}
    _check_selectors(step, expressions)
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


def as_names(columns: Iterable[str | pl.Expr], schema: pa.Schema) -> tuple[str | pl.Expr, ...]:
    """What ``select`` is given, with names in place of expressions that only choose columns.

    So these columns stay as nullable as they were, and a changelog stays one.
    """
    return tuple(name for item in columns for name in _names_of(item, schema) or (item,))


def _names_of(item: str | pl.Expr, schema: pa.Schema) -> list[str]:
    """The columns that an expression chooses; none if it computes or renames something, or cannot be used."""
    if not isinstance(item, pl.Expr):
        return []
    plain = item.meta.undo_aliases()
    is_under_its_name = plain.meta.is_column() and item.meta.output_name() == plain.meta.output_name()
    if not (is_under_its_name or item.meta.is_column_selection()):
        return []
    try:
        return empty_frame(schema).select(schema.names).select(plain).columns
    except pl.exceptions.PolarsError:
        # Who checks the expression says what is wrong.
        return []


def expression_columns(expressions: Iterable[pl.Expr], schema: pa.Schema) -> frozenset[str]:
    """User columns that expressions read; of those with selectors, such as ``pl.all()``, all."""
    read: set[str] = set()
    for expression in expressions:
        read |= {*(schema.names if has_selector(expression) else named_columns(expression))}
    return frozenset(read.intersection(schema.names))


def _check_expression(step: str, expression: object, schema: pa.Schema) -> None:
    if not isinstance(expression, pl.Expr):
        raise GraphError(
            f"step {step!r}: expected a Polars expression, such as pl.col('x') > 1, "
            f"got {type(expression).__name__}"
        )
    known = [*schema.names, *SYSTEM_COLUMNS[:2]]
    for name in named_columns(expression):
        if name not in known:
            raise GraphError(f"step {step!r}: there is no column {name!r}{did_you_mean(name, known)}")
    if crosses_rows(expression):
        raise GraphError(
            f"step {step!r}: {expression} depends on the other rows of a batch, "
            "and batches are cut anywhere; use key_by(...).aggregate(...)"
        )
    if changes_length(expression):
        raise GraphError(
            f"step {step!r}: {expression} has not one value for each row; leave rows out with the step filter, and "
            "make a row of each element of a list with the step explode"
        )


def _check_selectors(step: str, expressions: Iterable[pl.Expr]) -> None:
    """Check that a step's expressions see the same columns: the times with named ones, none with selectors.

    Raises:
        GraphError: some have a selector, and some name a time column.
    """
    listed = [each for each in expressions if isinstance(each, pl.Expr)]
    selecting = [each for each in listed if has_selector(each)]
    times = [name for each in listed for name in named_columns(each) if name in SYSTEM_COLUMNS]
    if selecting and times:
        raise GraphError(
            f"step {step!r}: {selecting[0]} stands for the job's columns, and {times[0]} is none of them; compute "
            f"what needs {times[0]} in a step of its own"
        )


def _evaluate(step: str, expression: pl.Expr, schema: pa.Schema) -> pl.DataFrame:
    frame = empty_frame(schema)
    try:
        # Selectors are about the job's columns, not about the times beside them.
        return (frame.select(schema.names) if has_selector(expression) else frame).select(expression)
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[0]
        raise GraphError(f"step {step!r}: {expression} cannot be computed: {reason}") from error


def copies(expressions: Iterable[pl.Expr], names: Collection[str]) -> frozenset[str]:
    """What the expressions that are nothing but one of these columns, perhaps under another name, are called."""
    found = set()
    for expression in expressions:
        column = expression.meta.undo_aliases()
        if column.meta.is_column() and column.meta.output_name() in names:
            found.add(expression.meta.output_name())
    return frozenset(found)
