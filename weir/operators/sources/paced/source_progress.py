"""How far a subtask of a source has come: its rows, how many it has given, when each is due, and their event time.

After a restart each subtask goes on at its next event. As long as the job's start is the same, so is the schedule: what
was missed is due at once, with its old time. With another start (a savepoint is started later) the next event is due at
that start. If the subtasks are others, what is left is shared among them, and events count on from the sum of those
given so far.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from weir.author.watermarks import WatermarkGenerator, WatermarkStrategy
from weir.operators.event_times import TimesOfRows, generated
from weir.operators.sources.files.positions import SchedulePlace, SourceCounts
from weir.operators.sources.paced.schedule import Schedule
from weir.protocol.watermarks.time_reached import SplitTimes
from weir.rows import row_watermarks
from weir.rows.late_column import LateColumn
from weir.rows.records import (
    BATCH_BYTES_MAX,
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    Block,
    batch_bytes,
    int64_column,
)
from weir.rows.row_watermarks import RowWatermarks
from weir.specs import SourceSpec

#: Rows are looked at before they are due in blocks of up to this many bytes: parts of a block keep all of it.
_AHEAD_BYTES_MAX = 2 << 20


class SourceProgress:
    """Counts, limit and schedule of one subtask; used by its source only."""

    def __init__(self, spec: SourceSpec, gather_us: int) -> None:
        """``gather_us``: how long a row may wait for the next ones."""
        self._spec = spec
        self._gather_us = gather_us
        #: Rows given by this subtask, since ``given_before`` rows had been given by all of them.
        self.given = 0
        self.given_before = 0
        #: This subtask's part of the limit; None: there is none.
        self.quota: int | None = None
        #: None: rows are given as fast as possible.
        self.schedule: Schedule | None = None
        self._place: SchedulePlace | None = None
        self._old_place: SchedulePlace | None = None

    @property
    def is_spent(self) -> bool:
        """Return whether the subtask gave its part of the limit."""
        return self.quota is not None and self.given >= self.quota

    def may_give(self, rows: int) -> int:
        """Return how many of so many rows the limit lets pass."""
        return rows if self.quota is None else min(rows, self.quota - self.given)

    def counts(self, rejected: int, dead_letter_bytes: int) -> SourceCounts:
        """Return what a snapshot says of all this."""
        return SourceCounts(
            emitted=self.given,
            emitted_before=self.given_before,
            events_max=self._spec.events_max,
            quota=self.quota,
            rejected=rejected,
            dead_letter_bytes=dead_letter_bytes,
            schedule=self._place,
        )

    def goes_on(self, position: SourceCounts, start_us: int) -> bool:
        """Take counts and schedule of a snapshot over as they are, if they still hold; returns whether they do.

        Args:
            position: of the same subtask among the same ones.
            start_us: the job's start, epoch µs.
        """
        spec, old = self._spec, position.schedule
        if position.events_max != spec.events_max:
            return False
        if (spec.rate, start_us if spec.rate else 0) != ((old.rate, old.start_us) if old else (None, 0)):
            return False
        self.given, self.given_before, self.quota = position.emitted, position.emitted_before, position.quota
        if old is not None:
            self._set_schedule(old)
        return True

    def count_anew(self, positions: Iterable[SourceCounts]) -> None:
        """Count from the snapshots of all subtasks on: the subtasks, the limit or the schedule are others."""
        listed = list(positions)
        self.given_before = listed[0].emitted_before + sum(position.emitted for position in listed)
        self._old_place = listed[0].schedule

    @property
    def left_of_limit(self) -> int | None:
        """Rows that all subtasks together may still give; None: there is no limit."""
        limit = self._spec.events_max
        return None if limit is None else max(0, limit - self.given_before)

    def begin_schedule(self, start_us: int, has_input: Sequence[bool], rank: int) -> None:
        """Set the schedule from here on, if the source is paced.

        Only subtasks with something to read share the rate, so that a small input keeps its pace, too.

        Args:
            start_us: the job's start, epoch µs.
            has_input: of each subtask, by rank.
            rank: of this one.
        """
        rate = self._spec.rate
        if rate is None:
            return
        readers = [reader for reader, has_some in enumerate(has_input) if has_some]
        place = readers.index(rank) if rank in readers else 0
        old = self._old_place
        is_same = old is not None and (old.start_us, old.rate) == (start_us, rate)
        first = old.first if old is not None and is_same else self.given_before
        self._set_schedule(SchedulePlace(start_us, rate, first, place, max(len(readers), 1)))

    def _set_schedule(self, place: SchedulePlace) -> None:
        self._place = place
        skipped = self.given_before - place.first
        self.schedule = Schedule(
            place.rate, place.start_us, place.place, place.readers, skipped, self._gather_us
        )

    def rows_to_a_turn(self, rows_max: int) -> int:
        """Return so many rows, or fewer: so that the last of them is the last that one poll gives out.

        The next poll has another block then.
        """
        schedule = self.schedule
        if schedule is None:
            return rows_max
        turn_us = schedule.last_turn_us(schedule.due_us(self.given + rows_max))
        rows = min(schedule.due_count(turn_us) - self.given, rows_max)
        return rows if rows > 0 else rows_max


class SourceTimes:
    """The times of splits are the highest event times of their rows, or what their generators say.

    Args:
        strategy: of the source.
        grace_period_ms: how far watermarks stay behind the highest event time, if the strategy does not say.
        wanted: which batches of the job say what the watermark is as of each row.
    """

    def __init__(self, strategy: WatermarkStrategy, grace_period_ms: int, wanted: RowWatermarks) -> None:
        known_ms = strategy.out_of_orderness_ms
        self._bound_ms = grace_period_ms if known_ms is None else known_ms
        self._make_generator = strategy.generator
        self._generators: dict[Hashable, WatermarkGenerator] = {}
        self._wanted = wanted
        self.splits = SplitTimes()
        #: The split of the rows that were decoded last.
        self._current: Hashable = ""

    @property
    def are_generated(self) -> bool:
        """Return whether generators of the author make the watermarks."""
        return self._make_generator is not None

    @property
    def of_poll(self) -> tuple[int, int | None]:
        """What a poll tells: the highest event time that is sure, or the watermark."""
        time_ms = self.splits.lowest_ms()
        if not self.are_generated:
            return time_ms, None
        return WATERMARK_MIN_MS, None if time_ms == WATERMARK_MIN_MS else time_ms

    def begin_rows(self, split: Hashable) -> None:
        """Rows of this split were decoded."""
        self._current = split
        if split not in self.splits:
            self.splits.add(split)

    def end(self, split: Hashable) -> None:
        """End a split: all of it was read."""
        self.splits.end(split)
        self._generators.pop(split, None)

    def column_of(self, times_ms: np.ndarray, latest_ms: np.ndarray) -> np.ndarray | None:
        """The watermark as of each decoded row; None: the job needs none, or generators say it of rows given out.

        Args:
            times_ms: event times; int64, shape (rows,).
            latest_ms: the largest one up to each row; int64, shape (rows,).
        """
        if self.are_generated or not self._wanted:
            return None
        highest_ms = np.maximum(latest_ms, self.splits.time_ms(self._current))
        return row_watermarks.of_split(
            times_ms, highest_ms, self._bound_ms, self._others_watermark_ms(), self._wanted
        )

    def given(self, batch: pa.RecordBatch, latest_ms: int) -> pa.RecordBatch:
        """Rows are given out, the highest event time of the decoded ones up to them is this; returns them.

        The generator is asked for the watermark after them, of which each is as of the one before.
        """
        if self._make_generator is None:
            self.splits.follow(self._current, latest_ms)
            return batch
        if not batch.num_rows:
            return batch
        if self._current not in self._generators:
            self._generators[self._current] = self._make_generator()
        before_ms = self.splits.time_ms(self._current)
        known_ms = None if before_ms == WATERMARK_MIN_MS else before_ms
        made_ms = generated(self._generators[self._current], batch, known_ms)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        before = np.full(batch.num_rows, before_ms)
        column = row_watermarks.of_split(times_ms, before, 0, self._others_watermark_ms(), self._wanted)
        if made_ms is not None:
            self.splits.follow(self._current, made_ms)
        return batch if column is None else row_watermarks.with_column(batch, column)

    def given_ahead(self, latest_ms: int) -> None:
        """Note rows as given that were looked at before they were due."""
        self.splits.follow(self._current, latest_ms)

    def _others_watermark_ms(self) -> int:
        """The lowest watermark of the other splits that are read, or will be; the highest time if there is none."""
        time_ms = self.splits.others_ms(self._current)
        is_watermark = self.are_generated or time_ms in (WATERMARK_MIN_MS, WATERMARK_MAX_MS)
        return time_ms if is_watermark else time_ms - self._bound_ms


class DecodedRows:
    """A decoded batch; used by its source only.

    Args:
        batch: user columns without those that come late, and time columns.
        times: event times where a column or an expression gives them; None: those of reading.
        latest_ms: the largest event time up to each row, which never falls; int64, shape (rows,).
        due_us: when each row is due, if the source is a trickle; else empty.
        late: a column that the rows lack.
    """

    __slots__ = ("batch", "block", "due_us", "late", "latest_ms", "offset", "size_bytes", "times")

    def __init__(
        self,
        batch: pa.RecordBatch,
        times: TimesOfRows | None,
        latest_ms: np.ndarray,
        due_us: list[int],
        late: LateColumn | None,
    ) -> None:
        self.batch, self.times, self.latest_ms, self.due_us, self.late = batch, times, latest_ms, due_us, late
        self.size_bytes = batch_bytes(batch) + (0 if late is None else late.size_bytes)
        #: Rows that were given out.
        self.offset = 0
        #: What was found when the rows were looked at before they are due.
        self.block: Block | None = None

    @property
    def has_bad_times(self) -> bool:
        """Return whether some event times are bad, so that rows must be put aside."""
        return self.times is not None and self.times.bad is not None

    @property
    def may_be_looked_at(self) -> bool:
        """Whether a block is small enough for its parts to keep all of it, and nobody must see the rows in turn."""
        return not self.has_bad_times and self.size_bytes <= _AHEAD_BYTES_MAX

    def at_hand(self, rows_max: int, whole_max: int) -> int:
        """Return how many of the next rows one poll may give.

        Args:
            rows_max: no more than these.
            whole_max: from so many on, rows that lack a column are given whole.
        """
        rows: int = self.batch.num_rows
        left = rows - self.offset
        if self.late is not None and rows_max >= whole_max:
            # Nothing may be cut off them, and who divides them makes batches of that size.
            return left
        if self.size_bytes > BATCH_BYTES_MAX:
            # In equal parts: a small rest would cost as much as they do.
            parts = -(-self.size_bytes // BATCH_BYTES_MAX)
            rows_max = min(rows_max, -(-rows // parts))
        return min(rows_max, left)

    def join_late(self) -> np.ndarray | None:
        """Read the column that the rows lack; returns which rows it left: bool, shape (rows before,). None: all."""
        late, self.late = self.late, None
        assert late is not None
        self.batch = late.joined(self.batch)
        if late.kept is not None:
            self.latest_ms = self.latest_ms[late.kept]
            if self.times is not None:
                self.times = self.times.kept(late.kept)
                self.latest_ms = self.times.running_max()
        return late.kept
