"""The latency sink: one line per event, and a sidecar with the run's configuration and facts.

Files of a run, below the sink's directory (``.<subtask>`` only if there are several subtasks)::

    <name>-<YYYYmmdd-HHMMSS>[.<subtask>].txt   <arrival epoch ms>,<latency ms with 3 decimals>
    <name>-<YYYYmmdd-HHMMSS>[.<subtask>].json  the sidecar
    latest[.<subtask>].txt, latest[.<subtask>].json   links to the newest run's

The time is the job's start in UTC. A file of an earlier run is never overwritten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import BinaryIO

import orjson
import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import Operator, OperatorContext
from weir.operators.latency_format import LatencyText
from weir.records import INGEST_TIME_COLUMN, int64_column
from weir.specs import LatencySinkSpec

FORMAT_VERSION = 1
LATEST = "latest"

_BUFFER_BYTES = 1 << 20
_SAME_SECOND_RUNS_MAX = 1000


class LatencySink(Operator):
    """Writes the latency of each event: from its scheduled or read time to its arrival at this sink."""

    def __init__(self, spec: LatencySinkSpec) -> None:
        self._spec = spec
        self._directory = Path(spec.directory).expanduser()
        self._text = LatencyText()
        self._file: BinaryIO | None = None
        self._finished = False

    def open(self, context: OperatorContext) -> None:
        """Create the run's file and sidecar, and point ``latest`` to them.

        Raises:
            InputError: the directory cannot be written.
        """
        self._context = context
        self._start_us = context.job_start_us or context.clock.now_us()
        self._part = "" if context.parallelism == 1 else f".{context.subtask_index}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._create()
            self._write_sidecar("running")
            self._point_latest()
        except OSError as error:
            raise InputError(
                f"latency sink: cannot write to {self._directory}: {error.strerror}; choose a writable directory"
            ) from error

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

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Complete the file and the sidecar."""
        self.flush()
        self._finished = True
        self._write_sidecar("finished")
        return ()

    def close(self) -> None:
        """Release the file; a run that did not finish is marked as stopped."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self._finished:
                self._write_sidecar("stopped")

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

    def _point_latest(self) -> None:
        for target in (self._path, self._sidecar_path):
            link = self._directory / f"{LATEST}{self._part}{target.suffix}"
            fresh = self._directory / f".{link.name}.{os.getpid()}.{self._context.subtask_index}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target.name)
            os.replace(fresh, link)
        if self._context.subtask_index == 0:
            self._remove_stale_links()

    def _remove_stale_links(self) -> None:
        """Links of subtasks that this run has not got would mix an earlier run into it."""
        pattern = re.compile(rf"{LATEST}(?:\.(\d+))?\.(?:txt|json)")
        parallelism = self._context.parallelism
        for link in self._directory.iterdir():
            match = pattern.fullmatch(link.name)
            if match is None or not link.is_symlink():
                continue
            number = match.group(1)
            stale = parallelism > 1 if number is None else parallelism == 1 or int(number) >= parallelism
            if stale:
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


def _weir_version() -> str:
    try:
        return metadata.version("weir")
    except metadata.PackageNotFoundError:
        # Run from a clone that was not installed.
        return str(getattr(import_module("weir"), "__version__", "unknown"))
