"""Sinks that write files: exactly once, a file per transaction.

Files, below the sink's directory or URI, where ``SUFFIX`` is the format's (``jsonl``, ``csv``, ``parquet``, ...)::

    part-<subtask>-<generation>-<sequence>.SUFFIX            visible: complete, and never changed again
    .part-<subtask>-<generation>-<sequence>.SUFFIX.pending   rows that no complete checkpoint covers yet

All numbers have leading zeros: sorted by name, the parts of a subtask are in the order of its rows. Each checkpoint
makes at most one part per subtask, none if there were no rows; without checkpoints all rows become visible in one part
at the end. ``weir.operators.sinks.rolled_files`` has the sinks whose files hold the rows of several checkpoints.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError, StateMismatchError
from weir.operators.sinks.part_formats import part_format
from weir.operators.sinks.place_errors import unwritable
from weir.operators.sinks.places import open_place
from weir.operators.sinks.text_parts import PartWriter
from weir.operators.sinks.two_phase import TransactionId, TwoPhaseSink
from weir.rows.records import user_columns
from weir.specs import FileSinkSpec


class PartFilesSink(TwoPhaseSink):
    """Writes one file per transaction.

    Guarantee: exactly once. A part that is visible belongs to a complete checkpoint, holds all rows of one subtask
    between two checkpoints, and stays as it is. A deployment that was replaced makes nothing visible: its
    unlisted files are gone and its later ones never get a name. The place must be the same for all task managers
    if subtasks may move between machines.
    """

    def __init__(self, spec: FileSinkSpec) -> None:
        self._place = open_place(spec.path)
        self._suffix, self._new_writer = part_format(spec)
        self._stream: Any = None
        self._writer: PartWriter | None = None
        self._name = ""
        #: What the place refused: rows may be missing from a file, so that nothing more is delivered from here.
        self._failure: OSError | None = None
        self._visible_name = re.compile(rf"(?:.*/)?part-\d+-(\d+)-\d+\.{re.escape(self._suffix)}")
        self._pending_name = re.compile(rf"\.(part-(\d+)-(\d+)-\d+\.{re.escape(self._suffix)})\.pending")

    def open(self, context: OperatorContext) -> None:
        """Open the sink, as the base class says.

        Raises:
            StateMismatchError: the checkpoint names rows that this sink would not bring to a file.
        """
        if any(value.get("logs") for value in context.restored.values() if isinstance(value, dict)):
            self.check_holds_rows(context)
        super().open(context)

    def check_holds_rows(self, context: OperatorContext) -> None:
        """The checkpoint names row logs.

        Raises:
            StateMismatchError: the sink has none.
        """
        raise StateMismatchError(
            f"sink {context.operator_name}: the checkpoint holds rows that are in no file yet, because the sink had "
            "partition_by, roll_ms or roll_bytes; give them back, or give it roll_ms=0"
        )

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Create the directory, and remove what an earlier run of this subtask left pending.

        Raises:
            InputError: parts of an earlier run are there, or of another run from the same savepoint; or the directory
                cannot be written.
        """
        with self.explained():
            if not is_restart:
                self.check_fresh(context)
            elif context.subtask_index == min(context.subtask_indices or (context.subtask_index,)):
                self.check_own(context.generation)
            self._place.prepare(f".writable-{context.subtask_index}-{context.generation}")

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write the rows.

        Raises:
            InputError: they cannot be written, or earlier ones could not.
        """
        self.check_intact()
        return super().process(batch)

    def snapshot(self, checkpoint_id: int) -> Json:
        """Return the snapshot of the base class, once it is sure that rows are intact.

        Raises:
            InputError: rows cannot be written, or earlier ones could not.
        """
        self.check_intact()
        return super().snapshot(checkpoint_id)

    def check_intact(self) -> None:
        """A checkpoint that fails does not end the job: the next call does, and the job goes back to its last one.

        Raises:
            InputError: rows could not be written.
        """
        if self._failure is not None:
            raise unwritable(self._failure, self._place.location) from self._failure

    def begin(self, transaction: TransactionId) -> None:
        """Create the pending file.

        Raises:
            InputError: it cannot be written.
        """
        self._name = self.part_name(transaction.subtask_index, transaction.generation, transaction.sequence)
        with self.explained():
            self._stream = self._place.create(pending(self._name))

    def part_name(self, subtask_index: int, generation: int, sequence: int) -> str:
        """The name of a part."""
        return f"part-{subtask_index:05d}-{generation:06d}-{sequence:08d}.{self._suffix}"

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows.

        Raises:
            InputError: they cannot be written.
        """
        rows = batch.select(user_columns(batch.schema))
        with self.explained():
            if self._writer is None:
                self._writer = self._new_writer(self._stream, rows.schema)
            self._writer.write(rows)

    def flush(self) -> None:
        """Hand buffered rows to the operating system."""
        if self._writer is not None:
            with self.explained():
                self._writer.flush()

    def prepare(self) -> Json:
        """Complete the pending file, and bring it to the disk."""
        assert self._writer is not None
        with self.explained():
            self._writer.end()
            self._writer = None
            self._place.seal([self._stream])
            self._stream = None
        return {"name": self._name}

    def commit_prepared(self, description: Json) -> None:
        """Give the pending files their visible names; nothing if they have them, or a newer deployment removed them.

        Raises:
            InputError: the directory cannot be written, or the name is taken by another file.
        """
        with self.explained():
            self.publish(description)
            # Of rows that were held over checkpoints: weir.operators.sinks.rolled_files.
            for log in description.get("logs", ()):
                self._place.remove(log)

    def publish(self, description: Json) -> None:
        """Give pending files their visible names, durably."""
        names = description.get("files", [description["name"]])
        for name in names:
            self._place.publish(pending(name), name)
        self._place.settle(names)

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Remove pending files of earlier generations; listed ones have been renamed.

        Raises:
            InputError: the directory cannot be written.
        """
        self.remove_pending(lambda _, written_by: written_by < generation, listed)

    def close(self) -> None:
        """Release the file; safe to call twice. What is pending stays for a later commit."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        stream, self._stream = self._stream, None
        if stream is not None:
            with self.explained():
                stream.close()

    def check_fresh(self, context: OperatorContext) -> None:
        """Subtask 0 looks for all: a subtask that joins a running job finds parts of this very run."""
        index = context.subtask_index
        if index == 0:
            part = next(self._visible_parts(), None)
            if part is not None:
                raise InputError(
                    f"sink {context.operator_name!r}: {self._place.at(part)} exists already, from an earlier run; "
                    "remove all results there or choose another directory"
                )
        # One run at a time writes to a directory, so pending files of this index are of an earlier one.
        self.remove_pending(lambda of_subtask, _: of_subtask == index, ())

    def check_own(self, generation: int) -> None:
        """No deployment of this job, nor of the one that its savepoint is of, has made parts under this number yet."""
        for name in self._visible_parts():
            match = self._visible_name.fullmatch(name)
            if match is not None and int(match[1]) >= generation:
                raise InputError(
                    f"sink: {self._place.at(name)} is of another run that went on from the same savepoint or "
                    "checkpoint; choose another directory, or go on from that run"
                )

    def _visible_parts(self) -> Iterator[str]:
        return (name for name in self._place.visible() if self._visible_name.fullmatch(name))

    def remove_pending(self, is_old: Callable[[int, int], bool], kept: Collection[str]) -> None:
        """Remove hidden parts, chosen by subtask and generation, but for those that are kept."""
        with self.explained():
            for name in self._place.hidden():
                match = self._pending_name.fullmatch(name)
                if match is not None and is_old(int(match[2]), int(match[3])) and match[1] not in kept:
                    self._place.remove(name)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """What the operating system or the service says becomes one line that names the place."""
        try:
            yield
        except OSError as error:
            self._failure = error
            raise unwritable(error, self._place.location) from error


def pending(name: str) -> str:
    """The hidden name of a part."""
    return f".{name.rpartition('/')[2]}.pending"
