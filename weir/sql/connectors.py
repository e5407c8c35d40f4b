"""Settings of ``WITH (connector = '...', ...)``: sources, tables and sinks of the dataflow API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

from weir.dataflow.connectors import (
    ArrowIpc,
    Blackhole,
    Collect,
    Csv,
    CsvSink,
    DeltaSink,
    JsonLines,
    JsonLinesSink,
    Parquet,
    ParquetSink,
    Print,
)
from weir.dataflow.lookup_tables import CassandraTable, FileTable
from weir.dataflow.streams import Stream
from weir.errors import GraphError
from weir.rows.schemas import Nullable
from weir.specs.lookup_joins import CACHE_ROWS_MAX, TableFormat
from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced, at
from weir.sql.statements import Option, Statement
from weir.sql.syntax import meant
from weir.sql.types import polars_type
from weir.state.ttl import duration_ms

#: What takes long to import is named only.
_Connectors = Mapping[str, Callable[..., Any] | str]
_SOURCES: _Connectors = {
    "json": JsonLines,
    "csv": Csv,
    "parquet": Parquet,
    "arrow": ArrowIpc,
    "kafka": "weir.dataflow.kafka_connectors:Kafka",
    "log": "weir.dataflow.log_connectors:LogSource",
    "nexmark": "weir.nexmark.specs:Nexmark",
}
_SINKS: _Connectors = {
    "json": JsonLinesSink,
    "csv": CsvSink,
    "parquet": ParquetSink,
    "delta": DeltaSink,
    "kafka": "weir.dataflow.kafka_connectors:KafkaSink",
    "log": "weir.dataflow.log_connectors:LogSink",
    "print": Print,
    "blackhole": Blackhole,
    "collect": Collect,
}


def _file_table(kind: TableFormat) -> Callable[..., FileTable]:
    """What makes tables of files of one form."""

    def made(path: str, *, schema: Mapping[str, object]) -> FileTable:
        return FileTable(path, schema=schema, format=kind)

    return made


_TABLES: _Connectors = {
    **{name: _file_table(name) for name in get_args(TableFormat)},
    "cassandra": CassandraTable,
}
#: Settings of sources that Python knows under another name, by connector.
_NAMES: Mapping[tuple[str, str], str] = {("kafka", "topic"): "topics", ("kafka", "format"): "value"}
#: Settings that are lists, with commas between their values.
_LISTS = frozenset({"columns", "contact_points", "null_values", "partition_by", "topics"})
#: A parallelism: ``isdigit`` takes digits that are no numbers, too.
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
#: Settings of the step beside the connector.
_OF_STEP = ("parallelism",)
#: Of a source's watermark: how far the source reads ahead of others that have this setting.
DRIFT = "max_drift"
_OF_SOURCE = (*_OF_STEP, DRIFT)
_OF_LOOKUP = ("cache_rows", "cache_ttl")
#: Those that a text cannot give: CREATE SOURCE says them, or their values are no texts.
_NOT_GIVEN = frozenset({"schema", "event_time", "paths", "parts", "properties", "self"})


def source_of(statement: Statement) -> tuple[Any, int]:
    """The source and its parallelism.

    Raises:
        Unplaced: a setting, a column or the watermark is wrong.
    """
    name, given, parallelism = _connector(statement, _SOURCES)
    options = [each for each in given if each.name != DRIFT]
    schema = _schema(statement)
    with at(statement.start):
        if name == "nexmark":
            if schema:
                raise Unplaced(
                    "the columns of nexmark are known; leave them out, but for WATERMARK", statement.start
                )
            made = _made(_maker(_SOURCES, name), options, {}, statement, _OF_SOURCE)
            return made, parallelism
        if not schema:
            raise Unplaced(
                f"source {statement.name!r} needs columns: ({statement.name} BIGINT, ...)", statement.start
            )
        made = _made(_maker(_SOURCES, name), options, {"schema": schema}, statement, _OF_SOURCE)
    return made, parallelism


def _schema(statement: Statement) -> dict[str, object]:
    """Columns and their types, as the dataflow API takes them."""
    schema: dict[str, object] = {}
    for each in statement.columns:
        if each.name in schema:
            raise Unplaced(f"column {each.name!r} is there twice", each.start)
        dtype = polars_type(each.type)
        is_time = statement.watermark is not None and statement.watermark.column.lower() == each.name.lower()
        schema[each.name] = Nullable(dtype) if each.is_nullable and not is_time else dtype
    return schema


def table_of(statement: Statement) -> tuple[FileTable | CassandraTable, dict[str, Any]]:
    """The table that rows look up, and what ``lookup_join`` is told beside.

    Raises:
        Unplaced: a setting or a column is wrong.
    """
    name, options, _ = _connector(statement, _TABLES)
    beside: dict[str, Any] = {}
    parameters = inspect.signature(Stream.lookup_join).parameters
    for option in statement.options:
        if option.name == "parallelism":
            raise Unplaced(
                "a table has no parallelism; the step that looks up has that of its rows", option.start
            )
        if option.name in _OF_LOOKUP:
            beside[option.name] = _of_cache(option, _value(option.name, option, parameters[option.name]))
    with at(statement.start):
        schema = _schema(statement)
        if not schema:
            raise Unplaced(
                f"table {statement.name!r} needs columns: ({statement.name} BIGINT, ...)", statement.start
            )
        rest = [each for each in options if each.name not in beside]
        made = _made(_maker(_TABLES, name), rest, {"schema": schema}, statement, _OF_LOOKUP)
        made.to_spec()
    return made, beside


def _of_cache(option: Option, value: Any) -> Any:
    """A setting of the cache, which no step looks at before a query looks up the table."""
    if option.name == "cache_ttl":
        try:
            duration_ms(value)
        except GraphError:
            raise Unplaced(
                f"cache_ttl is {option.value!r}; write a duration such as '250ms', '90s', '1h30m' or '7d'",
                option.start,
            ) from None
    elif not isinstance(value, int) or not 0 <= value <= CACHE_ROWS_MAX:
        raise Unplaced(
            f"cache_rows is {option.value!r}; it must be a whole number from 0 to {CACHE_ROWS_MAX:,}",
            option.start,
        )
    return value


def sink_of(statement: Statement) -> tuple[Any, int | None]:
    """The sink and its parallelism.

    Raises:
        Unplaced: a setting is wrong.
    """
    name, options, parallelism = _connector(statement, _SINKS)
    is_given = any(each.name == "parallelism" for each in statement.options)
    with at(statement.start):
        return _made(_maker(_SINKS, name), options, {}, statement), parallelism if is_given else None


def _maker(known: _Connectors, name: str) -> Callable[..., Any]:
    """The class or function of a connector."""
    found = known[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        made: Callable[..., Any] = getattr(import_module(module), attribute)
        return made
    return found


def _connector(statement: Statement, known: _Connectors) -> tuple[str, list[Option], int]:
    """The connector, its settings, and the parallelism."""
    kind = statement.kind.lower()
    given: dict[str, Option] = {}
    for each in statement.options:
        if each.name in given:
            raise Unplaced(f"{each.name} is given twice", each.start)
        given[each.name] = each
    connector = given.pop("connector", None)
    if connector is None:
        for option in given.values():
            if near := meant(option.name, ("connector",)):
                raise Unplaced(f"there is no setting {option.name!r}{near}", option.start)
        raise Unplaced(
            f"{kind} {statement.name!r} needs WITH (connector = '...'); there are {', '.join(known)}",
            statement.start,
        )
    if connector.value not in known:
        raise Unplaced(
            f"there is no connector {connector.value!r} of a {kind}{did_you_mean(connector.value, known)}",
            connector.start,
        )
    parallelism = given.pop("parallelism", None)
    if parallelism is not None and not _COUNT.fullmatch(parallelism.value):
        raise Unplaced("parallelism is a whole number from 1 to 9999", parallelism.start)
    return connector.value, list(given.values()), 1 if parallelism is None else int(parallelism.value)


def _made(
    make: Callable[..., Any],
    options: Sequence[Option],
    fixed: dict[str, Any],
    statement: Statement,
    beside: Sequence[str] = _OF_STEP,
) -> Any:
    parameters = inspect.signature(make).parameters
    arguments: dict[str, Any] = dict(fixed)
    connector = next(each.value for each in statement.options if each.name == "connector")
    known = [each for each in parameters if each not in _NOT_GIVEN]
    for option in options:
        name = option.name.replace("-", "_").replace(".", "_")
        if statement.kind == "SOURCE":
            name = _NAMES.get((connector, name), name)
        if name not in known:
            if option.name == "format" and option.value == "json":
                continue
            raise Unplaced(
                f"connector {connector!r} has no setting {option.name!r}"
                f"{did_you_mean(option.name, [*known, *beside])}",
                option.start,
            )
        arguments[name] = _value(name, option, parameters[name])
    missing = [
        name
        for name, each in parameters.items()
        if each.default is each.empty
        and name not in arguments
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    if missing:
        raise Unplaced(f"connector {connector!r} needs {missing[0]} = '...'", statement.start)
    return make(**arguments)


def _value(name: str, option: Option, parameter: inspect.Parameter) -> Any:
    """The text of a setting as the type of the argument of Python."""
    text, annotation = option.value, str(parameter.annotation)
    if name in _LISTS:
        return [each.strip() for each in text.split(",")]
    if text.lower() in ("true", "false") and "bool" in annotation:
        return text.lower() == "true"
    if text.lower() in ("none", "null") and "None" in annotation:
        return None
    if "int" in annotation or "float" in annotation:
        try:
            return int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            # Some take words beside numbers, such as start = 'earliest'.
            if "Literal[" not in annotation:
                raise Unplaced(f"{option.name} is a number, not {text!r}", option.start) from None
    if "bool" in annotation and "str" not in annotation:
        raise Unplaced(f"{option.name} is 'true' or 'false', not {text!r}", option.start)
    return text
