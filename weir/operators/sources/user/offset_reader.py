"""Runs a source whose splits are partitions that brokers keep, and whose positions are offsets of records in them."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext, Poll
from weir.author.source import Source
from weir.errors import InputError
from weir.operators.sources.files.positions import SourceCounts
from weir.operators.sources.user.record_rows import BadRecord
from weir.operators.sources.user.split_lags import SplitLags
from weir.operators.sources.user.user_source import UserSourceReader
from weir.operators.sources.user.user_splits import OpenSplit
from weir.specs import OnBadRecord, UserSourceSpec

#: How soon, and how late, the client is asked again when it had nothing.
_WAIT_US_MIN, _WAIT_US_MAX = 2_000, 32_000


class OffsetSource(Source):
    """Reads partitions. :meth:`read` calls :meth:`note_read` for what it yields next, whose position is an offset."""

    def __init__(self, on_bad_record: OnBadRecord) -> None:
        self._on_bad_record = on_bad_record
        self._rejected = 0
        #: Of the rows that were read last, and of the bad records among them; int64.
        self.offsets = self.bad_offsets = np.empty(0, dtype=np.int64)

    def open(self, context: OperatorContext) -> None:
        """Called once; a subclass connects."""
        self._context = context

    @abstractmethod
    def fetch(self) -> bool:
        """Take what the client has at hand; returns whether any partition has records now. Never waits."""

    @abstractmethod
    def has_records(self, split: Json) -> bool:
        """Return whether records of this partition were fetched and not read yet."""

    @abstractmethod
    def place(self, split: Json) -> str:
        """Name of the partition, for messages and dead letters."""

    @abstractmethod
    def ends(self) -> Mapping[str, int]:
        """Ask the brokers for the offset after the last record of each partition, by its place; may wait.

        Called by a thread of its own; what it raises is only noted.
        """

    def reached(self, split: Json, position: int) -> int:
        """The offset before which all records were read, at or after a position: entries may follow that are none."""
        return position

    def note_read(self, split: Json, offsets: np.ndarray, bad: Sequence[BadRecord]) -> None:
        """Note where records are, and put the bad ones aside.

        Args:
            split: that they are of.
            offsets: of all of them; int64, shape (records,).
            bad: those that are no rows.

        Raises:
            InputError: there is one, and the source is to fail then.
        """
        numbers = [record.number for record in bad]
        self.offsets, self.bad_offsets = np.delete(offsets, numbers), offsets[numbers]
        for record in bad:
            self._reject(self.place(split), int(offsets[record.number]), record.reason, record.raw)

    def pop_rejected(self) -> int:
        """Records put aside since the last call."""
        rejected, self._rejected = self._rejected, 0
        return rejected

    def _reject(self, origin: str, offset: int, reason: str, raw: bytes) -> None:
        self._rejected += 1
        if self._on_bad_record == "fail":
            raise InputError(
                f"{origin} offset {offset}: {reason}; correct it, or let the source {self._context.operator_name} put "
                'bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(origin, offset, reason, raw)


class OffsetReader(UserSourceReader):
    """Reads one subtask's partitions."""

    def __init__(self, spec: UserSourceSpec, source: OffsetSource) -> None:
        super().__init__(spec, source)
        self._partitions = source
        self._wait_us = 0
        self._lags: SplitLags | None = None

    def open(self, context: OperatorContext) -> None:
        """Choose partitions. See the base class."""
        super().open(context)
        self._lags = SplitLags(self._partitions.ends, context.clock)

    @property
    @override
    def lags(self) -> Mapping[str, int]:
        if self._lags is None:
            return {}
        source = self._partitions
        # Whoever reads may open and end splits meanwhile.
        known = [(each.split, each.position) for each in tuple(self._open_splits)]
        return self._lags.of(
            {
                source.place(split): source.reached(split, position)
                for split, position in known
                if isinstance(position, int) and position >= 0
            }
        )

    def close(self) -> None:
        """Release the source."""
        if self._lags is not None:
            self._lags.close()
        super().close()

    def _next_batch(self) -> pa.RecordBatch | None:
        has_records = self._partitions.fetch()
        self._wait_us = 0 if has_records else min(max(2 * self._wait_us, _WAIT_US_MIN), _WAIT_US_MAX)
        for split in self._open_splits:
            if split.iterator is None or self._partitions.has_records(split.split):
                split.wake_us = 0
        batch = super()._next_batch()
        self.rejected += self._partitions.pop_rejected()
        return batch

    def _position(self, counts: SourceCounts) -> Json:
        """Records that are not given out yet are told to be bad again after a restart, and count then."""
        if self._given is not None:
            again = int(np.count_nonzero(self._partitions.bad_offsets >= self._next_offset()))
            counts = dataclasses.replace(counts, rejected=counts.rejected - again)
        return super()._position(counts)

    def _describe(self, split: OpenSplit) -> list[Json]:
        """Tell the offset of the next row: a number of rows would miss those that have expired until a restart."""
        number, key, position, rows, skip, checked, time_ms = super()._describe(split)
        if self._given is not None and self._given.split is split:
            position, rows, skip, checked = self._next_offset(), rows + skip, 0, 0
        return [number, key, position, rows, skip, checked, time_ms]

    def _next_offset(self) -> int:
        """Return the offset of the next row of what was read last."""
        assert self._given is not None
        return int(self._partitions.offsets[self._given.good[self._first_left_row]])

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        assert self._given is not None
        offset = int(self._partitions.offsets[self._given.good[row]])
        return self._partitions.place(self._given.split.split), offset, ""

    def _nothing_now(self) -> Poll:
        polled = super()._nothing_now()
        if polled.finished:
            return polled
        return dataclasses.replace(polled, next_poll_us=self._clock.now_us() + self._wait_us)
