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

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError
from weir.operators.sinks.delta_table import DeltaTable, delta_library
from weir.operators.sinks.rolled_files import RolledFilesSink
from weir.operators.sinks.rolled_writing import FileNames, WrittenFile
from weir.specs import DeltaSinkSpec

_GENERATION_BITS = 32


class DeltaSink(RolledFilesSink):
    """A Delta Lake sink. Guarantee: exactly once; the rows of a commit appear together."""

    def __init__(self, spec: DeltaSinkSpec) -> None:
        super().__init__(spec)
        delta_library()
        self._spec = spec
        self._rolls = 0
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
        self._table = DeltaTable(self._spec, self._place.location, context.clock)
        super().open(context)

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Create the table if it is not there.

        Raises:
            InputError: it has other columns or partitions, or cannot be written.
        """
        super().start(context, is_restart)
        if context.schema is not None:
            self._table.create(context.schema)

    def file_names(self, context: OperatorContext) -> FileNames:
        """Unlike those of other runs that write to the table."""
        return FileNames(
            f"{secrets.token_hex(4)}.{self._suffix}",
            context.subtask_index,
            context.generation,
            partition_by=self._spec.partition_by,
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
        if not self._known_apps or not self._table.exists():
            return False
        versions = self._table.versions(self._known_apps)
        return any(version >> _GENERATION_BITS >= generation for version in versions)

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
        self._table.add(description["app_id"], description["version"], description["adds"])
