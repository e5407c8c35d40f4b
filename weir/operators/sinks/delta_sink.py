"""The Delta Lake sink: a roll of ``weir.operators.sinks.rolled_files`` whose files one Delta commit adds to the table.

The commit names an *application transaction*: an application id and a version, which the library keeps in the table's
log. A commit that comes again finds its version there and does nothing; of two that come at once, one fails and looks
again. Data files are in folders as Hive has them: some readers, Polars among them, look there instead of into the log.

The application id is made by chance when a run begins, one per subtask, and goes along in its snapshots::

    {"kind": "two_phase_sink", "version": 1, "generation": 2, "app_id": "weir/job/out/0/1f2e3d4c",
     "transactions": [[17, {"name": ..., "files": [...], "logs": [...], "app_id": "weir/job/out/0/1f2e3d4c",
                            "version": 8589934593, "adds": [[name, values, rows, bytes]]}]], "logs": [...]}

A version is the generation, and in its low 32 bits the number of the roll: it grows with every commit of the id.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
import pyarrow as pa

from weir.author.operator import Json, OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.sinks.partitions import Values
from weir.operators.sinks.rolled_files import RolledFilesSink
from weir.operators.sinks.rolled_writing import FileNames, WrittenFile
from weir.redaction import redacted_text
from weir.specs import DeltaSinkSpec

_GENERATION_BITS = 32
#: A commit that another one overtook is tried again so often.
_ATTEMPTS_MAX = 10


class DeltaSink(RolledFilesSink):
    """A Delta Lake sink. Guarantee: exactly once; the rows of a commit appear together."""

    def __init__(self, spec: DeltaSinkSpec) -> None:
        super().__init__(spec)
        try:
            self._delta: Any = import_module("deltalake")
        except ImportError as error:
            raise InputError(
                "sink: Delta Lake's library is not installed; run: pip install 'weir[delta]'"
            ) from error
        self._columns = tuple(spec.partition_by)
        self._uri, self._options = table_of(spec.path)
        self._rolls = 0
        self._opened: Any = None
        suffix = rf"[0-9a-f]{{8}}\.{re.escape(self._suffix)}"
        self._pending_name = re.compile(rf"\.(part-(\d+)-(\d+)-\d+\.{suffix})\.pending")

    def open(self, context: OperatorContext) -> None:
        """Take over the application id of the checkpoint, or make one."""
        apps = {
            index: value["app_id"] for index, value in context.restored.items() if "app_id" in (value or {})
        }
        fresh = (
            f"weir/{context.job_name}/{context.operator_name}/{context.subtask_index}/{secrets.token_hex(4)}"
        )
        self._app_id = apps.get(context.subtask_index, fresh)
        self._known_apps = tuple(apps.values())
        super().open(context)

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Create the table if it is not there.

        Raises:
            InputError: it has other columns or partitions, or cannot be written.
        """
        super().start(context, is_restart)
        if context.schema is not None:
            self._create_table(context.schema)

    def _create_table(self, schema: pa.Schema) -> None:
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        create, error_type = self._delta.DeltaTable.create, self._delta.exceptions.DeltaError
        try:
            create(
                self._uri,
                nullable,
                mode="ignore",
                partition_by=list(self._columns),
                storage_options=self._options,
            )
        except (error_type, OSError) as error:
            # Several subtasks begin at once, and one of them makes it.
            if not self._exists():
                raise self._refused(error) from error
        table = self._table()
        self._check_columns(table, nullable)
        if table.metadata().partition_columns != list(self._columns):
            raise InputError(
                f"sink: the Delta table {self._place.location} is partitioned by "
                f"{table.metadata().partition_columns}, not by {list(self._columns)}; give it that partition_by"
            )

    def _check_columns(self, table: Any, schema: pa.Schema) -> None:
        ours = {f.name: str(f.type) for f in self._delta.Schema.from_arrow(schema).fields}
        theirs = {field.name: str(field.type) for field in table.schema().fields}
        different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if different:
            name = different[0]
            raise InputError(
                f"sink: the Delta table {self._place.location} has {theirs.get(name, 'no column')} for {name!r}, "
                f"and the job {ours.get(name, 'no column')}; give them the same columns, or choose another table"
            )

    def file_names(self, context: OperatorContext) -> FileNames:
        """Unlike those of other runs that write to the table."""
        return FileNames(
            f"{secrets.token_hex(4)}.{self._suffix}",
            context.subtask_index,
            context.generation,
            partition_by=self._columns,
            # The table's log has them too.
            values_in_folders=False,
        )

    def check_fresh(self, context: OperatorContext) -> None:
        """A table of earlier runs is gone on with; what this subtask left hidden then goes."""
        index = context.subtask_index
        self.remove_pending(lambda of_subtask, _: of_subtask == index, ())
        self.remove_logs_of(index)

    def check_own(self, generation: int) -> None:
        """No deployment that went on from the same checkpoint has committed under this number yet."""
        if self.has_delivered_since(generation):
            raise InputError(
                f"sink: the Delta table {self._place.location} has commits of another run that went on from the "
                "same savepoint or checkpoint; choose another table, or go on from that run"
            )

    def has_delivered_since(self, generation: int) -> bool:
        """Return whether the table has commits of this generation or a later one."""
        if not self._known_apps or not self._exists():
            return False
        table = self._table()
        versions = [table.transaction_version(app_id) for app_id in self._known_apps]
        return any(version is not None and version >> _GENERATION_BITS >= generation for version in versions)

    def snapshot(self, checkpoint_id: int) -> Json:
        """Return the snapshot of the base class, with the application id."""
        value: dict[str, Json] = super().snapshot(checkpoint_id)
        return value | {"app_id": self._app_id}

    def described(self, files: list[WrittenFile], logs: list[str]) -> Json:
        """Return the roll with the files' facts for the table's log."""
        self._rolls += 1
        return super().described(files, logs) | {
            "app_id": self._app_id,
            "version": (self._context.generation << _GENERATION_BITS) + self._rolls,
            "adds": [[file.name, list(file.values), file.rows, file.bytes] for file in files],
        }

    def publish(self, description: Json) -> None:
        """Give the files their names, then add them to the table in one commit, unless that was done."""
        super().publish(description)
        app_id, version = description["app_id"], description["version"]
        try:
            for attempt in range(_ATTEMPTS_MAX):
                table = self._table()
                done = table.transaction_version(app_id)
                if done is not None and done >= version:
                    return
                try:
                    self._commit(table, description)
                    return
                except self._delta.exceptions.CommitFailedError:
                    if attempt + 1 == _ATTEMPTS_MAX:
                        raise
        except (self._delta.exceptions.DeltaError, OSError) as error:
            raise self._refused(error) from error

    def _commit(self, table: Any, description: Json) -> None:
        actions = [self._action(name, values, rows, size) for name, values, rows, size in description["adds"]]
        transaction = self._delta.Transaction(description["app_id"], description["version"])
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=list(self._columns),
            commit_properties=self._delta.CommitProperties(app_transactions=[transaction]),
        )

    def _action(self, name: str, values: Values, rows: int, size_bytes: int) -> Any:
        return import_module("deltalake.transaction").AddAction(
            path=name,
            size=size_bytes,
            partition_values=dict(zip(self._columns, values, strict=True)),
            modification_time=self._context.clock.now_us() // 1000,
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

    def _exists(self) -> bool:
        return bool(self._delta.DeltaTable.is_deltatable(self._uri, self._options))

    def _refused(self, error: Exception) -> InputError:
        text = redacted_text(" ".join(str(error).split()))[:200]
        refused = InputError(
            f"sink: the Delta table {self._place.location} cannot be written: {text}; mend its place, or choose another"
        )
        refused.failure_kind = FailureKind.OUTAGE
        return refused


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
