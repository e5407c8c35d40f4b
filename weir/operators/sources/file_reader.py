"""What sources of files share: positions in files, marks that tell whether a file changed, and following a directory.

A source that *follows* never ends: it looks for new files while the job runs. Each file belongs to the subtask that its
name falls to, and is read from its beginning to the size that it had when it was found. A snapshot names the files that
were begun, so that none is read twice, whatever the number of subtasks afterwards.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

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
from weir.records import WATERMARK_MIN_MS
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
        #: The file of the rows at hand.
        self._current = ""
        #: Of files that were begun: the highest event time that was given out.
        self._file_times_ms: dict[str, int] = {}
        #: Following: files that were there at the start. Others come in the order in which they appear.
        self._first_files: frozenset[str] | None = None
        #: A file that was not begun holds the watermark: its rows may have any time.
        self._holds_watermark = False
        #: The file of the rows that were passed over last.
        self._passed_file = ""

    @abstractmethod
    def _path_at_hand(self) -> str:
        """The file of the batch that was decoded last."""

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
        self._first_files = frozenset(rest.path for rest in self._rests())

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
        if batch is not None and self._path_at_hand() != self._current:
            self._begin_file(self._path_at_hand())
        return batch

    # --- each file has a watermark of its own ---

    def _begin_file(self, path: str) -> None:
        """The rows at hand are of another file: the watermark is that of files which have been begun, if all have.

        Where the source follows, files that appear later are as one that goes on: they come in order.
        """
        goes_on = self._first_files is not None and path not in self._first_files
        if self._current:
            self._file_times_ms[self._current] = self._highest_event_time_ms
        self._current = path
        if not goes_on:
            self._highest_event_time_ms = self._file_times_ms.get(path, WATERMARK_MIN_MS)
            if self._passed_file != path:
                self._passed_event_time_ms = WATERMARK_MIN_MS
        left = {rest.path for rest in self._rests()} - {path}
        self._holds_watermark = bool(left if self._first_files is None else left & self._first_files)

    def _event_time_ms(self, row: int) -> int:
        # Without event times of their own rows have the time of reading, which is in order.
        is_held = self._holds_watermark and self._event_times is not None
        return WATERMARK_MIN_MS if is_held else super()._event_time_ms(row)

    def _others_watermark_ms(self) -> int:
        is_held = self._holds_watermark and self._event_times is not None
        return WATERMARK_MIN_MS if is_held else super()._others_watermark_ms()

    def _times_of_files(self, paths: Iterable[str]) -> dict[str, int]:
        """The highest event time of each of these files that was given out, if it has one of its own."""
        if self._event_times is None:
            return {}
        known = self._file_times_ms | {self._current: self._highest_event_time_ms}
        return {path: known[path] for path in paths if known.get(path, WATERMARK_MIN_MS) != WATERMARK_MIN_MS}

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
        for position in positions.values():
            for path, time_ms in position.times_ms.items():
                self._file_times_ms[path] = max(time_ms, self._file_times_ms.get(path, time_ms))
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
        self._first_files = frozenset(begun)

    def _position(self, counts: SourceCounts) -> Json:
        rests = self._rests()
        paths = {rest.path for rest in rests}
        return SourcePosition(
            kind=self._source_spec.kind,
            input=self._path,
            rests=tuple(rests),
            files=self._marks_of(rests),
            times_ms=self._times_of_files(paths),
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
