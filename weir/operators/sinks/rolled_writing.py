"""Writes the rows of a roll to hidden files, one per partition, in a thread that holds the GIL little."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.operators.sinks.part_files import pending
from weir.operators.sinks.partitions import Values, cut_column, folder_of, split
from weir.operators.sinks.places import Place
from weir.operators.sinks.row_logs import log_name, log_prefix
from weir.operators.sinks.text_parts import PartWriter
from weir.rows.records import batch_bytes

log = logging.getLogger(__name__)

#: Rows that are split among their partitions at once.
CHUNK_BYTES = 64 << 20
#: Files that are written at the same time; beyond that the one that waited longest is completed.
OPEN_FILES_MAX = 64
#: What the writers of all open files may hold back together after a chunk.
HELD_BYTES_MAX = 128 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A hidden file that is durable."""

    #: Where it will be visible, relative to the place.
    name: str
    #: Of its partition, in the order of the columns.
    values: Values
    rows: int
    bytes: int


class FileNames:
    """Names of the files of one subtask in one generation; none comes twice. Safe in any thread.

    Args:
        suffix: what they end with.
        subtask_index: of the subtask.
        generation: of the deployment.
        partition_by: columns whose values name folders.
        values_in_folders: nothing but the folder says what these columns are: it is told when one is cut.
    """

    def __init__(
        self,
        suffix: str,
        subtask_index: int,
        generation: int,
        *,
        partition_by: Sequence[str] = (),
        values_in_folders: bool = True,
    ) -> None:
        self._suffix = suffix
        self.partition_by = tuple(partition_by)
        self._prefix = log_prefix(subtask_index, generation)
        # A logged row is before those of later numbers. Incremented in one bytecode step that the GIL guards.
        self._numbers = iter(range(1, 1 << 62))
        self._tells_cut = values_in_folders

    def part(self, values: Values) -> str:
        """The name of the next part of a partition: its folder, and a number."""
        folder = folder_of(self.partition_by, values)
        cut = cut_column(self.partition_by, values) if self._tells_cut else None
        if cut is not None:
            self._tells_cut = False
            log.warning(
                "sink: a value of %s is too long for the name of its folder, %s: its end is in no file, here and in "
                "others after it; partition by a shorter column, or by a copy of it",
                cut,
                folder,
            )
        return f"{folder}part-{self._prefix}-{next(self._numbers):08d}.{self._suffix}"

    def log(self) -> str:
        """The name of the next row log."""
        return log_name(self._prefix, next(self._numbers))


def write_files(
    place: Place,
    batches: Iterable[pa.RecordBatch],
    new_writer: Callable[[Any, pa.Schema], PartWriter],
    names: FileNames,
    is_cancelled: Callable[[], bool],
) -> list[WrittenFile]:
    """Write rows to hidden files, durably.

    Memory: a chunk of the rows, beside what the writers of at most ``OPEN_FILES_MAX`` files hold. Where it raises, it
    leaves no file.

    Raises:
        CancelledError: the sink was closed.
        OSError: a file cannot be written.
    """
    files = _OpenFiles(place, new_writer, names)
    try:
        for chunk in _chunks(batches):
            if is_cancelled():
                raise CancelledError
            for values, rows in split(chunk, names.partition_by):
                files.write(values, rows)
            files.spill()
        files.complete_all()
    except BaseException:
        files.abandon()
        raise
    return files.written


def remove_files(place: Place, files: Iterable[WrittenFile]) -> None:
    """Remove files that nobody prepares; one that cannot be removed goes when the job starts again."""
    for file in files:
        with contextlib.suppress(OSError):
            place.remove(pending(file.name))


@dataclass(slots=True)
class _OpenFile:
    name: str
    values: Values
    schema: pa.Schema
    stream: Any
    writer: PartWriter
    rows: int = 0


class _OpenFiles:
    """The files of a roll that are being written; the one that waited longest is first."""

    def __init__(
        self, place: Place, new_writer: Callable[[Any, pa.Schema], PartWriter], names: FileNames
    ) -> None:
        self._place, self._new_writer, self._names = place, new_writer, names
        self._open: dict[Values, _OpenFile] = {}
        #: Those that are complete.
        self.written: list[WrittenFile] = []

    def write(self, values: Values, rows: pa.Table) -> None:
        """Add rows of a partition."""
        file = self._open.pop(values, None)
        # Columns are others after a restart with another version of the job.
        if file is not None and file.schema != rows.schema:
            self._complete([file])
            file = None
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._complete([self._open.pop(next(iter(self._open)))])
            name = self._names.part(values)
            stream = self._place.create(pending(name))
            file = _OpenFile(name, values, rows.schema, stream, self._new_writer(stream, rows.schema))
        self._open[values] = file
        file.rows += rows.num_rows
        for batch in rows.combine_chunks().to_batches():
            file.writer.write(batch)

    def spill(self) -> None:
        """Let writers hold back less, the one that holds most first."""
        held_bytes = sum(file.writer.held_bytes for file in self._open.values())
        for file in sorted(self._open.values(), key=lambda file: file.writer.held_bytes, reverse=True):
            if held_bytes <= HELD_BYTES_MAX:
                return
            held_bytes -= file.writer.held_bytes
            file.writer.spill()

    def complete_all(self) -> None:
        """End all files, and bring them to the disk."""
        files = list(self._open.values())
        self._complete(files)
        self._open = {}

    def _complete(self, files: Sequence[_OpenFile]) -> None:
        for file in files:
            file.writer.end()
            self.written.append(WrittenFile(file.name, file.values, file.rows, file.stream.tell()))
        if files:
            self._place.seal([file.stream for file in files])

    def abandon(self) -> None:
        """Release what is not complete, and remove all files."""
        for file in self._open.values():
            file.writer.abandon()
            with contextlib.suppress(OSError):
                file.stream.close()
            self.written.append(WrittenFile(file.name, file.values, 0, 0))
        remove_files(self._place, self.written)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    collected: list[pa.RecordBatch] = []
    collected_bytes = 0
    for batch in batches:
        if collected and collected[0].schema != batch.schema:
            yield pa.Table.from_batches(collected)
            collected, collected_bytes = [], 0
        collected.append(batch)
        collected_bytes += batch_bytes(batch)
        if collected_bytes >= CHUNK_BYTES:
            yield pa.Table.from_batches(collected)
            collected, collected_bytes = [], 0
    if collected:
        yield pa.Table.from_batches(collected)
