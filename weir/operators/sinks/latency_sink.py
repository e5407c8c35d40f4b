"""The latency sink: one line per event, and a sidecar with the run's configuration and facts.

Files of a run, below the sink's directory (``.<subtask>`` only if there are several subtasks)::

    <name>-<YYYYmmdd-HHMMSS>[.<subtask>].txt   <arrival epoch ms>,<latency ms with 3 decimals>
    <name>-<YYYYmmdd-HHMMSS>[.<subtask>].json  the sidecar
    latest[.<subtask>].txt, latest[.<subtask>].json   links to the newest run's

The time is the job's start in UTC. A file of an earlier run is never overwritten.

After a restart from a checkpoint a subtask goes on with the run's file, cut to what the checkpoint covers. It does so
in a copy that takes the file's place: a replaced process that still has the old one open writes to nothing. If the
subtasks are others, those with the same index go on with their files, files of the others stay as the checkpoint covers
them, and new subtasks begin new files of the same run. The snapshot::

    {"kind": "latency_sink", "version": 1, "file": "run-20260101-120000.txt", "bytes": 1234,
     "start_us": 1767268800000000, "restarts": 0, "has_suffix": false,
     "statistics": {"events": 60, "totals_us": [sum, least, greatest], "buckets": [[numbers], [counts]]}}
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from weir.author.operator import Json, LateSync, OperatorContext
from weir.errors import InputError, StateMismatchError
from weir.operators.sinks.latency_format import LatencyText
from weir.rows.records import INGEST_TIME_COLUMN, int64_column
from weir.specs import LatencySinkSpec

FORMAT_VERSION = 1
LATEST = "latest"

_SNAPSHOT_VERSION = 1
_BUFFER_BYTES = 1 << 20
_COPY_BYTES = 8 << 20
_SAME_SECOND_RUNS_MAX = 1000


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What a subtask had written at a checkpoint."""

    file: str
    bytes: int
    start_us: int
    restarts: int
    has_suffix: bool
    statistics: dict[str, Any]


class LatencySink(LateSync):
    """Writes the latency of each event: from its scheduled or read time to its arrival at this sink.

    Guarantee: each event has exactly one line in the end. Lines are visible at once; those that no checkpoint covers go
    at a restart and come again, with the arrival of the second time. Needs the directory of the earlier deployment; on
    a machine without it a subtask begins a new file, and says so.
    """

    def __init__(self, spec: LatencySinkSpec) -> None:
        self._spec = spec
        self._directory = Path(spec.directory).expanduser()
        self._text = LatencyText()
        self._file: BinaryIO | None = None
        #: Keeps the file open while another thread syncs it.
        self._open_lock = threading.Lock()
        #: Bytes that the last snapshot told of, and those that are on the disk.
        self._told_bytes, self._synced_bytes = 0, -1
        self._finished = False
        self._restarts = 0

    def open(self, context: OperatorContext) -> None:
        """Create the run's file and sidecar, or go on with them, and point ``latest`` to them.

        Raises:
            InputError: the directory cannot be written.
            StateMismatchError: the checkpoint holds something else.
        """
        self._context = context
        restored = {
            index: self._read(value) for index, value in context.restored.items() if value is not None
        }
        earlier = next(iter(restored.values()), None)
        self._start_us = earlier.start_us if earlier else context.job_start_us or context.clock.now_us()
        # A run that once had several subtasks keeps their numbers in the names.
        self._has_suffix = context.parallelism > 1 or any(item.has_suffix for item in restored.values())
        self._part = f".{context.subtask_index}" if self._has_suffix else ""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._open_file(restored)
            self._write_sidecar("running")
            self._point_latest(restored)
        except OSError as error:
            raise InputError(
                f"latency sink: cannot write to {self._directory}: {error.strerror}; choose a writable directory"
            ) from error

    def _open_file(self, restored: Mapping[int, _Snapshot]) -> None:
        context = self._context
        indices = context.subtask_indices or tuple(range(context.parallelism))
        if context.subtask_index == min(indices):
            for index in restored.keys() - set(indices):
                self._cut(restored[index])
        mine = restored.get(context.subtask_index)
        if restored:
            self._restarts = max(item.restarts for item in restored.values()) + 1
        if mine is None or not self._cut(mine):
            self._create()
            return
        self._path = self._directory / mine.file
        self._sidecar_path = self._path.with_suffix(".json")
        self._file = open(self._path, "ab", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._text.restore(mine.statistics)

    def _cut(self, snapshot: _Snapshot) -> bool:
        """Put a copy of what a checkpoint covers in a file's place; False: it is not here."""
        path = self._directory / snapshot.file
        fresh = self._directory / f".{snapshot.file}.{self._context.generation}.unfinished"
        try:
            with open(path, "rb") as source, open(fresh, "wb") as target:
                if os.fstat(source.fileno()).st_size >= snapshot.bytes:
                    _copy(source, target, snapshot.bytes)
                    target.flush()
                    os.fsync(target.fileno())
                    os.replace(fresh, path)
                    return True
        except FileNotFoundError:
            pass
        fresh.unlink(missing_ok=True)
        log.warning(
            "latency sink: the %d bytes of %s up to the checkpoint are not in %s; going on in a new file",
            snapshot.bytes,
            snapshot.file,
            self._directory,
        )
        return False

    def _read(self, value: Json) -> _Snapshot:
        if not isinstance(value, dict) or (value.get("kind"), value.get("version")) != (
            "latency_sink",
            _SNAPSHOT_VERSION,
        ):
            raise StateMismatchError(
                f"sink {self._context.operator_name}: the checkpoint holds something else than a latency file "
                f"of version {_SNAPSHOT_VERSION}; give the sink another name, or start with the version of Weir "
                "that made the checkpoint"
            )
        return _Snapshot(**{name: value[name] for name in _Snapshot.__slots__})

    @property
    def path(self) -> Path:
        """The run's latency file (of this subtask)."""
        return self._path

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write a line per row; the batch arrives now."""
        assert self._file is not None
        arrival_us = self._context.clock.now_us()
        self._file.write(self._text.add(arrival_us, int64_column(batch, INGEST_TIME_COLUMN)))
        return ()

    def flush(self) -> None:
        """Hand buffered lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def snapshot(self, checkpoint_id: int) -> Json:
        """Hand the lines to the operating system; returns how far they reach, and the statistics.

        Raises:
            InputError: they cannot be written.
        """
        assert self._file is not None
        try:
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error
        self._told_bytes = self._file.tell()
        return {
            "kind": "latency_sink",
            "version": _SNAPSHOT_VERSION,
            "file": self._path.name,
            "bytes": self._told_bytes,
            "start_us": self._start_us,
            "restarts": self._restarts,
            "has_suffix": self._has_suffix,
            "statistics": self._text.state(),
        }

    def sync(self) -> None:
        """Bring the lines to the disk, which may take some ms: rows go on meanwhile.

        Raises:
            InputError: they cannot be written, or the file was closed before.
        """
        with self._open_lock:
            told_bytes = self._told_bytes
            if told_bytes <= self._synced_bytes:
                return
            if self._file is None:
                raise InputError(f"latency sink: {self._path} was closed before its lines were on the disk")
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._unwritable(error) from error
            self._synced_bytes = told_bytes

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"latency sink: cannot write to {self._path}: {error.strerror}; make room there")

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Complete the file and the sidecar."""
        assert self._file is not None
        self.flush()
        self._finished = True
        if self._is_in_place(self._file):
            self._write_sidecar("finished")
        return ()

    def close(self) -> None:
        """Release the file; a run that did not finish is marked as stopped."""
        if self._file is not None:
            with self._open_lock:
                file, self._file = self._file, None
            with file:
                file.flush()
                if not self._finished and self._is_in_place(file):
                    self._write_sidecar("stopped")

    def _is_in_place(self, file: BinaryIO) -> bool:
        """Not if a newer deployment took the file over."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _create(self) -> None:
        started = datetime.fromtimestamp(self._start_us / 1e6, UTC).strftime("%Y%m%d-%H%M%S")
        for attempt in range(1, _SAME_SECOND_RUNS_MAX + 1):
            again = "" if attempt == 1 else f"-{attempt}"
            path = self._directory / f"{self._spec.name}-{started}{again}{self._part}.txt"
            try:
                self._file = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115
            except FileExistsError:
                continue
            self._path = path
            self._sidecar_path = path.with_suffix(".json")
            return
        raise InputError(f"latency sink: {path} exists already; give the sink another name")

    def _point_latest(self, restored: Mapping[int, _Snapshot]) -> None:
        for target in (self._path, self._sidecar_path):
            link = self._directory / f"{LATEST}{self._part}{target.suffix}"
            fresh = self._directory / f".{link.name}.{os.getpid()}.{self._context.subtask_index}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target.name)
            os.replace(fresh, link)
        if self._context.subtask_index == 0:
            self._remove_stale_links(restored)

    def _remove_stale_links(self, restored: Mapping[int, _Snapshot]) -> None:
        """Links of subtasks that this run has not got, and never had, would mix an earlier run into it."""
        pattern = re.compile(rf"{LATEST}(?:\.(\d+))?\.(?:txt|json)")
        numbers = {*range(self._context.parallelism), *restored}
        for link in self._directory.iterdir():
            match = pattern.fullmatch(link.name)
            if match is None or not link.is_symlink():
                continue
            number = match.group(1)
            is_ours = not self._has_suffix if number is None else self._has_suffix and int(number) in numbers
            if not is_ours:
                link.unlink(missing_ok=True)

    def _write_sidecar(self, status: str) -> None:
        context = self._context
        facts = {
            "format_version": FORMAT_VERSION,
            "weir_version": _weir_version(),
            "status": status,
            "job": context.job_name,
            "sink": context.operator_name,
            "stage_index": context.stage_index,
            "subtask_index": context.subtask_index,
            "parallelism": context.parallelism,
            "generation": context.generation,
            "restarts": self._restarts,
            "file": self._path.name,
            "start_epoch_ms": self._start_us // 1000,
            "end_epoch_ms": None if status == "running" else context.clock.now_us() // 1000,
            **self._text.summary(),
            "run": context.run_facts,
        }
        fresh = self._directory / f".{self._sidecar_path.name}.unfinished"
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        fresh.write_bytes(orjson.dumps(facts, option=options, default=str))
        os.replace(fresh, self._sidecar_path)


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    while length:
        data = source.read(min(length, _COPY_BYTES))
        if not data:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        target.write(data)
        length -= len(data)


def _weir_version() -> str:
    try:
        return metadata.version("weir")
    except metadata.PackageNotFoundError:
        # Run from a clone that was not installed.
        return str(getattr(import_module("weir"), "__version__", "unknown"))
