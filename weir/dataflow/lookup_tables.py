"""Tables outside that rows look up by key, as job authors write them. Inert: nothing is opened here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, get_args

import pyarrow as pa

from weir.dataflow.csv_settings import check_csv_types
from weir.errors import GraphError
from weir.rows.nested_paths import check_json_types
from weir.rows.schemas import to_schema
from weir.specs.kafka_properties import ClientProperties
from weir.specs.lookup_joins import CassandraTableSpec, FileTableSpec, TableFormat
from weir.state.ttl import duration_ms

#: By suffix of a file.
_FORMATS: Mapping[str, TableFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_CONSISTENCIES = ("ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")
_IN_FLIGHT_MAX = 10_000


@dataclass(frozen=True)
class FileTable:
    """A table in files on the machines of the job, for ``stream.lookup_join``.

    Files may be replaced while the job runs: write a new one elsewhere and rename it. A table of up to 64 MiB, and
    256 MiB in memory, is held by each subtask, and read again when its files have changed; a larger one is searched for
    the keys of each batch that are not remembered.

    Attributes:
        path: a file, a directory of parts, a glob, or the directory of a Delta Lake table.
        schema: column name -> Polars type, Python type or :class:`weir.Nullable` of one; or an Arrow schema. The files
            may have further columns.
        format: "parquet", "csv" (with a line of names), "json" (JSON lines), "arrow" or "delta"; None: as the path
            ends.
    """

    path: str
    schema: Mapping[str, object] | pa.Schema = field(kw_only=True)
    format: TableFormat | None = field(default=None, kw_only=True)

    def to_spec(self) -> FileTableSpec:
        """The frozen description that the graph holds; called by ``lookup_join``.

        Raises:
            GraphError: a setting is wrong; the message has no step.
        """
        if not isinstance(self.path, str) or not self.path:
            raise GraphError(f"path is {self.path!r}; give a file, a directory of parts or a glob")
        if self.format is not None and self.format not in get_args(TableFormat):
            known = ", ".join(repr(name) for name in get_args(TableFormat))
            raise GraphError(f"format is {self.format!r}; it is one of {known}")
        found = self.format or _FORMATS.get(PurePath(self.path).suffix.lower())
        if found is None:
            raise GraphError(
                f"nothing says what the files of {self.path!r} are; give format='parquet', 'csv', 'json', 'arrow' or "
                "'delta'"
            )
        schema = to_schema(self.schema)
        if found == "csv":
            check_csv_types(schema)
        elif found == "json":
            check_json_types(schema)
        return FileTableSpec(self.path, found, schema)


@dataclass(frozen=True)
class CassandraTable:
    """A table in Cassandra or ScyllaDB that others write, for ``stream.lookup_join``.

    It needs ``pip install 'weir[cassandra]'``.

    Attributes:
        table: its name.
        keyspace: where it is.
        schema: as that of :class:`FileTable`. The columns that rows are looked up by are at least the table's partition
            key.
        contact_points: hosts through which the others are found.
        port: of all hosts.
        username: of the user; empty: none.
        password: its password; no plan shows it.
        tls_ca_file: PEM file of the authority that has signed the nodes' certificates; empty: no TLS.
        local_datacenter: whose nodes are asked; empty: of the first node.
        consistency: of reads, such as "LOCAL_ONE" and "LOCAL_QUORUM".
        in_flight_max: requests of a process that are under way at a time.
        timeout: of each request, such as "5s"; one that takes longer is made again.
        patience: how long a batch waits for a database that does not answer; then the job starts again from its latest
            checkpoint.
    """

    table: str
    keyspace: str = field(kw_only=True)
    schema: Mapping[str, object] | pa.Schema = field(kw_only=True)
    contact_points: str | Sequence[str] = field(default=("127.0.0.1",), kw_only=True)
    port: int = field(default=9042, kw_only=True)
    username: str = field(default="", kw_only=True)
    password: str = field(default="", kw_only=True, repr=False)
    tls_ca_file: str = field(default="", kw_only=True)
    local_datacenter: str = field(default="", kw_only=True)
    consistency: str = field(default="LOCAL_ONE", kw_only=True)
    in_flight_max: int = field(default=32, kw_only=True)
    timeout: str | dt.timedelta = field(default="5s", kw_only=True)
    patience: str | dt.timedelta = field(default="30s", kw_only=True)

    def to_spec(self) -> CassandraTableSpec:
        """The frozen description that the graph holds; called by ``lookup_join``.

        Raises:
            GraphError: a setting is wrong; the message has no step.
        """
        for what, name in (("table", self.table), ("keyspace", self.keyspace)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise GraphError(f"{what} is {name!r}; it is a name of letters, digits and _, at most 48")
        schema = to_schema(self.schema)
        for name in schema.names:
            if not _NAME.fullmatch(name):
                raise GraphError(f"column {name!r}: a column of Cassandra is called by letters, digits and _")
        given: Any = self.contact_points
        hosts = tuple(each.strip() for each in (given.split(",") if isinstance(given, str) else given))
        if not hosts or not all(hosts):
            raise GraphError(f"contact_points are {given!r}; give at least one host")
        _check_number("port", self.port, 65_535)
        _check_number("in_flight_max", self.in_flight_max, _IN_FLIGHT_MAX)
        if self.consistency not in _CONSISTENCIES:
            raise GraphError(f"consistency is {self.consistency!r}; it is one of {', '.join(_CONSISTENCIES)}")
        credentials = {"username": self.username, "password": self.password} if self.username else {}
        return CassandraTableSpec(
            self.keyspace,
            self.table,
            schema,
            hosts,
            self.port,
            ClientProperties(credentials),
            self.tls_ca_file,
            self.local_datacenter,
            self.consistency,
            self.in_flight_max,
            duration_ms(self.timeout),
            duration_ms(self.patience),
        )


def _check_number(what: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise GraphError(f"{what} is {value!r}; it must be a whole number from 1 to {most:,}")
