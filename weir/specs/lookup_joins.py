"""Specs of tables outside that rows look up by key, and of the join with one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.types as pat

from weir.errors import GraphError
from weir.specs.base import OperatorSpec
from weir.specs.expression_checks import check_is_name, check_key_columns
from weir.specs.kafka_properties import ClientProperties
from weir.specs.lookups import LookupType
from weir.spelling import did_you_mean

TableFormat = Literal["parquet", "csv", "json", "arrow", "delta"]
CACHE_ROWS_MAX = 100_000_000


@dataclass(frozen=True)
class FileTableSpec:
    """A table in files: a file, a directory of parts, a glob, or a Delta Lake table."""

    #: "module:name" of what is called with the spec, the key columns, all columns that are read, and the step's name;
    #: only task managers load it.
    reader: ClassVar[str] = "weir.operators.joins.file_table:FileTableReader"
    path: str
    format: TableFormat
    schema: pa.Schema

    @property
    def shown(self) -> str:
        """What the table is called in messages."""
        return f"table {self.path}"


@dataclass(frozen=True)
class CassandraTableSpec:
    """A table in Cassandra or ScyllaDB that others write."""

    reader: ClassVar[str] = "weir.operators.joins.cassandra_table:CassandraTableReader"
    keyspace: str
    table: str
    schema: pa.Schema
    contact_points: tuple[str, ...]
    port: int
    #: User and password.
    credentials: ClientProperties
    tls_ca_file: str
    local_datacenter: str
    consistency: str
    in_flight_max: int
    request_timeout_ms: int
    #: How long a batch waits for a database that does not answer.
    patience_ms: int

    @property
    def shown(self) -> str:
        """What the table is called in messages."""
        return f"table {self.keyspace}.{self.table}"


TableSpec = FileTableSpec | CassandraTableSpec


@dataclass(frozen=True)
class LookupJoinSpec(OperatorSpec):
    """Add the columns of a table's rows that have the key of a row, as the table is when the row comes."""

    kind: ClassVar[str] = "lookup_join"
    keeps_columns: ClassVar[bool] = True
    is_by_row: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.joins.lookup_join_operator:LookupJoinOperator"
    table: TableSpec
    #: Columns of the input, and those of the table that are equal to them.
    on: tuple[tuple[str, str], ...]
    #: Columns of the table that are added, and what they are called in the result.
    added: tuple[tuple[str, str], ...]
    how: LookupType
    #: Keys and rows of a subtask that are remembered; 0: none.
    cache_rows: int
    cache_ttl_ms: int

    @property
    def keys(self) -> tuple[str, ...]:
        """Key columns of the table."""
        return tuple(name for _, name in self.on)

    @property
    def read(self) -> tuple[str, ...]:
        """Columns of the table that are read: its keys, and what is added."""
        return tuple(dict.fromkeys([*self.keys, *(name for name, _ in self.added)]))

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns followed by those of the table, which may be null in a left join."""
        (schema,) = inputs
        self._check(step, schema)
        return pa.schema([*schema, *self.added_fields()])

    def added_fields(self) -> list[pa.Field]:
        """The columns of the table, as they leave."""
        found = [(self.table.schema.field(name), output) for name, output in self.added]
        return [
            pa.field(output, column.type, column.nullable or self.how == "left") for column, output in found
        ]

    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Columns of the table."""
        return {column.name: column.type for column in self.added_fields()}

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """The keys, and what is wanted."""
        return wanted.intersection(schema.names) | {name for name, _ in self.on}

    def giving(self, wanted: frozenset[str]) -> Self:
        """Return the step without columns of the table that are not wanted: they are not read, either."""
        return replace(self, added=tuple(pair for pair in self.added if pair[1] in wanted))

    def _check(self, step: str, schema: pa.Schema) -> None:
        """Refuse what cannot be looked up.

        Raises:
            GraphError: one line that names the step and the mend.
        """
        check_key_columns(step, [name for name, _ in self.on], schema)
        check_key_columns(step, self.keys, self.table.schema)
        for name, other in self.on:
            one, two = schema.field(name).type, self.table.schema.field(other).type
            if not _same_keys(one, two):
                raise GraphError(
                    f"step {step!r}: column {name!r} is {one}, and {other!r} of the table is {two}; cast the column"
                )
        taken = set(schema.names)
        for _, output in self.added:
            if output in taken:
                raise GraphError(
                    f"step {step!r}: column {output!r} is there already; give another suffix=, or columns="
                )
            taken.add(output)
        if self.how not in ("left", "inner"):
            raise GraphError(f"step {step!r}: how is {self.how!r}; it is left or inner")
        is_whole = isinstance(self.cache_rows, int) and not isinstance(self.cache_rows, bool)
        if not is_whole or not 0 <= self.cache_rows <= CACHE_ROWS_MAX:
            raise GraphError(
                f"step {step!r}: cache_rows is {self.cache_rows!r}; it must be a whole number from 0 to "
                f"{CACHE_ROWS_MAX:,}"
            )


def _same_keys(one: pa.DataType, two: pa.DataType) -> bool:
    """Return whether equal values have equal key bytes: whole numbers of any width do."""
    texts = (pat.is_string, pat.is_large_string, pat.is_string_view)
    both = [[kind(dtype) for dtype in (one, two)] for kind in (pat.is_integer, *texts)]
    is_text = all(any(found[side] for found in both[1:]) for side in (0, 1))
    return one == two or all(both[0]) or is_text


def added_columns(
    step: str | None,
    table: pa.Schema,
    keys: tuple[str, ...],
    columns: tuple[str, ...] | None,
    taken: pa.Schema,
    suffix: str,
) -> tuple[tuple[str, str], ...]:
    """Columns of a table that a join adds, and what they are called in the result.

    Args:
        step: name of the step, for messages.
        table: all columns of the table.
        keys: those that are equal to columns of the input.
        columns: which are added; None: all that are no keys.
        taken: columns of the input.
        suffix: is added to names that are there already.

    Raises:
        GraphError: the table has no such column.
    """
    if columns is None:
        columns = tuple(name for name in table.names if name not in keys)
    for name in columns:
        check_is_name(f"step {step!r}: columns", name)
        if name not in table.names:
            raise GraphError(
                f"step {step!r}: the table has no column {name!r}{did_you_mean(name, table.names)}"
            )
    return tuple((name, f"{name}{suffix}" if name in taken.names else name) for name in columns)
