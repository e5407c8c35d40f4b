"""How many rows a subtask of a source has given and may give, and when each of them is due.

After a restart each subtask goes on at its next event. As long as the job's start is the same, so is the schedule: what
was missed is due at once, with its old time. With another start (a savepoint is started later) the next event is due at
that start. If the subtasks are others, what is left is shared among them, and events count on from the sum of those
given so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weir.operators.sources.files.positions import SchedulePlace, SourceCounts
from weir.operators.sources.paced.schedule import Schedule
from weir.specs import SourceSpec


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
