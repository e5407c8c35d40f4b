"""Sinks by Spark's own connectors, described."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from weir.spark.types import quoted
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
    """

    format: str
    options: tuple[tuple[str, str], ...] = ()
    path: str = ""
    partition_by: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows_max: int | None = None


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
    if isinstance(spec, JsonLinesSinkSpec) and _is_plain(given):
        return Writing(
            "json",
            (("compression", spec.compression or "none"), ("ignoreNullFields", "false")),
            spec.path,
            tuple(spec.partition_by),
        )
    if isinstance(spec, CsvSinkSpec) and _is_plain(given):
        options = (
            ("compression", spec.compression or "none"),
            ("header", "true"),
            ("sep", spec.separator),
            ("emptyValue", '""'),
            ("nullValue", ""),
            ("escape", '"'),
        )
        return Writing("csv", options, spec.path, tuple(spec.partition_by))
    return None


def _is_plain(schema: pa.Schema) -> bool:
    """Whether values have the same form as text: times, bytes and numbers with a point have others."""
    return all(pat.is_integer(f.type) or pat.is_string(f.type) or pat.is_boolean(f.type) for f in schema)


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
