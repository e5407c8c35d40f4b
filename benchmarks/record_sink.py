"""A transactional sink of the benchmarks: when each row arrived, in files that become visible with their checkpoint.

What a restart rolls back never becomes visible, so the records are what was delivered in the end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

import weir
from weir.author.operator import Json, OperatorContext
from weir.operators.sinks.two_phase import TransactionId
from weir.rows.records import INGEST_TIME_COLUMN

#: Columns of a record, each int64: number of the key, its count, arrival and due time in µs since the epoch.
RECORD_COLUMNS = 4
#: Subtask, generation and sequence.
_VISIBLE = "part-{:05d}-{:06d}-{:08d}.bin"
_GENERATION = re.compile(r"part-\d+-(\d+)-\d+\.bin")


class RecordSink(weir.TwoPhaseSink):
    """Columns ``id`` and ``n``, with the times, as records.

    Prepared files survive the death of the process, not that of the machine: they are not synced, so that the
    disk's time is that of the checkpoints and not of what measures them.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._file: BinaryIO | None = None
        self._name = ""

    def start(self, context: OperatorContext, is_restart: bool) -> None:
        """Create the directory."""
        self._directory.mkdir(parents=True, exist_ok=True)

    def begin(self, transaction: TransactionId) -> None:
        """Create the pending file."""
        self._name = _VISIBLE.format(transaction.subtask_index, transaction.generation, transaction.sequence)
        self._file = open(self._pending(self._name), "xb", buffering=0)  # noqa: SIM115

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record of each row."""
        assert self._file is not None
        records = np.empty((batch.num_rows, RECORD_COLUMNS), dtype=np.int64)
        records[:, 0] = batch.column("id").to_numpy()
        records[:, 1] = batch.column("n").to_numpy()
        records[:, 2] = time.time_ns() // 1000
        records[:, 3] = batch.column(INGEST_TIME_COLUMN).to_numpy()
        self._file.write(records.data)

    def prepare(self) -> Json:
        """Close the file."""
        self.close()
        return {"name": self._name}

    def commit_prepared(self, description: Json) -> None:
        """Give the file its visible name; nothing if it has it, or is gone."""
        name = description["name"]
        try:
            os.rename(self._pending(name), self._directory / name)
        except FileNotFoundError:
            return

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Remove pending files of earlier generations."""
        for path in self._directory.glob(".*.pending"):
            name = path.name[1 : -len(".pending")]
            if name not in listed and _generation(name) < generation:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _pending(self, name: str) -> Path:
        return self._directory / f".{name}.pending"


def read_records(directory: Path, from_generation: int = 1) -> np.ndarray:
    """All delivered records of a run, int64, shape (events, 4), in order of arrival.

    Args:
        directory: of the sink.
        from_generation: leave out what earlier generations prepared.
    """
    parts = [np.empty(0, dtype=np.int64)]
    for path in sorted(directory.glob("part-*.bin")):
        if _generation(path.name) >= from_generation:
            parts.append(np.fromfile(path, dtype=np.int64))
    records = np.concatenate(parts).reshape(-1, RECORD_COLUMNS)
    return records[np.argsort(records[:, 2], kind="stable")]


def _generation(name: str) -> int:
    match = _GENERATION.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no file of records")
    return int(match[1])
