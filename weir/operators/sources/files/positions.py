"""Where a file source stands: the versioned JSON form of its snapshot, and whether the files are still the same.

A snapshot of one subtask::

    {"kind": "json_lines_source", "version": 1,
     "input": "/data/events",            the spec's path
     "rests": [[0, 523, 1000, 700, 1]],  index in files, next position, stop, bad records known up to, begun
     "files": [["/data/events/a", 1000, 2866715379]],   path, size on disk, CRC-32 of its head and tail
     "times_ms": [[0, 1700000000000]],   how far these files have come by event time, by index, if that is known
     "told_ms": 1700000000000,           and the subtask, null: nowhere; both are left out where rows have no event time
     "emitted": 40, "emitted_before": 0, rows given by this subtask, and by all subtasks before they were shared anew
     "events_max": null, "quota": null,  the limit on events, and this subtask's share of it
     "rejected": 2, "dead_letter_bytes": 310,
     "schedule": {"start_us": 1700000000000000, "rate": 1000.0, "first": 0, "place": 0, "readers": 2}}

Positions are bytes (decompressed, except for the stop of a compressed file) in JSON lines, row numbers in Parquet.
What was read to its end is in no list, except in "done", which is there if the source follows its directory: files that
were read to their end. Golden files in ``tests/golden`` keep this form readable.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from weir.author.operator import Json, OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.sources.files.input_files import InputFiles, unreadable
from weir.operators.sources.files.local_input import LOCAL_INPUT
from weir.rows.records import WATERMARK_MIN_MS

VERSION = 1
#: Bytes at the beginning and at the end of a file that its mark covers.
MARK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of one split: half-open."""

    path: str
    start: int
    stop: int
    #: Bad records before this position are among the dead letters already.
    rejected_to: int = 0
    #: Some of the split was given out: a record begins exactly at ``start``.
    begun: bool = False


@dataclass(frozen=True, slots=True)
class FileMark:
    """Tells whether a file is still the same, at the price of two short reads."""

    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SchedulePlace:
    """Where a subtask's events stand in the schedule of a paced source."""

    #: Epoch µs at which event ``first`` of the source is due.
    start_us: int
    rate: float
    #: Events of all subtasks that were given before the schedule began; above 0 after a start from a savepoint.
    first: int
    #: Rank of the subtask among those that have something to read, and their number.
    place: int
    readers: int


@dataclass(frozen=True, kw_only=True)
class SourceCounts:
    """What the snapshots of all sources hold besides positions; see the module."""

    emitted: int
    emitted_before: int
    events_max: int | None
    quota: int | None
    rejected: int
    dead_letter_bytes: int
    schedule: SchedulePlace | None


@dataclass(frozen=True, kw_only=True)
class SourcePosition(SourceCounts):
    """The snapshot of a subtask; the module has the form."""

    kind: str
    input: str
    rests: tuple[Rest, ...]
    files: Mapping[str, FileMark]
    #: Files that were read to their end; None: the source does not follow.
    done: tuple[str, ...] | None = None
    #: How far files have come by event time, and the subtask: event times, or watermarks where a generator makes them.
    times_ms: Mapping[str, int] = field(default_factory=dict)
    told_ms: int = WATERMARK_MIN_MS

    def to_json(self) -> Json:
        """The form above."""
        paths = list(dict.fromkeys(rest.path for rest in self.rests))
        numbers = {path: number for number, path in enumerate(paths)}
        return {
            "kind": self.kind,
            "version": VERSION,
            "input": self.input,
            "rests": [[numbers[r.path], r.start, r.stop, r.rejected_to, int(r.begun)] for r in self.rests],
            "files": [[path, self.files[path].size_bytes, self.files[path].checksum] for path in paths],
            **({} if self.done is None else {"done": list(self.done)}),
            **self._event_times_to_json(numbers),
            **counts_to_json(self),
        }

    def _event_times_to_json(self, numbers: Mapping[str, int]) -> dict[str, Json]:
        if not self.times_ms and self.told_ms == WATERMARK_MIN_MS:
            return {}
        times = [[numbers[p], at] for p, at in self.times_ms.items() if at != WATERMARK_MIN_MS]
        return {"times_ms": sorted(times), "told_ms": time_to_json(self.told_ms)}


def time_to_json(time_ms: int) -> Json:
    """A time in ms, null: none."""
    return None if time_ms == WATERMARK_MIN_MS else time_ms


def time_from_json(value: Json) -> int:
    """What :func:`time_to_json` made."""
    return WATERMARK_MIN_MS if value is None else int(value)


def counts_to_json(counts: SourceCounts) -> dict[str, Json]:
    """The counts and the schedule in the form above."""
    return {
        "emitted": counts.emitted,
        "emitted_before": counts.emitted_before,
        "events_max": counts.events_max,
        "quota": counts.quota,
        "rejected": counts.rejected,
        "dead_letter_bytes": counts.dead_letter_bytes,
        "schedule": None if counts.schedule is None else asdict(counts.schedule),
    }


def counts_from_json(value: Mapping[str, Any]) -> SourceCounts:
    """Read counts and schedule.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    schedule = value["schedule"]
    return SourceCounts(
        emitted=int(value["emitted"]),
        emitted_before=int(value["emitted_before"]),
        events_max=value["events_max"],
        quota=value["quota"],
        rejected=int(value["rejected"]),
        dead_letter_bytes=int(value["dead_letter_bytes"]),
        schedule=None if schedule is None else SchedulePlace(**schedule),
    )


def position_from_json(value: Json) -> SourcePosition:
    """Read a snapshot.

    Raises:
        InputError: it has another form or a version that is not known.
    """
    try:
        if value["version"] != VERSION:
            raise InputError(
                f"the checkpoint holds a source position of version {value['version']}, this is Weir with version "
                f"{VERSION}; start from it with the version of Weir that made it"
            )
        return _from_json(value)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint holds a source position that cannot be read ({type(error).__name__}: {error}); "
            "start from another one"
        ) from error


def _from_json(value: dict[str, Any]) -> SourcePosition:
    paths = [str(path) for path, _, _ in value["files"]]
    done = value.get("done")
    return SourcePosition(
        kind=value["kind"],
        input=value["input"],
        rests=tuple(
            Rest(paths[number], int(start), int(stop), int(rejected_to), bool(begun))
            for number, start, stop, rejected_to, begun in value["rests"]
        ),
        files={str(path): FileMark(int(size), int(check)) for path, size, check in value["files"]},
        done=None if done is None else tuple(str(path) for path in done),
        times_ms={paths[number]: int(time_ms) for number, time_ms in value.get("times_ms", ())},
        told_ms=time_from_json(value.get("told_ms")),
        **vars(counts_from_json(value)),
    )


def restored_positions(context: OperatorContext, kind: str, path: str) -> dict[int, SourcePosition]:
    """The snapshots that ``context.restored`` holds, by subtask index; empty at a start from nothing.

    Raises:
        InputError: they are of another source or input, or cannot be read.
    """
    step = f"source {context.operator_name}"
    positions = {}
    for index, value in context.restored.items():
        if value is None:
            continue
        position = position_from_json(value)
        if (position.kind, position.input) != (kind, path):
            raise InputError(
                f"{step}: the checkpoint stands in {position.input} ({position.kind}), "
                f"the job now reads {path} ({kind}); read the same input, or start without the checkpoint"
            )
        positions[index] = position
    return positions


def mark_files(paths: Iterable[str], files: InputFiles = LOCAL_INPUT) -> dict[str, FileMark]:
    """The mark of each file.

    Raises:
        InputError: a file cannot be read.
    """
    marks = {}
    for path in dict.fromkeys(paths):
        try:
            marks[path] = _mark(path, files)
        except OSError as error:
            raise unreadable(path, error) from error
    return marks


def mark_beginning(path: str, size_bytes: int, files: InputFiles = LOCAL_INPUT) -> FileMark:
    """The mark of the first so many bytes of a file, or of all that there are.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return _mark(path, files, size_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def check_files(
    rests: Iterable[Rest],
    marks: Mapping[str, FileMark],
    unit: str,
    files: InputFiles = LOCAL_INPUT,
    *,
    may_grow: bool = False,
) -> None:
    """Are the files that are left to read the same as when the snapshot was taken?

    Args:
        rests: what is left.
        marks: of their files then.
        unit: of positions, for messages: "byte" or "row".
        files: where they are.
        may_grow: more may have been added at their ends.

    Raises:
        InputError: a file is absent or has changed.
    """
    seen: set[str] = set()
    for rest in rests:
        if rest.path in seen:
            continue
        seen.add(rest.path)
        place = f"input {rest.path}, to be read on from {unit} {rest.start},"
        mend = "put the file back as it was, or start without the checkpoint"
        try:
            now = _mark(rest.path, files, marks[rest.path].size_bytes if may_grow else None)
        except OSError as error:
            failed = unreadable(rest.path, error)
            message = f"{place} cannot be read: {error.strerror}; {mend}"
            raise (failed if failed.failure_kind is FailureKind.OUTAGE else InputError(message)) from error
        then = marks[rest.path]
        if now.size_bytes != then.size_bytes:
            raise InputError(
                f"{place} has changed since the checkpoint: "
                f"it had {then.size_bytes} bytes and has {now.size_bytes}; {mend}"
            )
        if now != then:
            raise InputError(f"{place} has changed since the checkpoint: other content; {mend}")


def _mark(path: str, files: InputFiles, size_max: int | None = None) -> FileMark:
    """The mark of a file, or of its beginning of so many bytes."""
    with files.open(path) as file:
        return mark_of(file, size_max)


def mark_of(file: BinaryIO, size_max: int | None = None) -> FileMark:
    """The mark of an open file, or of its beginning of so many bytes; it is read, and stands somewhere afterwards.

    Raises:
        OSError: it cannot be read.
    """
    size = file.seek(0, 2)
    size = size if size_max is None else min(size, size_max)
    file.seek(0)
    head = file.read(min(size, MARK_BYTES))
    file.seek(max(0, size - MARK_BYTES))
    return FileMark(size, zlib.crc32(file.read(min(size, MARK_BYTES)), zlib.crc32(head)))
