"""What all sources share: polls by the schedule, the time columns and the limit on events.

After a restart each subtask goes on at its next event. As long as the job's start is the same, so is the schedule: what
was missed is due at once, with its old time. With another start (a savepoint is started later) the next event is due at
that start. If the subtasks are others, what is left is shared among them, and events count on from the sum of those
given so far.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import pyarrow as pa

from weir.author.operator import Json, OperatorContext, Poll, RepeatableDeadLetters, SourceReader
from weir.author.watermarks import DEFAULT_STRATEGY
from weir.errors import GraphError, InputError
from weir.keys.division import LateColumn
from weir.operators.event_times import EventTimes, TimesOfRows
from weir.operators.sources.files.positions import SchedulePlace, SourceCounts
from weir.operators.sources.paced.schedule import Schedule, is_trickle
from weir.operators.sources.paced.source_times import SourceTimes
from weir.rows import row_watermarks
from weir.rows.ahead import PartAhead, RowsAhead
from weir.rows.python_values import row_json
from weir.rows.records import (
    BATCH_BYTES_MAX,
    EVENT_TIME_COLUMN,
    INGEST_TIME_COLUMN,
    batch_bytes,
    plain_array,
    system_schema,
    user_columns,
)
from weir.specs import SourceSpec

#: Rows that a paced source decodes at a time: little enough not to delay due events noticeably.
PACED_DECODE_ROWS = 4_096
#: Rows are looked at before they are due in blocks of up to this many bytes: parts of a block keep all of it.
_AHEAD_BYTES_MAX = 2 << 20


class BatchSource(SourceReader):
    """Turns decoded batches into polls; subclasses read, decode, and know their positions.

    Args:
        spec: what to read and how fast.

    Raises:
        GraphError: rate, event limit or event-time column make no sense.
    """

    def __init__(self, spec: SourceSpec) -> None:
        self._source_spec = spec
        if spec.rate is not None and not spec.rate > 0:
            raise GraphError(f"source rate must be above 0 events/s, not {spec.rate}")
        if spec.events_max is not None and spec.events_max < 0:
            raise GraphError(f"source events_max must be 0 or more, not {spec.events_max}")
        time_column = spec.event_time_column
        if time_column is not None:
            if time_column not in spec.schema.names:
                raise GraphError(f"event_time_column {time_column} is not in the source's schema")
            if not pa.types.is_integer(spec.schema.field(time_column).type):
                raise GraphError(
                    f"event_time_column {time_column} must be an integer column (ms since the epoch)"
                )
        #: Whether the rate makes polls give out so few rows that many of them are decoded at a time.
        self.is_trickle = False
        #: Decoded rows with their time columns.
        self._batch: pa.RecordBatch | None = None
        #: Their event times, where a column or an expression gives them; None: the ingest time.
        self._times: TimesOfRows | None = None
        #: When they are due, if the source is a trickle.
        self._due_us: list[int] = []
        #: Lines or rows that the next block should have; see :attr:`rows_wanted`.
        self._rows_due = PACED_DECODE_ROWS
        #: A column that these rows lack; set by a subclass that returns such rows.
        self._late: LateColumn | None = None
        self._looked_at_by: Callable[[pa.RecordBatch], RowsAhead | None] | None = None
        #: What was found when these rows were looked at before they are due.
        self._ahead: RowsAhead | None = None
        #: The largest event time up to each of these rows; int64, shape (rows,).
        self._event_times_ms_max = np.empty(0, dtype=np.int64)
        self._batch_bytes = 0
        self._batch_offset = 0
        #: Rows given by this subtask, since ``_emitted_before`` rows had been given by all of them.
        self._emitted = 0
        self._emitted_before = 0
        #: Records rejected so far.
        self.rejected = 0
        self._quota: int | None = None
        self._schedule: Schedule | None = None
        self._place: SchedulePlace | None = None
        self._old_schedule: SchedulePlace | None = None
        self._schema = system_schema(spec.schema_read)
        self._next_poll_us = 0
        #: The last rows of a block were given out, and the next one was not looked for yet.
        self._block_ended = False
        self._strategy = spec.watermark or DEFAULT_STRATEGY
        self._event_times: EventTimes | None = None

    def look_ahead(self, look: Callable[[pa.RecordBatch], RowsAhead | None]) -> None:
        """See the base class: rows that wait for their time are looked at."""
        self._looked_at_by = look

    def open(self, context: OperatorContext) -> None:
        """Choose splits, set the schedule and decode the first rows. See the base class."""
        self._context = context
        self._clock = context.clock
        #: How far event time has come.
        self._source_times = SourceTimes(self._strategy, int(context.grace_period_ms), context.row_watermarks)
        spec = self._source_spec
        if spec.event_time_column is not None or spec.event_time_expression is not None:
            self._event_times = EventTimes(
                spec.event_time_column, spec.event_time_expression, spec.watermark, context.clock
            )
        indices = context.subtask_indices or tuple(range(context.parallelism))
        #: Number of subtasks, and this one's place among them.
        self._subtasks, self._rank = len(indices), indices.index(context.subtask_index)
        self.is_trickle = spec.rate is not None and is_trickle(spec.rate / self._subtasks)
        start_us = context.job_start_us or context.clock.now_us()
        positions = self._positions(context)
        if positions:
            self._restore(positions, indices, start_us)
        else:
            self._open_input(context)
            self._begin(start_us)
        if self._schedule is not None:
            self._ensure_batch()

    def _begin(self, start_us: int) -> None:
        """Schedule and limit from here on, for the input that was chosen."""
        limit = self._source_spec.events_max
        if limit is not None:
            self._quota = self._event_quota(max(0, limit - self._emitted_before))
        rate = self._source_spec.rate
        if rate is not None:
            # Only subtasks with something to read share the rate, so that a small input keeps its pace too.
            readers = [rank for rank, has_input in enumerate(self._has_input()) if has_input]
            place = readers.index(self._rank) if self._rank in readers else 0
            first = self._first_event(start_us)
            self._set_schedule(SchedulePlace(start_us, rate, first, place, max(len(readers), 1)))

    def _first_event(self, start_us: int) -> int:
        """Number of the event that is due at the schedule's beginning."""
        old = self._old_schedule
        same = old is not None and (old.start_us, old.rate) == (start_us, self._source_spec.rate)
        return old.first if old is not None and same else self._emitted_before

    def _set_schedule(self, place: SchedulePlace) -> None:
        self._place = place
        self._schedule = Schedule(
            place.rate,
            place.start_us,
            place.place,
            place.readers,
            self._emitted_before - place.first,
            int(self._context.gather_ms * 1000),
        )

    def _restore(
        self, positions: Mapping[int, SourceCounts], indices: tuple[int, ...], start_us: int
    ) -> None:
        """Go on where the snapshots of all subtasks stand."""
        same = set(positions) == set(indices)
        self._resume(same, indices)
        self._old_schedule = next(iter(positions.values())).schedule
        if same and self._goes_on(positions[self._context.subtask_index], start_us):
            return
        # Counted anew, since the subtasks, the limit or the schedule are others.
        first = next(iter(positions.values()))
        self._emitted_before = first.emitted_before + sum(p.emitted for p in positions.values())
        if self._rank == 0:
            self.rejected = sum(position.rejected for position in positions.values())
        self._skip_known_dead_letters({index: p.dead_letter_bytes for index, p in positions.items()})
        self._begin(start_us)

    def _goes_on(self, position: SourceCounts, start_us: int) -> bool:
        """Take counts and schedule over as they are, if they still hold."""
        spec, old = self._source_spec, position.schedule
        if position.events_max != spec.events_max:
            return False
        if (spec.rate, start_us if spec.rate else 0) != ((old.rate, old.start_us) if old else (None, 0)):
            return False
        self._emitted, self._emitted_before = position.emitted, position.emitted_before
        self._quota, self.rejected = position.quota, position.rejected
        if old is not None:
            self._set_schedule(old)
        self._skip_known_dead_letters({self._context.subtask_index: position.dead_letter_bytes})
        return True

    def _skip_known_dead_letters(self, positions: Mapping[int, int]) -> None:
        letters = self._context.dead_letters
        if isinstance(letters, RepeatableDeadLetters):
            letters.skip_known(positions)

    def snapshot(self) -> Json:
        """Positions, counts and schedule."""
        letters = self._context.dead_letters
        known = letters.position_bytes() if isinstance(letters, RepeatableDeadLetters) else 0
        return self._position(
            SourceCounts(
                emitted=self._emitted,
                emitted_before=self._emitted_before,
                events_max=self._source_spec.events_max,
                quota=self._quota,
                rejected=self.rejected,
                dead_letter_bytes=known,
                schedule=self._place,
            )
        )

    @property
    def rows_decoded_max(self) -> int:
        """Rows to decode at a time, at most."""
        batch_size = self._context.batch_size
        return min(batch_size, PACED_DECODE_ROWS) if self.is_trickle else batch_size

    @property
    def rows_wanted(self) -> int:
        """Rows that the next block should have, where it can be had of any length: what is due now."""
        if self._source_spec.rate is None:
            return self.rows_decoded_max
        if self.is_trickle:
            return self._rows_to_a_turn()
        return max(1, min(self._rows_due, self.rows_decoded_max))

    def _rows_to_a_turn(self) -> int:
        """As many as may be, but the last one is the last that one poll gives out: the next has another block."""
        rows_max, schedule = self.rows_decoded_max, self._schedule
        if schedule is None:
            return rows_max
        turn_us = schedule.last_turn_us(schedule.due_us(self._emitted + rows_max))
        rows = min(schedule.due_count(turn_us) - self._emitted, rows_max)
        return rows if rows > 0 else rows_max

    @abstractmethod
    def _open_input(self, context: OperatorContext) -> None:
        """Choose this subtask's share of the whole input and open it."""

    def _positions(self, context: OperatorContext) -> Mapping[int, SourceCounts]:
        """The snapshots to go on from, by subtask index; empty at a start from nothing."""
        return {}

    def _resume(self, same: bool, indices: tuple[int, ...]) -> None:
        """Instead of :meth:`_open_input`: read this subtask's share of what the snapshots left.

        Args:
            same: the subtasks are those that gave the snapshots: each goes on with its own.
            indices: of all subtasks now, by rank.
        """
        raise InputError("this source cannot be read on from a position")

    def _position(self, counts: SourceCounts) -> Json:
        """The snapshot: what is left to read after the last row that was given out, and these counts."""
        raise InputError("this source cannot be read again from a position: it takes no part in checkpoints")

    @abstractmethod
    def _has_input(self) -> list[bool]:
        """For every subtask, by rank, whether it has anything to read; known when the input was chosen."""

    @abstractmethod
    def _event_quota(self, events_max: int) -> int:
        """This subtask's part of the limit."""

    @abstractmethod
    def _next_batch(self) -> pa.RecordBatch | None:
        """The next rows with the user columns (at least one row, of the spec's schema).

        None: there are none; :meth:`_nothing_now` says whether for good.
        """

    def _nothing_now(self) -> Poll:
        """What a poll without rows returns after :meth:`_next_batch`: the end, unless there may be rows later."""
        return Poll(finished=True)

    def poll(self, rows_max: int) -> Poll:
        """See the base class. Batches end at decoded blocks, so that rows are not copied."""
        if self._schedule is None:
            return self._poll_now(rows_max)
        now_us = self._clock.now_us()
        if now_us < self._next_poll_us:
            return Poll(next_poll_us=self._next_poll_us)
        if not self.is_trickle:
            return self._poll_stream(self._schedule, now_us, rows_max)
        if not self._ensure_batch():
            return Poll(finished=True) if self._is_spent() else self._nothing_now()
        stop = bisect_right(self._due_us, now_us, self._batch_offset)
        due = stop - self._batch_offset
        if due <= 0:
            self._next_poll_us = self._due_us[stop]
            return Poll(next_poll_us=self._next_poll_us)
        if stop == len(self._due_us):
            # Of the next block too, which is not decoded yet: what was due when this poll was.
            turn_us = self._schedule.last_turn_us(now_us)
            due = max(due, self._schedule.due_count(turn_us) - self._emitted)
        rows = self._rows_at_hand(min(due, rows_max))
        self._next_poll_us = 0
        if rows == due:
            next_due_us = self._schedule.due_us(self._emitted + rows)
            self._next_poll_us = max(next_due_us, self._schedule.next_turn_us(now_us))
        return self._take(rows, self._next_poll_us)

    def _poll_stream(self, schedule: Schedule, now_us: int, rows_max: int) -> Poll:
        """What is due, decoded now."""
        due = schedule.due_count(now_us) - self._emitted
        if due <= 0:
            self._next_poll_us = schedule.due_us(self._emitted)
            return Poll(next_poll_us=self._next_poll_us)
        self._rows_due = due
        if not self._ensure_batch():
            return Poll(finished=True) if self._is_spent() else self._nothing_now()
        rows = self._rows_at_hand(min(due, rows_max))
        self._next_poll_us = 0 if rows < due else schedule.next_turn_us(now_us)
        return self._take(rows, self._next_poll_us)

    def _poll_now(self, rows_max: int) -> Poll:
        if not self._ensure_batch():
            return Poll(finished=True) if self._is_spent() else self._nothing_now()
        return self._take(self._rows_at_hand(rows_max), 0)

    def prepare(self) -> RowsAhead | None:
        """See the base class: the next block of a trickle is decoded between two polls, if it begins with one."""
        if not self._block_ended or not self.is_trickle or self._batch is not None:
            return None
        self._ensure_batch()
        return self._ahead

    def _ensure_batch(self) -> bool:
        """Have decoded rows at hand; False at the end."""
        if self._is_spent():
            return False
        if self._batch is None:
            read_us, self._block_ended = self._clock.now_us(), False
            rows = self._next_batch()
            if rows is None:
                return False
            self._set_batch(rows, read_us)
        return True

    def _is_spent(self) -> bool:
        """Whether the subtask gave its part of the limit."""
        return self._quota is not None and self._emitted >= self._quota

    def _set_batch(self, rows: pa.RecordBatch, read_us: int) -> None:
        """Append the time columns to decoded rows, once for all polls that give them out in slices."""
        if self._schedule is None:
            ingest_us = np.full(rows.num_rows, read_us, dtype=np.int64)
        else:
            ingest_us = self._schedule.due_times_us(self._emitted, rows.num_rows)
        self._times = None if self._event_times is None else self._event_times.of(rows)
        if self._times is not None:
            times_ms, latest_ms = self._times.times_ms, self._times.running_max()
        elif self._schedule is None:
            times_ms = latest_ms = np.full(rows.num_rows, read_us // 1000, dtype=np.int64)
        else:
            # They ascend.
            times_ms = latest_ms = ingest_us // 1000
        schema = self._schema if self._late is None else system_schema(rows.schema)
        if self._late is not None and self._schedule is None:
            # All rows have the time at which they were read, unless they have event times of their own.
            is_event_time, names = self._times is None, (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)
            self._late.constants = names if is_event_time else names[1:]
        self._batch = pa.RecordBatch.from_arrays(
            [*rows.columns, plain_array(times_ms), plain_array(ingest_us)], schema=schema
        )
        # They never fall.
        self._event_times_ms_max = latest_ms
        self._source_times.begin_rows(self._split_name())
        column = self._source_times.column_of(times_ms, latest_ms)
        if column is not None:
            self._batch = row_watermarks.with_column(self._batch, column)
        self._batch_bytes = batch_bytes(self._batch) + (0 if self._late is None else self._late.size_bytes)
        self._batch_offset = 0
        self._due_us = ingest_us.tolist() if self.is_trickle else []
        self._ahead = None
        if self._looked_at_by is not None and self._may_look():
            self._ahead = self._looked_at_by(self._batch)

    def _split_name(self) -> Hashable:
        """The split of the rows that were decoded last, for event time."""
        return ""

    def _poll_of(
        self,
        batch: pa.RecordBatch | None,
        size_bytes: int,
        next_poll_us: int,
        late: LateColumn | None = None,
        ahead: PartAhead | None = None,
    ) -> Poll:
        """With how far the subtask has come: of its splits, that which is furthest behind counts."""
        event_time_ms, watermark_ms = self._source_times.of_poll
        return Poll(
            batch=batch,
            size_bytes=size_bytes,
            event_time_ms_max=event_time_ms,
            watermark_ms=watermark_ms,
            next_poll_us=next_poll_us,
            ahead=ahead,
            late=late,
        )

    def _may_look(self) -> bool:
        """Whether the rows wait for their time, and nobody must see them one poll after the other."""
        has_bad_times = self._times is not None and self._times.bad is not None
        is_seen = self._strategy.generator is not None or has_bad_times
        return self.is_trickle and not is_seen and self._batch_bytes <= _AHEAD_BYTES_MAX

    def _rows_at_hand(self, rows_max: int) -> int:
        """How many of the next rows one poll may give."""
        assert self._batch is not None
        if self._quota is not None:
            rows_max = min(rows_max, self._quota - self._emitted)
        rows: int = self._batch.num_rows
        left = rows - self._batch_offset
        if self._late is not None and rows_max >= self.rows_decoded_max:
            # Nothing may be cut off them, and who divides them makes batches of that size.
            return left
        if self._batch_bytes > BATCH_BYTES_MAX:
            # In equal parts: a small rest would cost as much as they do.
            parts = -(-self._batch_bytes // BATCH_BYTES_MAX)
            rows_max = min(rows_max, -(-rows // parts))
        return min(rows_max, left)

    def _take(self, rows: int, next_poll_us: int) -> Poll:
        """Give out the next rows. What costs time was done for the whole decoded batch, not here."""
        assert self._batch is not None
        late, self._late = self._late, None
        has_bad_times = self._times is not None and self._times.bad is not None
        if late is not None and (rows < self._batch.num_rows or has_bad_times):
            rows, late = min(rows, self._join(late)), None
            if not rows:
                self._batch, self._block_ended = None, True
                return self._poll_of(None, 0, next_poll_us)
        batch, start = self._batch, self._batch_offset
        stop = start + rows
        if self._ahead is not None:
            return self._take_ahead(PartAhead(self._ahead, start, stop), next_poll_us)
        given = batch if rows == batch.num_rows else batch.slice(start, rows)
        if self._times is not None and self._times.bad is not None:
            given = self._without_bad_times(given, start, self._times.bad[start:stop])
        given = self._source_times.given(given, int(self._event_times_ms_max[stop - 1]))
        if stop == batch.num_rows:
            self._batch, self._block_ended = None, True
        self._batch_offset = stop
        self._emitted += rows
        size_bytes = self._batch_bytes * rows // batch.num_rows
        return self._poll_of(given if given.num_rows else None, size_bytes, next_poll_us, late)

    def _join(self, late: LateColumn) -> int:
        """Read the column that the rows lack; returns how many of them are good."""
        assert self._batch is not None
        self._batch = late.joined(self._batch)
        if late.kept is not None:
            self._keep_decoded(late.kept)
        return int(self._batch.num_rows)

    def _keep_decoded(self, kept: np.ndarray) -> None:
        """Of the rows that were decoded last only these are left; bool, shape (rows before,)."""
        self._event_times_ms_max = self._event_times_ms_max[kept]
        if self._times is not None:
            self._times = self._times.kept(kept)
            self._event_times_ms_max = self._times.running_max()

    def _take_ahead(self, part: PartAhead, next_poll_us: int) -> Poll:
        """As :meth:`_take`, of rows that were looked at."""
        assert self._batch is not None
        rows, rows_in_all = part.stop - part.start, self._batch.num_rows
        self._source_times.given_ahead(int(self._event_times_ms_max[part.stop - 1]))
        if part.stop == rows_in_all:
            self._batch = self._ahead = None
            self._block_ended = True
        self._batch_offset = part.stop
        self._emitted += rows
        size_bytes = self._batch_bytes * rows // rows_in_all
        return self._poll_of(None, size_bytes, next_poll_us, ahead=part)

    def _without_bad_times(self, given: pa.RecordBatch, start: int, bad: np.ndarray) -> pa.RecordBatch:
        """Put rows aside whose event time is bad; not before they are given out, so that each is told of once.

        Args:
            given: the rows.
            start: number of the first one within the decoded batch.
            bad: bool, shape (rows of ``given``,).
        """
        assert self._times is not None
        for row in np.flatnonzero(bad).tolist():
            self.rejected += 1
            if self._context.dead_letters is None:
                continue
            origin, position, where = self._place_of_row(start + row)
            one = given.slice(row, 1).select(user_columns(given.schema))
            reason = where + self._times.what_is_wrong(start + row)
            self._context.dead_letters.reject(origin, position, reason, row_json(one))
        return given.filter(pa.array(~bad)) if bad.any() else given

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        """Where a row of the decoded batch was read: file or other origin, position, what the reason begins with."""
        return self._context.operator_name, -1, ""
