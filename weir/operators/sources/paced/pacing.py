"""What all sources share: polls by the schedule, the time columns and the limit on events."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import pyarrow as pa

from weir.author.operator import Json, OperatorContext, Poll, RepeatableDeadLetters, SourceReader
from weir.author.watermarks import DEFAULT_STRATEGY
from weir.errors import GraphError, InputError
from weir.operators.event_times import EventTimes, TimesOfRows
from weir.operators.sources.files.positions import SourceCounts
from weir.operators.sources.paced.schedule import Schedule, is_trickle
from weir.operators.sources.paced.source_progress import DecodedRows, SourceProgress, SourceTimes
from weir.rows import row_watermarks
from weir.rows.late_column import LateColumn
from weir.rows.python_values import row_json
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    INGEST_TIME_COLUMN,
    Block,
    Due,
    plain_array,
    system_schema,
    user_columns,
)
from weir.specs import SourceSpec

#: Rows that a paced source decodes at a time: little enough not to delay due events noticeably.
PACED_DECODE_ROWS = 4_096


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
        #: Decoded rows that were not all given out.
        self._decoded_rows: DecodedRows | None = None
        #: Lines or rows that the next block should have; see :attr:`rows_wanted`.
        self._rows_due = PACED_DECODE_ROWS
        #: A column that the rows lack that are decoded next; set by a subclass that returns such rows.
        self._late: LateColumn | None = None
        self._looked_at_by: Callable[[pa.RecordBatch], Block | None] | None = None
        #: Records rejected so far.
        self.rejected = 0
        self._schema = system_schema(spec.schema_read)
        self._next_poll_us = 0
        #: The last rows of a block were given out, and the next one was not looked for yet.
        self._block_ended = False
        self._strategy = spec.watermark or DEFAULT_STRATEGY
        self._event_times: EventTimes | None = None

    def look_ahead(self, look: Callable[[pa.RecordBatch], Block | None]) -> None:
        """Let rows that wait for their time be looked at, as the base class says."""
        self._looked_at_by = look

    def open(self, context: OperatorContext) -> None:
        """Choose splits, set the schedule and decode the first rows. See the base class."""
        self._context = context
        self._clock = context.clock
        self._progress = SourceProgress(self._source_spec, int(context.gather_ms * 1000))
        letters = context.dead_letters
        #: Those of the context, if a source can go back in them; a source asks for their length at every piece.
        self._repeatable_letters = letters if isinstance(letters, RepeatableDeadLetters) else None
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
            if context.generation > 1:
                # The job begins again from nothing: it failed before its first checkpoint.
                self._skip_known_dead_letters(dict.fromkeys(indices, 0))
            self._open_input(context)
            self._begin(start_us)
        if self._progress.schedule is not None:
            self._ensure_rows()

    def _begin(self, start_us: int) -> None:
        """Schedule and limit from here on, for the input that was chosen."""
        if (left := self._progress.left_of_limit) is not None:
            self._progress.quota = self._event_quota(left)
        self._progress.begin_schedule(start_us, self._has_input(), self._rank)

    def _restore(
        self, positions: Mapping[int, SourceCounts], indices: tuple[int, ...], start_us: int
    ) -> None:
        """Go on where the snapshots of all subtasks stand."""
        same = set(positions) == set(indices)
        self._resume(same, indices)
        known = {index: position.dead_letter_bytes for index, position in positions.items()}
        mine = positions.get(self._context.subtask_index)
        if same and mine is not None and self._progress.goes_on(mine, start_us):
            self.rejected = mine.rejected
            self._skip_known_dead_letters({self._context.subtask_index: mine.dead_letter_bytes})
            return
        self._progress.count_anew(positions.values())
        if self._rank == 0:
            self.rejected = sum(position.rejected for position in positions.values())
        self._skip_known_dead_letters(known)
        self._begin(start_us)

    def _skip_known_dead_letters(self, positions: Mapping[int, int]) -> None:
        if self._repeatable_letters is not None:
            self._repeatable_letters.skip_known(positions)

    def _letters_position(self) -> int:
        """How much was written to the dead letters so far, bytes."""
        letters = self._repeatable_letters
        return 0 if letters is None else letters.position_bytes()

    def snapshot(self) -> Json:
        """Positions, counts and schedule."""
        return self._position(self._progress.counts(self.rejected, self._letters_position()))

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
            return self._progress.rows_to_a_turn(self.rows_decoded_max)
        return max(1, min(self._rows_due, self.rows_decoded_max))

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
        """Return for every subtask, by rank, whether it has anything to read; known when the input was chosen."""

    @abstractmethod
    def _event_quota(self, events_max: int) -> int:
        """Return this subtask's part of the limit."""

    @abstractmethod
    def _next_batch(self) -> pa.RecordBatch | None:
        """The next rows with the user columns (at least one row, of the spec's schema).

        None: there are none; :meth:`_nothing_now` says whether for good.
        """

    def _nothing_now(self) -> Poll:
        """What a poll without rows returns after :meth:`_next_batch`: the end, unless there may be rows later."""
        return Poll(finished=True)

    def begin(self) -> Poll:
        """Subtasks without a split end before the others read."""
        has_input = self._has_input()
        if not has_input[self._rank]:
            return Poll(finished=True)
        indices = self._context.subtask_indices or range(self._context.parallelism)
        others = zip(indices, has_input, strict=True)
        return Poll(without=tuple(index for index, has_any in others if not has_any))

    def poll(self, rows_max: int) -> Poll:
        """Poll, as the base class says. Batches end at decoded blocks, so that rows are not copied."""
        schedule = self._progress.schedule
        if schedule is None:
            rows = self._ensure_rows()
            return self._take(rows, self._at_hand(rows, rows_max), 0) if rows is not None else self._no_rows()
        now_us = self._clock.now_us()
        if now_us < self._next_poll_us:
            return Poll(next_poll_us=self._next_poll_us)
        if not self.is_trickle:
            return self._poll_stream(schedule, now_us, rows_max)
        rows = self._ensure_rows()
        if rows is None:
            return self._no_rows()
        stop = bisect_right(rows.due_us, now_us, rows.offset)
        due = stop - rows.offset
        if due <= 0:
            self._next_poll_us = rows.due_us[stop]
            return Poll(next_poll_us=self._next_poll_us)
        given = self._progress.given
        if stop == len(rows.due_us):
            # Of the next block too, which is not decoded yet: what was due when this poll was.
            due = max(due, schedule.due_count(schedule.last_turn_us(now_us)) - given)
        count = self._at_hand(rows, min(due, rows_max))
        self._next_poll_us = 0
        if count == due:
            self._next_poll_us = max(schedule.due_us(given + count), schedule.next_turn_us(now_us))
        return self._take(rows, count, self._next_poll_us)

    def _poll_stream(self, schedule: Schedule, now_us: int, rows_max: int) -> Poll:
        """What is due, decoded now."""
        due = schedule.due_count(now_us) - self._progress.given
        if due <= 0:
            self._next_poll_us = schedule.due_us(self._progress.given)
            return Poll(next_poll_us=self._next_poll_us)
        self._rows_due = due
        rows = self._ensure_rows()
        if rows is None:
            return self._no_rows()
        count = self._at_hand(rows, min(due, rows_max))
        self._next_poll_us = 0 if count < due else schedule.next_turn_us(now_us)
        return self._take(rows, count, self._next_poll_us)

    @property
    def rows_overdue(self) -> int | None:
        """Return what the schedule says is due and was not given; None: there is no rate."""
        # Asked by another thread, perhaps before it is open.
        progress: SourceProgress | None = getattr(self, "_progress", None)
        if progress is None or progress.schedule is None:
            return None
        return progress.may_give(max(progress.schedule.due_count(self._clock.now_us()) - progress.given, 0))

    def _no_rows(self) -> Poll:
        return Poll(finished=True) if self._progress.is_spent else self._nothing_now()

    def prepare(self) -> Block | None:
        """Decode the next block of a trickle between two polls, if it begins with one."""
        if not self._block_ended or not self.is_trickle or self._decoded_rows is not None:
            return None
        rows = self._ensure_rows()
        return None if rows is None else rows.block

    def _ensure_rows(self) -> DecodedRows | None:
        """Have decoded rows at hand; None: there are none now, or the limit is reached."""
        if self._progress.is_spent:
            return None
        if self._decoded_rows is None:
            read_us, self._block_ended = self._clock.now_us(), False
            rows = self._next_batch()
            if rows is not None:
                self._decoded_rows = self._timed(rows, read_us)
        return self._decoded_rows

    def _timed(self, rows: pa.RecordBatch, read_us: int) -> DecodedRows:
        """Append the time columns to decoded rows, once for all polls that give them out in slices."""
        schedule, (late, self._late) = self._progress.schedule, (self._late, None)
        if schedule is None:
            ingest_us = np.full(rows.num_rows, read_us, dtype=np.int64)
        else:
            ingest_us = schedule.due_times_us(self._progress.given, rows.num_rows)
        times = None if self._event_times is None else self._event_times.of(rows)
        if times is not None:
            times_ms, latest_ms = times.times_ms, times.running_max()
        elif schedule is None:
            times_ms = latest_ms = np.full(rows.num_rows, read_us // 1000, dtype=np.int64)
        else:
            # They ascend.
            times_ms = latest_ms = ingest_us // 1000
        schema = self._schema if late is None else system_schema(rows.schema)
        if late is not None and schedule is None:
            # All rows have the time at which they were read, unless they have event times of their own.
            names = (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN)
            late.constants = names if times is None else names[1:]
        batch = pa.RecordBatch.from_arrays(
            [*rows.columns, plain_array(times_ms), plain_array(ingest_us)], schema=schema
        )
        self._source_times.begin_rows(self._split_name())
        column = self._source_times.column_of(times_ms, latest_ms)
        if column is not None:
            batch = row_watermarks.with_column(batch, column)
        made = DecodedRows(batch, times, latest_ms, ingest_us.tolist() if self.is_trickle else [], late)
        # Generators see rows one poll after the other.
        is_looked_at = self.is_trickle and self._strategy.generator is None and made.may_be_looked_at
        if self._looked_at_by is not None and is_looked_at:
            made.block = self._looked_at_by(batch)
        return made

    def _split_name(self) -> Hashable:
        """The split of the rows that were decoded last, for event time."""
        return ""

    def _poll_of(
        self,
        batch: pa.RecordBatch | None,
        size_bytes: int,
        next_poll_us: int,
        due: Due | None = None,
    ) -> Poll:
        """Make a poll that says how far the subtask has come: the split that is furthest behind counts."""
        event_time_ms, watermark_ms = self._source_times.of_poll
        return Poll(
            batch=batch,
            size_bytes=size_bytes,
            event_time_ms_max=event_time_ms,
            watermark_ms=watermark_ms,
            next_poll_us=next_poll_us,
            due=due,
        )

    def _at_hand(self, rows: DecodedRows, rows_max: int) -> int:
        """How many of the next rows one poll may give."""
        return rows.at_hand(self._progress.may_give(rows_max), self.rows_decoded_max)

    def _take(self, rows: DecodedRows, count: int, next_poll_us: int) -> Poll:
        """Give out the next rows. What costs time was done for the whole decoded batch, not here."""
        if rows.late is not None and (count < rows.batch.num_rows or rows.has_bad_times):
            kept = rows.join_late()
            if kept is not None:
                self._keep_decoded(kept)
            count = min(count, rows.batch.num_rows)
            if not count:
                self._decoded_rows, self._block_ended = None, True
                return self._poll_of(None, 0, next_poll_us)
        batch, start, stop = rows.batch, rows.offset, rows.offset + count
        latest_ms, size_bytes = int(rows.latest_ms[stop - 1]), rows.size_bytes * count // batch.num_rows
        given, due = None, None
        if rows.block is not None:
            due = Due(rows.block, start, stop)
            self._source_times.given_ahead(latest_ms)
        else:
            given = batch if count == batch.num_rows else batch.slice(start, count)
            if rows.times is not None and rows.times.bad is not None:
                given = self._without_bad_times(given, start, rows.times)
            given = self._source_times.given(given, latest_ms)
        if stop == batch.num_rows:
            self._decoded_rows, self._block_ended = None, True
        rows.offset = stop
        self._progress.given += count
        if given is not None and rows.late is not None:
            given, due = None, Due(Block(given, late=rows.late), 0, count)
        rows_given = given if given is not None and given.num_rows else None
        return self._poll_of(rows_given, size_bytes, next_poll_us, due)

    @property
    def _first_left_row(self) -> int:
        """Number of the first row of the decoded batch that was not given out."""
        assert self._decoded_rows is not None
        return self._decoded_rows.offset

    def _keep_decoded(self, kept: np.ndarray) -> None:
        """Keep some of the rows that were decoded last; bool, shape (rows before,)."""

    def _without_bad_times(self, given: pa.RecordBatch, start: int, times: TimesOfRows) -> pa.RecordBatch:
        """Put rows aside whose event time is bad; not before they are given out, so that each is told of once.

        Args:
            given: the rows.
            start: number of the first one within the decoded batch.
            times: of the whole batch.
        """
        assert times.bad is not None
        bad = times.bad[start : start + given.num_rows]
        for row in np.flatnonzero(bad).tolist():
            self.rejected += 1
            if self._context.dead_letters is None:
                continue
            origin, position, where = self._place_of_row(start + row)
            one = given.slice(row, 1).select(user_columns(given.schema))
            reason = where + times.what_is_wrong(start + row)
            self._context.dead_letters.reject(origin, position, reason, row_json(one))
        return given.filter(pa.array(~bad)) if bad.any() else given

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        """Where a row of the decoded batch was read: file or other origin, position, what the reason begins with."""
        return self._context.operator_name, -1, ""
