"""What sources of files share: positions in files, marks that tell whether a file changed, and following a directory.

A source that *follows* never ends: it looks for new files while the job runs. Each file belongs to the subtask that its
name falls to, and is read from its beginning to the size that it had when it was found. A snapshot names the files that
were begun, so that none is read twice, whatever the number of subtasks afterwards.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import Json, OperatorContext, Poll
from weir.operators.sources.discovery import Discovery
from weir.operators.sources.input_files import InputFiles
from weir.operators.sources.local_input import (
    LOCAL_INPUT,
    LocalInput,
    folder_hint,
    input_place,
    list_input_files,
)
from weir.operators.sources.pacing import BatchSource
from weir.operators.sources.positions import (
    FileMark,
    Rest,
    SourceCounts,
    SourcePosition,
    check_files,
    mark_files,
    restored_positions,
)
from weir.operators.sources.splits import assign, assign_files, share_evenly
from weir.redaction import redacted_text
from weir.specs import ArrowIpcSpec, CsvSpec, JsonLinesSpec, ParquetSpec

#: How often a source that follows looks for new files.
LOOK_US = 500_000
#: By how much longer it waits than a look takes of the CPU: of ten thousand files, that is a while. Of a remote
#: directory the wait for answers counts, too, once: rows are not read meanwhile.
_REST_FACTOR = 20

log = logging.getLogger(__name__)


class FileReader(BatchSource):
    """Base of the readers of files; subclasses cut files into units and decode them.

    Raises:
        GraphError: rate, event limit or event-time column make no sense.
    """

    #: What positions count: "byte" or "row".
    _position_unit = "byte"

    def __init__(self, spec: ArrowIpcSpec | CsvSpec | JsonLinesSpec | ParquetSpec) -> None:
        super().__init__(spec)
        #: As it is told: a URI may have credentials in it.
        self._path = redacted_text(spec.path)
        self._files: InputFiles = LOCAL_INPUT
        self._find_path = spec.path
        self._file_spec = spec
        self._marks: dict[str, FileMark] = {}
        self._follows = spec.follow
        #: One subtask reads all that is left of a file.
        self._keeps_files = spec.ordered
        #: Files may become longer after they were found.
        self._may_grow = False
        self._discovery: Discovery | None = None
        self._next_look_us = 0

    @abstractmethod
    def _open_files(self, paths: Sequence[str]) -> None:
        """Choose this subtask's share of these files, which may be none."""

    @abstractmethod
    def _add_file(self, path: str, size_bytes: int) -> None:
        """Read this file too, after everything else; called where the source follows."""

    @abstractmethod
    def _read_batch(self) -> pa.RecordBatch | None:
        """The next rows of the chosen files; None: there are no more."""

    @abstractmethod
    def _rests(self) -> list[Rest]:
        """What is left to read after the last row that was given out; first what is read next."""

    @abstractmethod
    def _resume_input(self, shares: list[list[Rest]]) -> None:
        """Instead of :meth:`_open_files`: read this subtask's share of these."""

    @abstractmethod
    def _input_quota(self, events_max: int) -> int:
        """This subtask's part of the limit, for the files that were chosen."""

    @abstractmethod
    def _chosen(self) -> list[bool]:
        """For every subtask, by rank, whether files were chosen for it."""

    def _share(self, rests: list[Rest]) -> list[list[Rest]]:
        """Share what other subtasks left, given in input order: for every subtask its part."""
        sizes = [rest.stop - rest.start for rest in rests]
        if self._keeps_files:
            return assign_files([rest.path for rest in rests], sizes, rests, self._subtasks)
        return assign(sizes, rests, self._subtasks)

    def open(self, context: OperatorContext) -> None:
        """Find the place of the files, and read the first ones. See the base class."""
        self._files, self._find_path = input_place(self._file_spec.path)
        super().open(context)

    def _open_input(self, context: OperatorContext) -> None:
        if not self._follows:
            self._open_files(self._all_files())
            return
        self._open_files([])
        if isinstance(self._files, LocalInput) and self._rank == 0 and (hint := folder_hint(self._find_path)):
            log.warning("source %s: input %s: %s", context.operator_name, self._path, hint)
        self._discovery = Discovery(self._rank, self._subtasks)
        self._look()

    def _has_input(self) -> list[bool]:
        return [True] * self._subtasks if self._follows else self._chosen()

    def _event_quota(self, events_max: int) -> int:
        if self._follows:
            return share_evenly(events_max, self._subtasks)[self._rank]
        return self._input_quota(events_max)

    def _all_files(self) -> list[str]:
        if isinstance(self._files, LocalInput):
            return list_input_files(self._find_path)
        paths = [file.path for file in self._files.find(self._find_path)]
        if not paths:
            raise InputError(f"cannot read input {self._path}: there are no input files; correct the path")
        return paths

    # --- following ---

    def _next_batch(self) -> pa.RecordBatch | None:
        batch = self._read_batch()
        if batch is None and self._follows and self._look():
            batch = self._read_batch()
        return batch

    def _nothing_now(self) -> Poll:
        return Poll(next_poll_us=self._next_look_us) if self._follows else Poll(finished=True)

    def _look(self) -> bool:
        """Take in new files of this subtask, and what was added to those that grow; whether there is any."""
        now_us = self._clock.now_us()
        if self._discovery is None or now_us < self._next_look_us:
            return False
        began_ns, began_s = time.thread_time_ns(), self._clock.monotonic_s()
        # A file is taken in when it has content: who makes it in place has only begun.
        is_known = None if self._may_grow else self._discovery.is_known
        files = [file for file in self._files.find(self._find_path, is_known) if file.size_bytes]
        look_us = (time.thread_time_ns() - began_ns) // 1000
        waited_us = round((self._clock.monotonic_s() - began_s) * 1_000_000)
        self._next_look_us = self._clock.now_us() + max(LOOK_US, _REST_FACTOR * look_us, waited_us)
        if self._file_spec.order == "modified":
            files.sort(key=lambda file: (file.modified_us, file.path))
        sizes = {file.path: file.size_bytes for file in files}
        has_grown = self._look_for_growth(sizes)
        found = self._discovery.new(list(sizes), {rest.path for rest in self._rests()})
        for path in found:
            self._add_file(path, sizes[path])
        return bool(found) or has_grown

    def _look_for_growth(self, sizes: Mapping[str, int]) -> bool:
        """Read on in files that have become longer, if the source is one of files that grow; whether there were any.

        Args:
            sizes: of all files that are there, in bytes.
        """
        return False

    # --- snapshots ---

    def _positions(self, context: OperatorContext) -> Mapping[int, SourceCounts]:
        self._restored = restored_positions(context, self._source_spec.kind, self._path)
        return self._restored

    def _resume(self, same: bool, indices: tuple[int, ...]) -> None:
        positions = self._restored
        if same and not (self._keeps_files and _share_a_file(positions)):
            shares = [list(positions[index].rests) for index in indices]
        else:
            rests = [rest for position in positions.values() for rest in position.rests]
            shares = self._share(sorted(rests, key=lambda rest: (rest.path, rest.start)))
        marks = {path: mark for position in positions.values() for path, mark in position.files.items()}
        mine = shares[self._rank]
        check_files(mine, marks, self._position_unit, self._files, may_grow=self._may_grow)
        self._marks = {rest.path: marks[rest.path] for rest in mine}
        self._resume_input(shares)
        if self._follows:
            self._resume_following(same, {rest.path for rest in mine})

    def _resume_following(self, same: bool, begun: set[str]) -> None:
        known: set[str] = set()
        for position in self._restored.values():
            if position.done is None:
                raise InputError(
                    f"source {self._context.operator_name}: the checkpoint does not say which files of {self._path} "
                    "were read, as it was made without follow=True; start without it, or without follow"
                )
            known |= {*position.done, *(rest.path for rest in position.rests)}
        done = self._restored[self._context.subtask_index].done if same else known if self._rank == 0 else ()
        self._discovery = Discovery(self._rank, self._subtasks, known, {*(done or ()), *begun})

    def _position(self, counts: SourceCounts) -> Json:
        rests = self._rests()
        paths = {rest.path for rest in rests}
        return SourcePosition(
            kind=self._source_spec.kind,
            input=self._path,
            rests=tuple(rests),
            files=self._marks_of(rests),
            done=None if self._discovery is None else tuple(self._discovery.done(paths)),
            **vars(counts),
        ).to_json()

    def _marks_of(self, rests: Sequence[Rest]) -> dict[str, FileMark]:
        """Marks of the files that are left to read; each file is looked at once."""
        self._marks |= mark_files((rest.path for rest in rests if rest.path not in self._marks), self._files)
        return self._marks


def _share_a_file(positions: Mapping[int, SourcePosition]) -> bool:
    """Whether several subtasks stand in one file: the job that made the snapshot did not keep files together."""
    paths = [path for position in positions.values() for path in {rest.path for rest in position.rests}]
    return len(set(paths)) < len(paths)
