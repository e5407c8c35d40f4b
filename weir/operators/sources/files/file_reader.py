"""What sources of files share: positions in files, marks that tell whether a file changed, and following a directory.

A source that *follows* never ends: it looks for new files while the job runs. Each file belongs to the subtask that its
name falls to, and is read from its beginning to the size that it had when it was found. A snapshot names the files that
were begun, so that none is read twice, whatever the number of subtasks afterwards.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, cast

import pyarrow as pa

from weir.author.operator import Json, OperatorContext, Poll
from weir.errors import InputError, WeirError
from weir.operators.sources.files.discovery import Discovery
from weir.operators.sources.files.input_files import InputFiles
from weir.operators.sources.files.local_input import (
    LOCAL_INPUT,
    LocalInput,
    folder_hint,
    input_place,
    list_input_files,
)
from weir.operators.sources.files.positions import (
    FileMark,
    Rest,
    SourceCounts,
    SourcePosition,
    check_files,
    mark_files,
    restored_positions,
)
from weir.operators.sources.files.splits import assign, assign_files, plan_number, share_evenly
from weir.operators.sources.paced.pacing import BatchSource
from weir.operators.sources.paced.source_progress import SourceTimes
from weir.redaction import redacted_text
from weir.rows.records import WATERMARK_MIN_MS
from weir.rows.row_watermarks import RowWatermarks
from weir.specs import ArrowIpcSpec, CsvSpec, JsonLinesSpec, ParquetSpec

#: How often a source that follows looks for new files.
LOOK_US = 500_000
#: By how much longer it waits than a look takes of the CPU: of ten thousand files, that is a while. Of a remote
#: directory the wait for answers counts, too, once: rows are not read meanwhile.
_REST_FACTOR = 20

#: Files, and remote ones, whose first rows are looked at before they are begun; more hold the watermark back.
PEEKS_MAX = 1_000
REMOTE_PEEKS_MAX = 32
_PEEKED_ROWS = 64

_FileSpec: TypeAlias = ArrowIpcSpec | CsvSpec | JsonLinesSpec | ParquetSpec

log = logging.getLogger(__name__)


class Piece(Protocol):
    """A part of a file, of whatever unit the reader cuts files into."""

    @property
    def path(self) -> str:
        """The file."""


class FileReader(BatchSource):
    """Base of the readers of files; subclasses cut files into units and decode them.

    Raises:
        GraphError: rate, event limit or event-time column make no sense.
    """

    #: What positions count: "byte" or "row".
    _position_unit = "byte"

    def __init__(self, spec: _FileSpec) -> None:
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
        #: For each subtask the pieces that were chosen for it, and the number of that where it was not restored.
        self._assigned: list[list[Any]] = []
        self._input_plan = 0
        self._next_look_us = 0
        #: The file that is read; None: none yet.
        self._reading: str | None = None
        #: Of files that may grow and were read to their end: since when, on the monotonic clock.
        self._quiet_since_s: dict[str, float] = {}
        #: How far by event time the files had come at the checkpoint.
        self._restored_times: dict[str, int] = {}

    @abstractmethod
    def _open_files(self, paths: Sequence[str]) -> None:
        """Choose this subtask's share of these files, which may be none."""

    @abstractmethod
    def _add_file(self, path: str, size_bytes: int) -> None:
        """Read this file too, after everything else; called where the source follows."""

    @abstractmethod
    def _read_shares(self, shares: list[list[Any]]) -> None:
        """Read this subtask's share, given for every subtask, by rank; the pieces are those of the subclass."""

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
        """Return this subtask's part of the limit, for the files that were chosen."""

    def _chosen(self) -> list[bool]:
        """Return for every subtask, by rank, whether files were chosen for it."""
        return [bool(pieces) for pieces in self._assigned]

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
            self._input_plan = plan_number(self._assigned)
            return
        self._open_files([])
        if isinstance(self._files, LocalInput) and self._rank == 0 and (hint := folder_hint(self._find_path)):
            log.warning("source %s: input %s: %s", context.operator_name, self._path, hint)
        self._discovery = Discovery(self._rank, self._subtasks)
        self._look()

    @property
    def input_plan(self) -> int:
        """Return the number that ``SourceReader.input_plan`` describes."""
        return self._input_plan

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
        self._note_quiet_files()
        return batch

    def _nothing_now(self) -> Poll:
        return self._poll_of(None, 0, self._next_look_us) if self._follows else Poll(finished=True)

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

    # --- event time: each file is a split ---

    def begin(self) -> Poll:
        """No row is before the first ones of the files."""
        began = super().begin()
        if began.finished or self._follows or not self._has_file_times or self._source_times.are_generated:
            return began
        rows = self._ensure_rows()
        if rows is None:
            return began
        self._source_times.given_ahead(int(rows.latest_ms[rows.offset]))
        return replace(self._poll_of(None, 0, 0), without=began.without)

    @property
    def _has_file_times(self) -> bool:
        """Return whether rows say when they happened: the time at which they are read holds nothing back."""
        return self._event_times is not None or self._strategy.generator is not None

    def _split_name(self) -> Hashable:
        return (self._reading or "") if self._has_file_times else ""

    def _hold(self, pieces: Sequence[Piece]) -> None:
        """Hold the watermark before the first row of each file of these pieces until they are read.

        A file that turns up while the source follows begins where the watermark is then.
        """
        if not self._has_file_times:
            return
        peeks_left = PEEKS_MAX if isinstance(self._files, LocalInput) else REMOTE_PEEKS_MAX
        for piece in pieces:
            path = piece.path
            if path in self._source_times.splits:
                if self._quiet_since_s.pop(path, None) is not None:
                    self._source_times.splits.set_idle(path, False)
                continue
            time_ms = self._restored_times.get(path, WATERMARK_MIN_MS)
            # The first one is begun at once.
            if time_ms == WATERMARK_MIN_MS and self._source_times.splits.has_any and peeks_left:
                peeks_left -= 1
                time_ms = self._first_time_ms(piece)
            self._source_times.splits.add(path, max(time_ms, self._source_times.splits.told_ms))

    def _goes_on_to(self, path: str | None) -> None:
        """A piece of this file is read next; None: nothing is left for now."""
        before, self._reading = self._reading, path
        if before is None or before == path or before not in self._source_times.splits:
            return
        if self._may_grow:
            self._quiet_since_s[before] = self._clock.monotonic_s()
        else:
            self._source_times.end(before)

    def _hold_quiet(self, paths: Sequence[str]) -> None:
        """Files that may grow were read to their end before the checkpoint."""
        for path in paths if self._has_file_times else ():
            self._source_times.splits.add(path, self._restored_times[path])
            self._quiet_since_s[path] = self._clock.monotonic_s()

    def _forget(self, path: str) -> None:
        """A file that could grow is gone."""
        self._quiet_since_s.pop(path, None)
        if path in self._source_times.splits:
            self._source_times.end(path)

    def _note_quiet_files(self) -> None:
        """Files that may grow, and have not for a while, do not hold the watermark back."""
        if self._quiet_since_s:
            now_s, idle_s = self._clock.monotonic_s(), self._context.idle_timeout_ms / 1e3
            for path, since_s in self._quiet_since_s.items():
                self._source_times.splits.set_idle(path, now_s - since_s >= idle_s)

    def first_rows(self, piece: Piece, files: InputFiles, context: OperatorContext) -> pa.RecordBatch | None:
        """Instead of :meth:`open`: the first good rows of a piece, None: it has none; to be closed then.

        Raises:
            InputError: it cannot be read.
        """
        self._context, self._clock, self._files = context, context.clock, files
        self._subtasks, self._rank, self.is_trickle = 1, 0, True
        self._source_times = SourceTimes(self._strategy, 0, RowWatermarks.NONE)
        self._read_shares([[piece]])
        return self._read_batch()

    def rows_of(self, paths: Sequence[str], context: OperatorContext) -> Iterator[pa.RecordBatch]:
        """Instead of :meth:`open`: all good rows of some files of this machine, in their order; to be closed then.

        Called for tables that rows look up.

        Raises:
            InputError: one cannot be read, or has a bad record and the spec says to fail.
        """
        self._context, self._clock = context, context.clock
        self._subtasks, self._rank = 1, 0
        self._source_times = SourceTimes(self._strategy, 0, RowWatermarks.NONE)
        self._open_files(paths)
        while (batch := self._read_batch()) is not None:
            yield batch

    def _first_time_ms(self, piece: Piece) -> int:
        """Event time of the first good row of a piece; the lowest time if that cannot be told."""
        if self._event_times is None or self._strategy.generator is not None:
            return WATERMARK_MIN_MS
        reader = type(self)(_only_times(self._file_spec))
        context = replace(self._context, dead_letters=None, batch_size=_PEEKED_ROWS)
        try:
            rows = reader.first_rows(piece, self._files, context)
            times = None if rows is None else self._event_times.of(rows)
        except (WeirError, OSError, pa.ArrowException):
            # Whoever reads it says what is wrong.
            return WATERMARK_MIN_MS
        finally:
            reader.close()
        if times is None:
            return WATERMARK_MIN_MS
        good = times.times_ms if times.bad is None else times.times_ms[~times.bad]
        return int(good[0]) if len(good) else WATERMARK_MIN_MS

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
        own = [positions[self._context.subtask_index]] if same else list(positions.values())
        self._restored_times = {rest.path: _lowest_time_ms(rest.path, own) for rest in mine}
        self._source_times.splits.told_ms = min(position.told_ms for position in own)
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
            times_ms={
                path: self._source_times.splits.time_ms(path)
                for path in paths
                if path in self._source_times.splits
            },
            told_ms=self._source_times.splits.told_ms if self._has_file_times else WATERMARK_MIN_MS,
            **vars(counts),
        ).to_json()

    def _marks_of(self, rests: Sequence[Rest]) -> dict[str, FileMark]:
        """Marks of the files that are left to read; each file is looked at once."""
        self._marks |= mark_files((rest.path for rest in rests if rest.path not in self._marks), self._files)
        return self._marks


def _only_times(spec: _FileSpec) -> _FileSpec:
    """The same source, as little of it as says when rows happened."""
    least = cast(_FileSpec, spec.reading(frozenset()))
    least = replace(least, rate=None, events_max=None, on_bad_record="dead_letter")
    return replace(least, condition=None) if isinstance(least, ParquetSpec) else least


def _lowest_time_ms(path: str, positions: Sequence[SourcePosition]) -> int:
    """How far a file had come, of which several subtasks may have read."""
    known = [p for p in positions if any(rest.path == path for rest in p.rests)]
    return min((p.times_ms.get(path, WATERMARK_MIN_MS) for p in known), default=WATERMARK_MIN_MS)


def _share_a_file(positions: Mapping[int, SourcePosition]) -> bool:
    """Return whether several subtasks stand in one file: the job that made the snapshot did not keep files together."""
    paths = [path for position in positions.values() for path in {rest.path for rest in position.rests}]
    return len(set(paths)) < len(paths)
