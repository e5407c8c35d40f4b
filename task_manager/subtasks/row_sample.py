"""What is looked at in a batch now and then: of which key groups and keys most rows are, and how old last rows are.

Reports ask for a batch now and then, so a subtask pays for one look at a flag with each batch, and for one sample a
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from task_manager.subtasks.hot_keys import TEXT_MAX, HotKeys
from weir.metrics.latency import LatencyRecorder
from weir.protocol.job.load import HotPart
from weir.rows.records import INGEST_TIME_COLUMN, KEY_HASH_COLUMN, int64_column

#: Of a larger batch only the first rows are looked at.
_ROWS_MAX = 8_192
#: A sample is taken for one in so many reports: they come up to five times a second.
_REPORTS = 3
#: By so much the rows of earlier samples count less with each sample: about the last ten count.
_KEPT_SHARE = 0.9
#: Groups, and keys, that are told.
_TOLD_MAX = 3
_HASH_SHIFT = np.uint64(32)


class RowSample:
    """Samples of a subtask: its thread takes them, and the thread that reports asks for them and reads them."""

    def __init__(self) -> None:
        """Looks at nothing before one of the two attributes below says so."""
        #: The next batch is to be looked at.
        self.is_wanted = False
        #: Number of key groups of the stage; 0: it has none.
        self.group_count = 0
        #: Rows end here, so that their age is what a job takes for them.
        self.is_last = False
        self._counts: npt.NDArray[Any] = np.zeros(0)
        self._hot = (0, 0.0)
        #: By input, the columns of its rows that are the key.
        self.key_columns: Mapping[int, Sequence[str]] = {}
        self._keys = HotKeys(_KEPT_SHARE)
        self._parts: tuple[Sequence[HotPart], Sequence[HotPart]] = ((), ())
        self._reports = 0
        #: How old rows were at the end of the job; any thread may read it.
        self.latencies = LatencyRecorder()

    def want(self) -> None:
        """Ask for the next batch, now and then; called by the thread that reports, with each report."""
        if self._reports % _REPORTS == 0 and (self.is_last or self.group_count > 0):
            self.is_wanted = True
        self._reports += 1

    def take(self, batch: pa.RecordBatch, now_us: int, input_index: int) -> None:
        """Look at a batch that has been processed, at this epoch microsecond; called by the subtask's thread.

        Args:
            batch: as it came, with the columns of the system.
            now_us: wall clock.
            input_index: the input of its rows.
        """
        self.is_wanted = False
        batch = batch.slice(0, _ROWS_MAX)
        place = batch.schema.get_field_index(KEY_HASH_COLUMN) if self.group_count else -1
        if place >= 0:
            hashes = batch.column(place).to_numpy(zero_copy_only=False).astype(np.uint64)
            # As weir.keys.hashing.key_groups, without a kernel that might have to be compiled.
            groups = ((hashes >> _HASH_SHIFT) * np.uint64(self.group_count)) >> _HASH_SHIFT
            counts = np.bincount(groups.astype(np.int64), minlength=self.group_count)
            earlier = self._counts * _KEPT_SHARE if len(self._counts) else 0.0
            self._counts = counts + earlier
            group = int(self._counts.argmax())
            total = max(float(self._counts.sum()), 1.0)
            self._hot = group, float(self._counts[group]) / total
            self._keys.add(hashes, lambda row: self._text(batch, row, input_index))
            self._note_parts(total)
        if self.is_last and batch.schema.get_field_index(INGEST_TIME_COLUMN) >= 0:
            self.latencies.observe_us(now_us - int64_column(batch, INGEST_TIME_COLUMN))

    def _text(self, batch: pa.RecordBatch, row: int, input_index: int) -> str:
        """The key of a row as an operator reads it."""
        names = [name for name in self.key_columns.get(input_index, ()) if name in batch.schema.names]
        return ", ".join(str(batch.column(name)[row].as_py()) for name in names)[:TEXT_MAX]

    def _note_parts(self, total: float) -> None:
        order = np.argsort(-self._counts, kind="stable")[:_TOLD_MAX].tolist()
        groups = [HotPart(at, float(self._counts[at]) / total) for at in order if self._counts[at] > 0]
        keys = [
            HotPart(((key_hash >> 32) * self.group_count) >> 32, share, text)
            for text, key_hash, share in self._keys.top(_TOLD_MAX)
        ]
        self._parts = groups, keys

    def hot_parts(self) -> tuple[Sequence[HotPart], Sequence[HotPart]]:
        """Key groups, and keys, with most rows of late, the hottest first; empty before a sample. Any thread."""
        return self._parts

    def hot_group(self) -> tuple[int, float]:
        """The key group with most rows of late and its share of them, 0 to 1; (0, 0.0) before a sample. Any thread."""
        return self._hot

    def latency_counts(self) -> list[int]:
        """Rows by bucket of ``weir.metrics.latency`` since the start; empty where rows do not end. Any thread."""
        if not self.is_last:
            return []
        counts, _ = self.latencies.read()
        found: list[int] = counts.tolist()
        return found
