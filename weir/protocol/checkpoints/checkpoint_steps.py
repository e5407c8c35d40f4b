"""What checkpoints do of themselves: begin when one is due, commit when complete, fail, finish the job. Pure.

``checkpoint.CheckpointMachine`` takes events in, and then lets these steps follow.
"""

from __future__ import annotations

from weir.protocol.checkpoints.checkpoint_life import CheckpointLife, Flight
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointAction,
    CheckpointRecord,
    CheckpointState,
    Commit,
    FailJob,
    NotifyEnd,
    Trigger,
)
from weir.protocol.checkpoints.manifest import SubtaskPart

#: From one attempt to finish the job (the last manifest, telling the sinks) to the next.
FINISH_RETRY_MS = 200


class CheckpointSteps(CheckpointLife):
    """Steps of checkpoints; :class:`~weir.protocol.checkpoints.checkpoint.CheckpointMachine` adds the events."""

    def _advance(self) -> list[CheckpointAction]:
        """Do what is due: commit what is complete, begin the next one."""
        if not self._is_running:
            return []
        if self._flight is None:
            due = [*self._finish_if_due(), *self._stop_if_due(), *self._begin_if_due()]
            return self._commit_if_complete(due)
        return self._commit_if_complete([])

    def _commit_if_complete(self, actions: list[CheckpointAction]) -> list[CheckpointAction]:
        flight = self._flight
        if flight is None or flight.is_committing or flight.missing:
            return actions
        flight.record.state = CheckpointState.COMMITTING
        flight.record.committing_ms = self._now_ms
        parts = tuple(part for _, part in sorted(flight.parts.items()))
        record = flight.record
        commit = Commit(
            record.checkpoint_id, flight.generation, parts, record.path, record.is_last, flight.settled
        )
        return [*actions, commit]

    def _finish_if_due(self) -> list[CheckpointAction]:
        """Finish with every last part: savepoints that wait, the last manifest, sinks that have not confirmed it."""
        if not self._final_wanted or self._retry_ms is None or self._now_ms < self._retry_ms:
            return []
        if self._final_id is not None:
            self._retry_ms = None
            return [NotifyEnd(self._final_id, self._generation, True, tuple(sorted(self._untold)))]
        if not self._parties.awaited():
            queue = self._records.queue
            record = queue.popleft() if queue else self._records.new("", self._now_ms)
            record.is_last = not record.path
            self._begin(record, is_at_end=bool(record.path))
        return []

    def _stop_if_due(self) -> list[CheckpointAction]:
        """Tell those again who have not confirmed that their sinks delivered what the savepoint covers."""
        if self._stop is None or self._retry_ms is None or self._now_ms < self._retry_ms:
            return []
        self._retry_ms = None
        return [
            NotifyEnd(self._stop.checkpoint_id, self._generation, True, tuple(sorted(self._untold)), True)
        ]

    def _begin_if_due(self) -> list[CheckpointAction]:
        if self._flight is not None or not self._may_trigger():
            return []
        parties = self._parties
        sources, others = parties.live_sources(), parties.after_ended_sources()
        # Without a source what was asked for waits for the last parts.
        if self._records.queue and sources:
            record = self._records.queue.popleft()
        elif self._settings.interval_ms and self._now_ms >= self._due_ms:
            record = self._records.new("", self._now_ms)
        else:
            return []
        self._begin(record)
        return [Trigger(record.checkpoint_id, tuple(sorted(sources)), record.holds, tuple(sorted(others)))]

    def _begin(self, record: CheckpointRecord, *, is_at_end: bool = False) -> None:
        record.state = CheckpointState.IN_PROGRESS
        record.started_ms = self._now_ms
        record.new_bytes, self._uncounted_bytes = self._uncounted_bytes, 0
        parties = self._parties
        self._calm.begin()
        self._flight = Flight(
            record,
            self._generation,
            parties.awaited(),
            is_at_end,
            dict(parties.settled),
            dict(parties.last_parts),
        )

    @staticmethod
    def _counts(last_part: SubtaskPart, flight: Flight) -> bool:
        """A last part has more in it than belongs to a checkpoint whose barrier its subtask had passed on."""
        return last_part.passed_checkpoint_id < flight.checkpoint_id

    def _fail(self, flight: Flight, cause: str, *, counts: bool = True) -> list[CheckpointAction]:
        """End it without success; too many in a row that count fail the job."""
        self._calm.forget()
        self._end_record(flight.record, CheckpointState.FAILED, cause)
        self._flight = None
        if self._final_wanted and flight.record.path and not self.missed_savepoint:
            self.missed_savepoint = f"savepoint {flight.record.path}: {cause}"
        if not self._is_running:
            return []
        # Last parts and the bytes for them stay; those of others may be written anew.
        actions: list[CheckpointAction] = [self._notify(flight, committed=False)]
        # A savepoint goes where the user said; that this cannot be written says nothing about the job.
        self._failures += counts and not flight.record.path
        limit = self._settings.failures_max
        if limit and self._failures > limit:
            actions.append(FailJob(f"{self._failures} checkpoints in a row failed, the last one: {cause}"))
            self._failures = 0
        return actions

    def _notify(self, flight: Flight, *, committed: bool) -> NotifyEnd:
        names = tuple(sorted(self._parties.task_managers() - self._parties.lost))
        stops = committed and flight.record.holds
        return NotifyEnd(flight.checkpoint_id, flight.generation, committed, names, stops)

    def _end_record(self, record: CheckpointRecord, state: CheckpointState, cause: str) -> None:
        record.state, record.cause, record.ended_ms = state, cause, self._now_ms
        self._records.has_ended(record)
        if record.started_ms is not None:
            settings = self._settings
            self._due_ms = max(record.started_ms + settings.interval_ms, self._now_ms + settings.pause_ms)

    def _give_up_queue(self, cause: str) -> None:
        for record in self._records.take_queue():
            self._end_record(record, CheckpointState.ABORTED, cause)

    def _gives_up_plain(self, record: CheckpointRecord) -> bool:
        if not record.path:
            self._end_record(record, CheckpointState.ABORTED, "every source had reached its end")
        return not record.path
