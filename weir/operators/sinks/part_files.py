"""Sinks that write files: exactly once, a file per transaction.

Files, below the sink's directory, where ``SUFFIX`` is the format's (``jsonl``, ``parquet``)::

    part-<subtask>-<generation>-<sequence>.SUFFIX            visible: complete, and never changed again
    .part-<subtask>-<generation>-<sequence>.SUFFIX.pending   rows that no complete checkpoint covers yet

All numbers have leading zeros: sorted by name, the parts of a subtask are in the order of its rows. Each checkpoint
makes at most one part per subtask, none if there were no rows; without checkpoints all rows become visible in one part
at the end.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO, ClassVar

import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import Json, OperatorContext
from weir.operators.sinks.two_phase import TransactionId, TwoPhaseSink

_BUFFER_BYTES = 1 << 20


class PartFilesSink(TwoPhaseSink):
    """Writes one file per transaction; subclasses say what is in it.

    Guarantee: exactly once. A part that is visible belongs to a complete checkpoint, holds all rows of one subtask
    between two checkpoints, and stays as it is. A deployment that was replaced makes nothing visible: its
    unlisted files are gone and its later ones never get a name. The directory must be the same for all task managers
    if subtasks may move between machines.
    """

    #: End of the parts' names, without the dot.
    suffix: ClassVar[str]

    def __init__(self, path: str) -> None:
        self._directory = Path(path).expanduser()
        self._file: BinaryIO | None = None
        self._name = ""
        self._visible_name = re.compile(rf"part-\d+-(\d+)-\d+\.{re.escape(self.suffix)}")
        self._pending_name = re.compile(rf"\.part-(\d+)-(\d+)-\d+\.{re.escape(self.suffix)}\.pending")

    def begin_part(self, file: BinaryIO) -> None:
        """A part begins in this file, which is empty."""

    @abstractmethod
    def write_rows(self, file: BinaryIO, batch: pa.RecordBatch) -> None:
        """Add rows, system columns included, to the part; some may be held back until :meth:`end_part`."""

    def end_part(self, file: BinaryIO) -> None:
        """Write what was held back, and the end of the part. The file stays open."""

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Create the directory, and remove what an earlier run of this subtask left pending.

        Raises:
            InputError: parts of an earlier run are there, or of another run from the same savepoint; or the directory
                cannot be written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not is_restart:
                self._check_fresh(context)
            elif context.subtask_index == min(context.subtask_indices or (context.subtask_index,)):
                self._check_own(context.generation)
            with open(
                self._directory / f".writable-{context.subtask_index}-{context.generation}", "wb"
            ) as probe:
                os.unlink(probe.name)
        except OSError as error:
            raise self._unwritable(error) from error

    def begin(self, transaction: TransactionId) -> None:
        """Create the pending file.

        Raises:
            InputError: it cannot be written.
        """
        number = f"{transaction.subtask_index:05d}-{transaction.generation:06d}-{transaction.sequence:08d}"
        self._name = f"part-{number}.{self.suffix}"
        pending = self._pending(self._name)
        try:
            # A fresh file: whoever still has an old one of this name open must not write into ours.
            pending.unlink(missing_ok=True)
            self._file = open(pending, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115
            self.begin_part(self._file)
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows.

        Raises:
            InputError: they cannot be written.
        """
        assert self._file is not None
        try:
            self.write_rows(self._file, batch)
        except OSError as error:
            raise self._unwritable(error) from error

    def flush(self) -> None:
        """Hand buffered rows to the operating system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                raise self._unwritable(error) from error

    def prepare(self) -> Json:
        """Bring the pending file to the disk and close it."""
        assert self._file is not None
        try:
            self.end_part(self._file)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.close()
            self._sync_directory()
        except OSError as error:
            raise self._unwritable(error) from error
        return {"name": self._name}

    def commit_prepared(self, description: Json) -> None:
        """Give the pending file its visible name; nothing if it has it, or was removed by a newer deployment.

        Raises:
            InputError: the directory cannot be written, or the name is taken by another file.
        """
        name = description["name"]
        pending, visible = self._pending(name), self._directory / name
        try:
            if visible.exists() and pending.exists():
                raise InputError(f"sink: {visible} exists already; remove it or choose another directory")
            os.rename(pending, visible)
            self._sync_directory()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unwritable(error) from error

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Remove pending files of earlier generations; listed ones have been renamed.

        Raises:
            InputError: the directory cannot be written.
        """
        self._remove_pending(lambda _, written_by: written_by < generation, listed)

    def close(self) -> None:
        """Release the file; safe to call twice. What is pending stays for a later commit."""
        if self._file is not None:
            try:
                self._file.close()
            finally:
                self._file = None

    def _check_fresh(self, context: OperatorContext) -> None:
        """Subtask 0 looks for all: a subtask that joins a running job finds parts of this very run."""
        index = context.subtask_index
        if index == 0:
            part = next(self._directory.glob(f"part-*.{self.suffix}"), None)
            if part is not None:
                raise InputError(f"sink: {part} exists already; remove it or choose another directory")
        # One run at a time writes to a directory, so pending files of this index are of an earlier one.
        self._remove_pending(lambda of_subtask, _: of_subtask == index, ())

    def _check_own(self, generation: int) -> None:
        """No deployment of this job, nor of the one that its savepoint is of, has made parts under this number yet."""
        for name in sorted(os.listdir(self._directory)):
            match = self._visible_name.fullmatch(name)
            if match is not None and int(match[1]) >= generation:
                raise InputError(
                    f"sink: {self._directory / name} is of another run that went on from the same savepoint or "
                    "checkpoint; choose another directory, or go on from that run"
                )

    def _remove_pending(self, is_old: Callable[[int, int], bool], kept: Collection[str]) -> None:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unwritable(error) from error
        for name in names:
            match = self._pending_name.fullmatch(name)
            if match is None or not is_old(int(match[1]), int(match[2])):
                continue
            if name[1 : -len(".pending")] not in kept:
                (self._directory / name).unlink(missing_ok=True)

    def _pending(self, name: str) -> Path:
        return self._directory / f".{name}.pending"

    def _sync_directory(self) -> None:
        """A name is safe from a power cut only when its directory is on the disk."""
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _unwritable(self, error: OSError) -> InputError:
        if isinstance(error, FileExistsError | NotADirectoryError):
            for path in (self._directory, *self._directory.parents):
                if path.exists() and not path.is_dir():
                    return InputError(f"sink: {path} is a file; name a directory")
        return InputError(
            f"sink: cannot write to {self._directory}: {error.strerror}; "
            "make room there, or choose a writable directory"
        )
