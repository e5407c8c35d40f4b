"""File sinks whose files hold the rows of many checkpoints: partitioned, rolled by time and size.

At every barrier the rows since the last one are in a *row log*: one hidden file, synced, whatever the number of
partitions. When the oldest row was held for ``roll_ms``, or the logs have ``roll_bytes``, another thread writes
the rows of all closed logs as files, one per partition, still hidden. The next barrier after that prepares them, and
the commit of its checkpoint makes them visible and removes the logs. So nothing waits for the writing but the end of
the job.

Files, beside those of ``weir.operators.sinks.part_files``, whose parts are in the folders of their partitions here::

    .rows-<subtask>-<generation>-<sequence>.pending    a row log

A checkpoint names the logs that it needs. A restart goes on with them: each subtask with its own, the lowest one also
with those of subtasks that are gone. A subtask that a rescale retires writes its rows to files as it ends. The
snapshot is that of ``weir.operators.sinks.two_phase``, with the logs::

    {"kind": "two_phase_sink", "version": 1, "generation": 2,
     "transactions": [[17, {"name": ".rows-00000-000001-00000003.pending",
                            "files": ["day=7/part-00000-000001-00000004.parquet"],
                            "logs": [".rows-00000-000001-00000003.pending"]}]],
     "logs": [[".rows-00000-000002-00000001.pending", 1234, 1767268800000000]]}    name, bytes, first row's arrival
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError
from weir.operators.sinks.part_files import PartFilesSink
from weir.operators.sinks.rolled_writing import FileNames, WrittenFile, remove_files, write_files
from weir.operators.sinks.row_logs import LOG_NAME, RowLog, RowLogWriter, read_logs
from weir.operators.sinks.two_phase import TransactionId
from weir.rows.records import user_columns
from weir.specs import FileSinkSpec
from weir.specs.sinks import ROLL_BYTES, ROLL_MS

log = logging.getLogger(__name__)


class RolledFilesSink(PartFilesSink):
    """A sink of rolled files. Guarantee: exactly once, as its base; each file appears whole, a roll's one by one."""

    def __init__(self, spec: FileSinkSpec) -> None:
        super().__init__(spec)
        self._partition_by = tuple(spec.partition_by)
        self._roll_us = (ROLL_MS if spec.roll_ms is None else spec.roll_ms) * 1e3
        self._roll_bytes = ROLL_BYTES if spec.roll_bytes is None else spec.roll_bytes
        self._log: RowLogWriter | None = None
        #: Closed, and not being written to files.
        self._logs: list[RowLog] = []
        #: Those that another thread writes to files.
        self._rolling: list[RowLog] = []
        self._roll: Future[list[WrittenFile]] | None = None
        #: Files that are written, and the logs that they are of; the next barrier prepares them.
        self._written: list[tuple[list[WrittenFile], list[RowLog]]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="file-sink")
        self._is_closed = False

    # --- start ---

    def open(self, context: OperatorContext) -> None:
        """Take over the logs of the checkpoint, besides what the base class does.

        Raises:
            InputError: one is gone, or the directory cannot be written.
        """
        self._names = self.file_names(context)
        listed = {
            index: [RowLog.from_json(item) for item in value.get("logs", ())]
            for index, value in context.restored.items()
            if isinstance(value, dict)
        }
        self._listed_logs = {item.name for logs in listed.values() for item in logs}
        super().open(context)
        indices = context.subtask_indices or (context.subtask_index,)
        is_lowest = context.subtask_index == min(indices)
        with self.explained():
            there = set(self._place.hidden()) if listed else set()
        for index, logs in sorted(listed.items()):
            if index == context.subtask_index or (is_lowest and index not in indices):
                self._logs += [item for item in logs if self._is_there(item, there)]

    def file_names(self, context: OperatorContext) -> FileNames:
        """What names the files of this subtask."""
        return FileNames(
            self._suffix, context.subtask_index, context.generation, partition_by=self._partition_by
        )

    def described(self, files: list[WrittenFile], logs: list[str]) -> Json:
        """Return all that the commit of a roll needs."""
        return {"name": logs[0], "files": [file.name for file in files], "logs": logs}

    def check_holds_rows(self, context: OperatorContext) -> None:
        """Accept the checkpoint: this sink holds rows."""

    def _is_there(self, item: RowLog, there: Collection[str]) -> bool:
        """A log goes when its rows are visible: the checkpoint is an older one then, or the directory another.

        Raises:
            InputError: nothing shows that its rows were delivered.
        """
        if item.name in there:
            return True
        match = LOG_NAME.fullmatch(item.name)
        if match is None or not self.has_delivered_since(int(match[2])):
            raise InputError(
                f"sink: {self._place.at(item.name)} is gone, with rows that were not in a file yet; "
                "start the job in the directory where it ran, from its latest checkpoint"
            )
        log.warning(
            "sink: %s is gone: a later checkpoint than this one has delivered its rows",
            self._place.at(item.name),
        )
        return False

    def has_delivered_since(self, generation: int) -> bool:
        """Return whether something is visible of this generation or a later one."""
        with self.explained():
            found = (self._visible_name.fullmatch(name) for name in self._place.visible())
            return any(part is not None and int(part[1]) >= generation for part in found)

    def _remove_older_logs(self, generation: int) -> None:
        with self.explained():
            for name in self._place.hidden():
                match = LOG_NAME.fullmatch(name)
                if match is not None and int(match[2]) < generation and name not in self._listed_logs:
                    self._place.remove(name)

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Remove pending files and logs of earlier generations that the checkpoint does not name."""
        super().abort_unlisted((), generation)
        self._remove_older_logs(generation)

    def check_fresh(self, context: OperatorContext) -> None:
        """Check what is there, as the base class does, and remove logs."""
        super().check_fresh(context)
        self.remove_logs_of(context.subtask_index)

    def remove_logs_of(self, index: int) -> None:
        """Remove the logs that an earlier run of this subtask has left."""
        for name in self._place.hidden():
            match = LOG_NAME.fullmatch(name)
            if match is not None and int(match[1]) == index:
                self._place.remove(name)

    # --- rows ---

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Add the rows to the open log.

        Raises:
            InputError: they cannot be written, or earlier ones could not.
        """
        self.check_intact()
        rows = batch.select(user_columns(batch.schema))
        with self.explained():
            if self._log is None:
                self._log = RowLogWriter(self._place, self._names.log(), self._context.clock.now_us())
            self._log.write(rows)
            if self._log.bytes >= self._roll_bytes:
                self._close_log()
                self._take_roll(waits=False)
                self._begin_roll_if_due()
        return ()

    def begin(self, transaction: TransactionId) -> None:
        """Never called: there are no transactions but rolls."""
        raise AssertionError

    def flush(self) -> None:
        """Nothing: rows are in the process until the barrier, or until there are many."""

    # --- checkpoints ---

    def snapshot(self, checkpoint_id: int) -> Json:
        """Make the rows durable; prepare a roll that has been written; begin another if it is due.

        At the end (checkpoint id 0) everything is written and prepared.

        Raises:
            InputError: rows cannot be written, or earlier ones could not.
        """
        self.check_intact()
        is_last = checkpoint_id == 0
        with self.explained():
            self._close_log()
            self._take_roll(waits=is_last)
            if is_last and self._logs:
                self._begin_roll()
                self._take_roll(waits=True)
            self._begin_roll_if_due()
        for files, logs in self._written:
            description = self.described(files, [item.name for item in logs])
            with self._lock:
                self._prepared.append((checkpoint_id, description))
        self._written = []
        value = super().snapshot(checkpoint_id)
        held = [*self._rolling, *self._logs]
        return value | {"logs": [item.to_json() for item in held]} if held else value

    def _close_log(self) -> None:
        if self._log is not None:
            self._logs.append(self._log.seal())
            self._log = None

    def _begin_roll_if_due(self) -> None:
        if not self._logs or self._roll is not None:
            return
        age_us = self._context.clock.now_us() - min(item.began_us for item in self._logs)
        if age_us >= self._roll_us or sum(item.bytes for item in self._logs) >= self._roll_bytes:
            self._begin_roll()

    def _begin_roll(self) -> None:
        self._rolling, self._logs = self._logs, []
        self._roll = self._pool.submit(
            write_files,
            self._place,
            read_logs(self._place, self._rolling),
            self._new_writer,
            self._names,
            lambda: self._is_closed,
        )

    def _take_roll(self, *, waits: bool) -> None:
        """If the roll is written, note its files."""
        if self._roll is None or not (waits or self._roll.done()):
            return
        roll, self._roll = self._roll, None
        files = roll.result()
        self._written.append((files, self._rolling))
        self._rolling = []

    def close(self) -> None:
        """Release the files; the thread stops writing, and what it wrote goes: its rows are in the logs."""
        self._is_closed = True
        roll, self._roll = self._roll, None
        if roll is not None:
            roll.add_done_callback(self._remove_roll)
        self._pool.shutdown(wait=False, cancel_futures=True)
        writer, self._log = self._log, None
        if writer is not None:
            with self.explained():
                writer.abandon()
        super().close()

    def _remove_roll(self, roll: Future[list[WrittenFile]]) -> None:
        if not roll.cancelled() and roll.exception() is None:
            remove_files(self._place, roll.result())
