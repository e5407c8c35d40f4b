"""Sources by Spark's own connectors, described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from weir.author.watermarks import DEFAULT_STRATEGY
from weir.rows.nested_paths import Path
from weir.spark.expressions import translated
from weir.spark.types import ddl, quoted, wire_schema, wire_type
from weir.specs import JsonLinesSpec, ParquetSpec, SourceSpec

#: Column with the text of a record that has no place in the schema.
CORRUPT_COLUMN = "_corrupt"


@dataclass(frozen=True)
class Reading:
    """What Spark reads.

    Attributes:
        format: as Spark calls it.
        options: of the connector.
        path: files, or a folder of them.
        schema: columns of a record in Spark SQL; empty: the connector says it.
        columns: user column, and its text over the record.
        required: columns that must have a value: a record without is bad.
        finite: columns of floats of JSON, which has no infinite ones: a record with a number that is too large is bad.
        time: the event time in ms since 1970, over the user columns; None: that of reading.
        future_ms_max: as of :class:`weir.spark.native.Timed`.
        fails: a bad record fails the job; else it is put aside.
    """

    format: str
    options: tuple[tuple[str, str], ...]
    path: str
    schema: str
    columns: tuple[tuple[str, str], ...]
    required: tuple[str, ...]
    finite: tuple[str, ...]
    time: str | None
    future_ms_max: int | None
    fails: bool


def reading(spec: SourceSpec) -> Reading | None:
    """What Spark's own connector reads as Weir does; None: one task reads with Weir's reader."""
    schema = spec.schema_read
    time = None if spec.event_time_column is None else quoted(spec.event_time_column)
    if spec.event_time_expression is not None:
        time = translated(spec.event_time_expression, schema)
        if time is None:
            return None
    if any(wire_type(field.type) != field.type for field in schema):
        return None
    found = _connector(spec, schema)
    if found is None:
        return None
    format_, options, path, ddl_text, columns = found
    strategy = spec.watermark or DEFAULT_STRATEGY
    return Reading(
        format_,
        tuple(sorted(options.items())),
        path,
        ddl_text,
        columns,
        tuple(field.name for field in schema if not field.nullable),
        tuple(field.name for field in schema if pat.is_floating(field.type) and format_ == "json"),
        time,
        strategy.future_ms_max,
        spec.bad_records == "fail",
    )


_Found = tuple[str, dict[str, str], str, str, tuple[tuple[str, str], ...]]


def _connector(spec: SourceSpec, schema: pa.Schema) -> _Found | None:
    path = str(getattr(spec, "path", ""))
    if "**" in path:
        # Spark's globs do not go down folders.
        return None
    if isinstance(spec, JsonLinesSpec):
        return _json(spec, schema, path)
    if isinstance(spec, ParquetSpec) and not spec.paths and not _is_nested(schema):
        columns = tuple((name, quoted(name)) for name in schema.names)
        return "parquet", {}, path, ddl(wire_schema(schema)), columns
    return None


def _is_nested(schema: pa.Schema) -> bool:
    return any("." in name or "[" in name for name in schema.names)


def has_lines(spec: SourceSpec) -> bool:
    """Whether Spark can read the lines of a source, for Weir to decode them."""
    # Of files that one reader must decode only Weir knows all, and Spark's globs do not go down folders.
    return (
        isinstance(spec, JsonLinesSpec)
        and spec.compression == "auto"
        and not spec.path.endswith((".zst", ".lz4", ".bz2"))
        and "**" not in spec.path
    )


def _is_plain(schema: pa.Schema) -> bool:
    """Whether all columns have the same form in Spark's JSON: times, decimals and bytes have another one."""
    tests = (pat.is_integer, pat.is_floating, pat.is_string, pat.is_boolean)
    return all(any(test(field.type) for test in tests) for field in schema)


def _json(spec: JsonLinesSpec, schema: pa.Schema, path: str) -> _Found | None:
    if not _is_plain(schema) or not has_lines(spec):
        return None
    paths = _trie(schema, dict(spec.paths))
    if paths is None:
        return None
    tree, columns = paths
    # Without an encoding: with any, even UTF-8, Spark makes a reader for each record, and takes far longer.
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT_COLUMN,
        "multiLine": "false",
        "lineSep": "\n",
        "allowNonNumericNumbers": "false",
    }
    text = f"{', '.join(f'{quoted(name)} {kind}' for name, kind in tree.items())}, {quoted(CORRUPT_COLUMN)} STRING"
    return "json", options, path, text, columns


def _trie(
    schema: pa.Schema, paths: Mapping[str, Path]
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]] | None:
    """The objects in which the columns lie, as Spark SQL writes them, and where each column is; None: not so."""
    tree: dict[str, object] = {}
    columns = []
    for field in schema:
        path = paths.get(field.name, (field.name,))
        if any(isinstance(key, int) for key in path):
            return None
        node = tree
        for key in path[:-1]:
            inner = node.setdefault(str(key), {})
            if not isinstance(inner, dict):
                return None
            node = inner
        if str(path[-1]) in node:
            return None
        node[str(path[-1])] = ddl(pa.schema([pa.field("x", field.type)])).removeprefix("`x` ")
        columns.append((field.name, ".".join(quoted(str(key)) for key in path)))
    return {name: _form(node) for name, node in tree.items()}, tuple(columns)


def _form(node: object) -> str:
    if isinstance(node, dict):
        return "STRUCT<" + ", ".join(f"{quoted(name)}: {_form(inner)}" for name, inner in node.items()) + ">"
    return str(node)
