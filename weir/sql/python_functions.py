"""CREATE FUNCTION: functions of Python by name, which a text on the user's own machine may call.

A function is imported where the text is read: by ``weir plan``, ``weir sql`` and the processes of a job, which read the
same file. No text that comes over a socket gets here.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import polars as pl
import pyarrow as pa
from sqlglot import exp

from weir.dataflow.traceback import place_in_job
from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN
from weir.rows.records import SYSTEM_COLUMNS
from weir.rows.schemas import column_type
from weir.spelling import did_you_mean
from weir.sql.context import Context, PythonFunction
from weir.sql.errors import Unplaced, at
from weir.sql.functions import FUNCTIONS
from weir.sql.relations import Relation, Scope, solid
from weir.sql.scalars import scalar, short
from weir.sql.syntax import meant
from weir.sql.types import column, polars_type, type_words


def python_function(
    name: str, target: str, returns: exp.DataType | None, start: int, at_target: int
) -> PythonFunction:
    """The function that a text names.

    Args:
        name: as the text calls it.
        target: ``module:function``.
        returns: type of RETURNS; None: the annotation of the function says it.
        start: the place of the name,
        at_target: and of the target.

    Raises:
        Unplaced: there is none, or it is unknown what it returns.
    """
    if name.upper() in FUNCTIONS or name.upper() in exp.FUNCTION_BY_NAME:
        raise Unplaced(f"{name.upper()} is a function of SQL; give this one another name", start)
    module_name, _, attribute = target.partition(":")
    if not attribute or not all(each.isidentifier() for each in (*module_name.split("."), attribute)):
        raise Unplaced(
            f"{target!r} names no function; write 'module:function', such as 'my_job:score'", at_target
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise Unplaced(
            f"there is no module {error.name!r} in the working directory or on the Python path", at_target
        ) from error
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}{place_in_job(error)}"
        raise Unplaced(f"module {module_name!r} cannot be imported: {told}", at_target) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        raise Unplaced(
            f"module {module_name!r} has no function {attribute!r}{did_you_mean(attribute, names)}", at_target
        )
    return _described(name, found, returns, start)


def _described(
    name: str, function: Callable[..., Any], returns: exp.DataType | None, start: int
) -> PythonFunction:
    try:
        hints = typing.get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError, NameError):
        hints, parameters = {}, None
    result = hints.get("return")
    takes_series, takes_arrays = (each in hints.values() for each in (pl.Series, pa.Array))
    if returns is not None:
        dtype = polars_type(returns)
    elif takes_series or takes_arrays or result is None:
        raise Unplaced(
            f"nothing says what {name} returns; write CREATE FUNCTION {name} RETURNS DOUBLE AS '...', or annotate the "
            "function with -> float",
            start,
        )
    else:
        try:
            dtype = pl.DataFrame(pa.schema([pa.field("x", column_type(_plain(result)))]).empty_table())[
                "x"
            ].dtype
        except (GraphError, TypeError, ValueError) as error:
            raise Unplaced(
                f"{name} returns {result!r}, which is no type of a column; write RETURNS DOUBLE", start
            ) from error
    count = None
    if parameters is not None and all(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
        for each in parameters
    ):
        count = len(parameters)
    return PythonFunction(name, function, takes_series, takes_arrays, dtype, count)


def _plain(hint: Any) -> Any:
    """``float`` of ``float | None``."""
    parts = [each for each in typing.get_args(hint) if each is not type(None)]
    return parts[0] if len(parts) == 1 and type(None) in typing.get_args(hint) else hint


def with_calls(
    relation: Relation, scope: Scope, roots: Sequence[exp.Expr], context: Context
) -> tuple[Relation, Scope]:
    """The rows with the results of functions of Python, as columns that the query does not see.

    Args:
        relation: the rows.
        scope: their columns.
        roots: expressions that may call functions.
        context: of the query, with the functions.

    Raises:
        Unplaced: a call is wrong.
    """
    calls = _calls_in(roots, context.functions)
    if not calls:
        return relation, scope
    known = dict(scope.known)
    before = [(each.name, each) for each in known.values() if each.name is not None]
    for node in calls:
        here = Scope(relation.columns, scope.sources, known)
        function = context.functions[str(node.this).lower()]
        if function.count is not None and function.count != len(node.expressions):
            raise Unplaced(
                f"{function.name} takes {function.count} values, not {len(node.expressions)}", node
            )
        values = [scalar(each, here) for each in node.expressions]
        for value, part in zip(values, node.expressions, strict=True):
            if value.is_null:
                raise Unplaced("NULL has no type here; CAST it", part)
        taken = {*relation.stream.schema.names, *(each.name for each in relation.columns)}
        names = [each.name or _free(f"of_{function.name}", taken) for each in values]
        rows = solid(relation, context.steps.step("columns"), [*before, *zip(names, values, strict=True)])
        output = _free(function.name, taken | set(rows.stream.schema.names))
        field = pa.field(output, column_type(function.result))
        given = (function.function, tuple(names), field)
        if function.takes_arrays:
            call = functools.partial(called_with_arrays, *given, short(node))
        else:
            call = functools.partial(called, *given, function.takes_series, short(node))
        # Messages name it.
        vars(call)["__qualname__"] = function.name
        with at(node):
            schema = rows.stream.schema.insert(
                len([each for each in rows.stream.schema.names if each != CHANGE_COLUMN]), field
            )
            step = context.steps.step(function.name)
            stream = rows.stream.map_batches(step, call, schema, reads=names)
        relation = replace(rows, stream=stream)
        made = column(output, function.result)
        before.append((output, made))
        known[node.sql()] = made
    return relation, Scope(relation.columns, scope.sources, known)


def _free(wanted: str, taken: set[str]) -> str:
    name = next(each for number in range(1, 10_000) if (each := f"{wanted}_{number}") not in taken)
    taken.add(name)
    return name


def _calls_in(roots: Sequence[exp.Expr], functions: Mapping[str, PythonFunction]) -> list[exp.Anonymous]:
    """The different calls, inner ones first."""
    found: dict[str, exp.Anonymous] = {}
    if functions:
        for root in roots:
            nodes = list(root.walk(prune=lambda each: isinstance(each, exp.Query)))
            for node in reversed(nodes):
                if not isinstance(node, exp.Anonymous):
                    continue
                if str(node.this).lower() in functions:
                    found.setdefault(node.sql(), node)
                elif near := meant(str(node.this), functions):
                    raise Unplaced(f"there is no function {node.this}{near}", node)
    return list(found.values())


def called(
    function: Callable[..., Any],
    arguments: tuple[str, ...],
    field: pa.Field,
    takes_series: bool,
    text: str,
    batch: pa.RecordBatch,
) -> pa.RecordBatch:
    """A batch with what the function returns; see ``map_batches``.

    Raises:
        ValueError: it returns another number of values, or one of another type.
    """
    frame = pl.DataFrame(batch.select(list(arguments)))
    dtype = pl.DataFrame(pa.schema([field]).empty_table())[field.name].dtype
    if takes_series:
        found = function(*frame.get_columns())
        if not isinstance(found, pl.Series) or len(found) != batch.num_rows:
            what = f"{len(found)} values" if isinstance(found, pl.Series) else type(found).__name__
            raise ValueError(
                f"{text} returned {what} for {batch.num_rows} rows; it must return a Polars series of as many"
            )
        made = found.cast(dtype)
    else:
        values = (
            [function(*row) for row in frame.rows()]
            if arguments
            else [function() for _ in range(batch.num_rows)]
        )
        try:
            made = pl.Series(field.name, values, dtype, strict=True)
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{text} returned a value that is no {type_words(dtype)}: {error}") from error
    return _with_column(batch, field, made.to_arrow())


def called_with_arrays(
    function: Callable[..., Any],
    arguments: tuple[str, ...],
    field: pa.Field,
    text: str,
    batch: pa.RecordBatch,
) -> pa.RecordBatch:
    """Return what :func:`called` does, of a function that takes Arrow arrays and returns one."""
    found = function(*(batch.column(name) for name in arguments))
    if not isinstance(found, pa.Array) or len(found) != batch.num_rows:
        what = f"{len(found)} values" if isinstance(found, pa.Array) else type(found).__name__
        raise ValueError(
            f"{text} returned {what} for {batch.num_rows} rows; it must return an Arrow array of as many"
        )
    return _with_column(batch, field, found)


def _with_column(batch: pa.RecordBatch, field: pa.Field, values: pa.Array) -> pa.RecordBatch:
    index = len([name for name in batch.schema.names if name not in (*SYSTEM_COLUMNS, CHANGE_COLUMN)])
    same = values.type == field.type
    return batch.add_column(index, field, values if same else values.cast(field.type))
