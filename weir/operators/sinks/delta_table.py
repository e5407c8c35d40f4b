"""A table of Delta Lake to which files are added, each time in one commit that names an application transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
import pyarrow as pa

from weir.author.operator import Json
from weir.clock import Clock
from weir.errors import FailureKind, InputError
from weir.redaction import redacted_text
from weir.specs import DeltaSinkSpec

#: A commit that another one overtook is tried again so often.
_ATTEMPTS_MAX = 10


class DeltaTable:
    """The table of a sink.

    Args:
        spec: of the sink.
        location: of the table, for messages: no credentials.
        clock: says when files were added.

    Raises:
        InputError: Delta Lake's library is not installed.
    """

    def __init__(self, spec: DeltaSinkSpec, location: str, clock: Clock) -> None:
        self._delta = delta_library()
        self._columns, self._location, self._clock = list(spec.partition_by), location, clock
        self._uri, self._options = table_of(spec.path)
        self._opened: Any = None

    def create(self, schema: pa.Schema) -> None:
        """Create the table if it is not there.

        Raises:
            InputError: it has other columns or partitions, or cannot be written.
        """
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        create, error_type = self._delta.DeltaTable.create, self._delta.exceptions.DeltaError
        try:
            create(
                self._uri, nullable, mode="ignore", partition_by=self._columns, storage_options=self._options
            )
        except (error_type, OSError) as error:
            # Several subtasks begin at once, and one of them makes it.
            if not self.exists():
                raise self._refused(error) from error
        table = self._table()
        self._check_columns(table, nullable)
        if table.metadata().partition_columns != self._columns:
            raise InputError(
                f"sink: the Delta table {self._location} is partitioned by "
                f"{table.metadata().partition_columns}, not by {self._columns}; give it that partition_by"
            )

    def _check_columns(self, table: Any, schema: pa.Schema) -> None:
        ours = {f.name: str(f.type) for f in self._delta.Schema.from_arrow(schema).fields}
        theirs = {field.name: str(field.type) for field in table.schema().fields}
        different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if different:
            name = different[0]
            raise InputError(
                f"sink: the Delta table {self._location} has {theirs.get(name, 'no column')} for {name!r}, "
                f"and the job {ours.get(name, 'no column')}; give them the same columns, or choose another table"
            )

    def exists(self) -> bool:
        """Return whether it is there."""
        return bool(self._delta.DeltaTable.is_deltatable(self._uri, self._options))

    def versions(self, app_ids: Iterable[str]) -> list[int]:
        """Return the latest transactions that it has of applications."""
        table = self._table()
        found = [table.transaction_version(app_id) for app_id in app_ids]
        return [version for version in found if version is not None]

    def add(self, app_id: str, version: int, adds: Sequence[Json]) -> None:
        """Add files in one commit, unless the table has this transaction already, or a later one.

        Args:
            app_id: application of the transaction.
            version: the transaction; grows from one to the next.
            adds: of each file its name, the values of its partition, and how many rows and bytes it has.

        Raises:
            InputError: it cannot be written.
        """
        try:
            for attempt in range(_ATTEMPTS_MAX):
                table = self._table()
                done = table.transaction_version(app_id)
                if done is not None and done >= version:
                    return
                try:
                    self._commit(table, app_id, version, adds)
                    return
                except self._delta.exceptions.CommitFailedError:
                    if attempt + 1 == _ATTEMPTS_MAX:
                        raise
        except (self._delta.exceptions.DeltaError, OSError) as error:
            raise self._refused(error) from error

    def _commit(self, table: Any, app_id: str, version: int, adds: Sequence[Json]) -> None:
        transaction = self._delta.Transaction(app_id, version)
        table.create_write_transaction(
            [self._action(name, values, rows, size) for name, values, rows, size in adds],
            "append",
            table.schema(),
            partition_by=self._columns,
            commit_properties=self._delta.CommitProperties(app_transactions=[transaction]),
        )

    def _action(self, name: str, values: Sequence[str | None], rows: int, size_bytes: int) -> Any:
        return import_module("deltalake.transaction").AddAction(
            path=name,
            size=size_bytes,
            partition_values=dict(zip(self._columns, values, strict=True)),
            modification_time=self._clock.now_us() // 1000,
            data_change=True,
            stats=orjson.dumps({"numRecords": rows}).decode(),
        )

    def _table(self) -> Any:
        """The table as it is now; only what is new in its log is read."""
        try:
            if self._opened is None:
                self._opened = self._delta.DeltaTable(self._uri, storage_options=self._options)
            else:
                self._opened.update_incremental()
        except (self._delta.exceptions.DeltaError, OSError) as error:
            raise self._refused(error) from error
        return self._opened

    def _refused(self, error: Exception) -> InputError:
        text = redacted_text(" ".join(str(error).split()))[:200]
        refused = InputError(
            f"sink: the Delta table {self._location} cannot be written: {text}; mend its place, or choose another"
        )
        refused.failure_kind = FailureKind.OUTAGE
        return refused


def delta_library() -> Any:
    """Delta Lake's library.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise InputError(
            "sink: Delta Lake's library is not installed; run: pip install 'weir[delta]'"
        ) from error


def table_of(path: str) -> tuple[str, Mapping[str, str] | None]:
    """A path or a URI of ``pyarrow.fs`` as Delta Lake's library wants it: the place, and the other things in it."""
    parts = urlsplit(path)
    if parts.scheme != "s3":
        local = unquote(parts.path) if parts.scheme == "file" else path
        return (path if parts.scheme not in ("", "file") else str(Path(local).expanduser())), None
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    options = {"aws_region": query.get("region", "")}
    if parts.username:
        options["aws_access_key_id"] = unquote(parts.username)
        options["aws_secret_access_key"] = unquote(parts.password or "")
    if "endpoint_override" in query:
        scheme = query.get("scheme", "https")
        options["aws_endpoint_url"] = f"{scheme}://{query['endpoint_override']}"
        options["aws_allow_http"] = str(scheme == "http").lower()
    bucket = parts.netloc.rpartition("@")[2]
    return f"s3://{bucket}{parts.path}", {name: value for name, value in options.items() if value}
