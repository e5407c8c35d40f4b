"""The way from rows to what records have: values, keys, headers, partitions; columns at once, no row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InputError
from weir.operators.sinks.text_parts import json_lines
from weir.rows.records import user_columns
from weir.specs.kafka import KafkaSinkSpec

#: As a partition: the key chooses it, or without one chance. As the client library has it.
PARTITION_UA = -1
_PARTITION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RecordValues:
    """The values of records, by row; lists of the same length. None: no record has any."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[list[tuple[str, bytes]]] | None
    partitions: Sequence[int] | None


def record_values(
    batch: pa.RecordBatch,
    spec: KafkaSinkSpec,
    encode: Callable[[pa.RecordBatch], Sequence[bytes | None]] | None = None,
) -> RecordValues:
    """What the records of these rows have.

    Args:
        batch: at least one row; system columns are left out.
        spec: says which column is what; all others are fields of the objects.
        encode: makes values of those columns; None: JSON objects.

    Raises:
        InputError: the number of a partition is none, or a header has no name.
    """
    keys = None if spec.key is None else _bytes(batch.column(spec.key))
    headers = None
    if spec.headers is not None:
        headers = _headers(batch.column(spec.headers), spec)
    partitions = None if spec.partition is None else _partitions(batch.column(spec.partition), spec)
    if spec.value is not None:
        return RecordValues(_bytes(batch.column(spec.value)), keys, headers, partitions)
    apart = {spec.headers, spec.partition} | ({spec.key} if not spec.key_in_value else set())
    names = [name for name in user_columns(batch.schema) if name not in apart]
    values = (encode or _json_objects)(batch.select(names))
    return RecordValues(values, keys, headers, partitions)


def _headers(column: pa.Array, spec: KafkaSinkSpec) -> list[list[tuple[str, bytes]]]:
    items = column.flatten()
    # The client would write another name, and cut one at a zero.
    is_odd = pc.or_kleene(pc.is_null(items.field("key")), pc.match_substring(items.field("key"), "\0"))
    if items.null_count or pc.any(is_odd).as_py():
        raise InputError(
            f"column {spec.headers!r}, with the headers of records for topic {spec.topic}, has one whose name is null "
            "or has a zero byte in it; correct it, or leave it out of the list"
        )
    return [[(item["key"], item["value"]) for item in row or ()] for row in column.to_pylist()]


def _partitions(column: pa.Array, spec: KafkaSinkSpec) -> list[int]:
    for number in pc.min_max(column).as_py().values():
        if number is not None and not 0 <= number <= _PARTITION_MAX:
            raise InputError(
                f"topic {spec.topic} has no partition {number}, which is in column {spec.partition!r}; numbers begin "
                "with 0, and null leaves the choice to the key"
            )
    found: list[int] = column.fill_null(PARTITION_UA).to_pylist()
    return found


def _json_objects(rows: pa.RecordBatch) -> list[bytes | None]:
    # Newlines within texts are escaped.
    return list(json_lines(rows).split(b"\n")[:-1])


def _bytes(column: pa.Array) -> list[bytes | None]:
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            column = column.cast(pa.string())
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found
