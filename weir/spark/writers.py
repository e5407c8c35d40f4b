"""Sinks by Spark's own connectors, described."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from weir.spark.texts import AsTexts
from weir.spark.types import has_plain_text, quoted
from weir.specs import BlackholeSpec, CsvSinkSpec, JsonLinesSinkSpec, ParquetSinkSpec, PrintSpec, SinkSpec
from weir.specs.kafka import KafkaSinkSpec


@dataclass(frozen=True)
class Writing:
    """What Spark writes.

    Attributes:
        format: as Spark calls it; "print": rows come to the driver, which prints them.
        options: of the connector.
        path: folder; empty: the options say it.
        partition_by: columns whose values name folders.
        columns: name, and its text; (): the user columns.
        rows_max: of "print": so many at most.
        texts: what makes the texts that are written before; None: Spark does.
    """

    format: str
    options: tuple[tuple[str, str], ...] = ()
    path: str = ""
    partition_by: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows_max: int | None = None
    texts: AsTexts | None = None


def writing(spec: SinkSpec, given: pa.Schema) -> Writing | None:
    """What Spark's own connector writes as Weir does; None: Weir's sink runs in the tasks."""
    if isinstance(spec, BlackholeSpec):
        return Writing("noop")
    if isinstance(spec, PrintSpec):
        return Writing("print", rows_max=spec.rows_max)
    if isinstance(spec, KafkaSinkSpec):
        return _kafka(spec, given)
    if type(spec) is ParquetSinkSpec:
        return Writing("parquet", (("compression", spec.compression),), spec.path, tuple(spec.partition_by))
    if isinstance(spec, JsonLinesSinkSpec | CsvSinkSpec):
        return _of_texts(spec, given)
    return None


def _of_texts(spec: JsonLinesSinkSpec | CsvSinkSpec, given: pa.Schema) -> Writing:
    """Files of texts; Weir makes those of values that have another form in Spark."""
    folders, is_json = tuple(spec.partition_by), isinstance(spec, JsonLinesSinkSpec)
    is_plain = all(has_plain_text(field.type) for field in given)
    texts = None if is_plain else AsTexts(given, folders, lines=is_json)
    options: list[tuple[str, str]] = [("compression", spec.compression or "none")]
    if isinstance(spec, CsvSinkSpec):
        options += [("header", "true"), ("sep", spec.separator), ("escape", '"')]
        options += [("emptyValue", '""'), ("nullValue", "")]
        # Else spaces around a text are left out.
        options += [("ignoreLeadingWhiteSpace", "false"), ("ignoreTrailingWhiteSpace", "false")]
        return Writing("csv", tuple(options), spec.path, folders, texts=texts)
    if is_plain:
        return Writing("json", (*options, ("ignoreNullFields", "false")), spec.path, folders)
    return Writing("text", tuple(options), spec.path, folders, texts=texts)


def _kafka(spec: KafkaSinkSpec, given: pa.Schema) -> Writing | None:
    if spec.coding is not None or spec.headers is not None:
        return None
    apart = {spec.partition} | (set() if spec.key_in_value else {spec.key})
    named = [name for name in given.names if name not in apart]
    inner = ", ".join(f"'{name}', {quoted(name)}" for name in named)
    value = (
        quoted(spec.value)
        if spec.value
        else f"to_json(named_struct({inner}), map('ignoreNullFields', 'false'))"
    )
    columns = [("value", value)]
    if spec.key is not None:
        columns.append(("key", f"CAST({quoted(spec.key)} AS STRING)"))
    if spec.partition is not None:
        columns.append(("partition", f"CAST({quoted(spec.partition)} AS INT)"))
    options = (("kafka.bootstrap.servers", spec.bootstrap), ("topic", spec.topic))
    return Writing("kafka", options, columns=tuple(columns))
