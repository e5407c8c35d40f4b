"""When checkpoints begin, when they are complete, who is told: the coordinator's decisions. Pure.

The control plane's only thread for decisions calls :meth:`CheckpointMachine.handle` with every event and
carries out the actions it returns, in order. One checkpoint is in flight at a time. docs/design/0002 has the
protocol; ``weir.protocol.checkpoints.checkpoint_model`` the events and actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from weir.errors import FailureKind, InvalidTransitionError
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointAction,
    CheckpointEvent,
    CheckpointRecord,
    CheckpointRefusal,
    CheckpointState,
    CommitFailed,
    Committed,
    DeliveryFailure,
    EndNotified,
    FailJob,
    FinalDone,
    FinalRequested,
    Hold,
    JobRuns,
    JobStops,
    PartDeclined,
    PartDelivered,
    RedeployJob,
    Release,
    RowsCame,
    StopJob,
    SubtasksAdded,
    SubtasksRetired,
    TaskManagerLost,
    Tick,
)
from weir.protocol.checkpoints.checkpoint_records import QUEUE_MAX
from weir.protocol.checkpoints.checkpoint_steps import FINISH_RETRY_MS, CheckpointSteps
from weir.protocol.job.restart import back_off_ms
from weir.subtask_names import NameOf, listed

#: From the type of an event to the method of :class:`CheckpointMachine` that handles it.
Handlers = Mapping[type, Callable[["CheckpointMachine", Any], list[CheckpointAction]]]


class CheckpointMachine(CheckpointSteps):
    """The checkpoints of a job, over all its generations. Not safe for use by several threads at once."""

    def request(
        self, path: str, now_ms: int, *, stops_job: bool = False, redeploys_job: bool = False
    ) -> tuple[CheckpointRecord, list[CheckpointAction]] | CheckpointRefusal:
        """A user asks for a checkpoint, or a savepoint at ``path`` if that is not empty. It gets its id at once.

        With ``stops_job`` the sources hold after the savepoint's barrier, and the job stops when it is complete
        (:class:`StopJob`); if it fails, the job goes on. With ``redeploys_job`` it is deployed anew instead
        (:class:`RedeployJob`).

        It waits for the one in flight, for a rescale and for a job that starts again. Plain requests that wait
        are one. The record is live: its state changes.
        """
        self._now_ms = now_ms
        if self._is_over and not self._final_wanted:
            return CheckpointRefusal("the job has ended")
        if self._is_over or (self._is_running and not self._parties.live_sources()):
            return CheckpointRefusal(
                "every source has reached its end: what is on its way is worked off, then the last checkpoint is made "
                "and the job ends"
            )
        stop = self._stop_under_way
        if stop is not None and stop.redeploys_job:
            return CheckpointRefusal(
                f"a source moves: the job starts anew from checkpoint {stop.checkpoint_id}; ask again when it runs"
            )
        if stop is not None:
            return CheckpointRefusal(
                f"the job is about to stop with savepoint {stop.path} (checkpoint {stop.checkpoint_id})"
            )
        if self._records.queued_plain is not None and not path and not redeploys_job:
            return self._records.queued_plain, []
        if self._records.is_queue_full:
            return CheckpointRefusal(
                f"{QUEUE_MAX} checkpoints wait already; ask again when some are complete"
            )
        record = self._records.new(path, self._now_ms, stops_job=stops_job, redeploys_job=redeploys_job)
        self._records.queue.append(record)
        return record, self._advance()

    def handle(self, event: CheckpointEvent, now_ms: int) -> list[CheckpointAction]:
        """Take one event in; returns what to do now, in order. Late and repeated reports change nothing.

        Raises:
            InvalidTransitionError: the event cannot happen now. Nothing has changed.
        """
        self._now_ms = now_ms
        actions = self.HANDLERS[type(event)](self, event)
        return [*actions, *self._advance()]

    # --- handlers: the job --------------------------------------------------------------------------------------

    def _job_runs(self, event: JobRuns) -> list[CheckpointAction]:
        if self._is_running or not self.is_settled or event.generation <= self._generation:
            raise InvalidTransitionError(
                f"checkpoints: generation {event.generation} runs, but generation {self._generation} "
                f"{'has not stopped' if self._is_running else 'is committing' if not self.is_settled else 'was before'}"
            )
        self._generation = event.generation
        self._is_running = True
        self._parties.begin(event.placement, event.sources)
        self._holders = set()
        self._uncounted_bytes = 0
        self._final_wanted, self._final_id, self._untold, self._retry_ms = False, None, set(), None
        self._deliveries_failed = 0
        self._is_over = False
        self._due_ms = self._now_ms + self._settings.interval_ms
        self._calm.forget()
        if self._stop is not None and self._stop.redeploys_job:
            self._stop = None
        # It started again from the savepoint, so its sinks have delivered.
        return [StopJob(self._stop.checkpoint_id, self._stop.path)] if self._stop is not None else []

    def _job_stops(self, event: JobStops) -> list[CheckpointAction]:
        self._is_running = False
        self._is_over = self._is_over or event.ends
        if event.ends:
            self._give_up_queue(event.cause or "the job has ended")
        if self._flight is not None and not self._flight.is_committing:
            self._end_record(self._flight.record, CheckpointState.ABORTED, event.cause)
            self._flight = None
        return []

    def _added(self, event: SubtasksAdded) -> list[CheckpointAction]:
        self._check_nothing_in_flight("added")
        self._end_calm(forgets=True)
        if self._is_running:
            self._parties.placement |= event.placement
        return []

    def _retire(self, event: SubtasksRetired) -> list[CheckpointAction]:
        self._check_nothing_in_flight("retired")
        self._end_calm(forgets=True)
        self._parties.retire(event.subtasks)
        return []

    def _hold(self, event: Hold) -> list[CheckpointAction]:
        self._holders.add(event.holder)
        flight = self._flight
        if flight is None or flight.is_committing:
            # With all parts there, a commit is nobody's business any more.
            return []
        self._end_record(flight.record, CheckpointState.ABORTED, f"{event.holder} began")
        self._flight = None
        return [self._notify(flight, committed=False)]

    def _release(self, event: Release) -> list[CheckpointAction]:
        self._holders.discard(event.holder)
        return []

    def _task_manager_lost(self, event: TaskManagerLost) -> list[CheckpointAction]:
        """What was there is missed if a part was still to come, or if sinks there had to deliver."""
        if not self._is_running:
            return []
        if self._parties.lose(event.task_manager) or event.task_manager in self._untold:
            return [FailJob(f"task manager {event.task_manager} is lost: {event.cause}")]
        return []

    def _final_requested(self, event: FinalRequested) -> list[CheckpointAction]:
        self._is_over = self._final_wanted = True
        self._retry_ms = self._now_ms
        # The last checkpoint is as good as a plain one; savepoints that wait are made of the last parts, before it.
        savepoints = [record for record in self._records.take_queue() if not self._gives_up_plain(record)]
        self._records.queue.extend(savepoints)
        self._parties.keep(event.subtasks)
        return []

    def _rows_came(self, event: RowsCame) -> list[CheckpointAction]:
        self._end_calm(forgets=False)
        return []

    def _end_calm(self, *, forgets: bool) -> None:
        """What waits for something to put into it waits no longer."""
        if self._calm.holds:
            self._due_ms = min(self._due_ms, self._due_with_news_ms)
        if forgets:
            self._calm.forget()
        else:
            self._calm.news()

    def _tick(self, event: Tick) -> list[CheckpointAction]:
        flight = self._flight
        if flight is not None and not flight.is_committing:
            waited_ms = self._now_ms - (flight.record.started_ms or 0)
            if waited_ms >= self._timeout_ms:
                missing = listed(self._name_of, sorted(flight.missing))
                self._timeouts += 1
                cause = f"no part of {missing} after {waited_ms} ms (checkpoint_timeout_ms)"
                # Whoever is lost is missed by its lease: these are busy, and a restart would only begin again.
                return self._fail(flight, cause, counts=False)
        return []

    # --- handlers: parts and commits ----------------------------------------------------------------------------

    def _delivered(self, event: PartDelivered) -> list[CheckpointAction]:
        subtask = event.part.subtask
        if not self.waits_for(event.generation, event.checkpoint_id, subtask):
            return []
        flight = self._flight
        if event.checkpoint_id == 0:
            self._end_calm(forgets=False)
            self._parties.last_parts[subtask] = event.part
            if flight is None or not self._counts(event.part, flight) or subtask not in flight.missing:
                self._uncounted_bytes += event.part.new_bytes
                return []
        if flight is not None:
            flight.missing.discard(subtask)
            flight.parts[subtask] = event.part
            flight.record.parts_ms[subtask] = self._now_ms
            flight.record.new_bytes += event.part.new_bytes
        return []

    def _declined(self, event: PartDeclined) -> list[CheckpointAction]:
        if not self.waits_for(event.generation, event.checkpoint_id, event.subtask):
            return []
        if event.checkpoint_id == 0:
            return [FailJob(f"{self._name_of(event.subtask)} could not make its last part: {event.cause}")]
        flight = self._flight
        return (
            self._fail(flight, f"{self._name_of(event.subtask)}: {event.cause}") if flight is not None else []
        )

    def _committed(self, event: Committed) -> list[CheckpointAction]:
        flight = self._committing(event.checkpoint_id)
        flight.record.size_bytes = event.size_bytes
        self._end_record(flight.record, CheckpointState.COMPLETE, "")
        self._flight = None
        self._failures = self._timeouts = 0
        if flight.record.holds and not self._final_wanted:
            self._stop = flight.record
        if not self._is_running:
            return []
        self._parties.include(event.checkpoint_id, flight.parts)
        self._calm.complete(flight.parts)
        if self._calm.holds and flight.record.started_ms is not None:
            self._due_with_news_ms = self._due_ms
            self._due_ms = max(self._due_ms, flight.record.started_ms + self._settings.calm_interval_ms)
        if flight.is_at_end:
            # Sinks deliver all that it covers with the last checkpoint, which is next.
            return []
        if flight.record.is_last:
            self._final_id = event.checkpoint_id
        if flight.record.is_last or self._stop is flight.record:
            self._retry_ms = None
            self._untold = self._parties.task_managers()
            lost = self._parties.lost & self._untold
            if lost:
                names = ", ".join(sorted(lost))
                return [FailJob(f"task manager {names} is lost; its sinks deliver after a restart")]
        return [self._notify(flight, committed=True)]

    def _commit_failed(self, event: CommitFailed) -> list[CheckpointAction]:
        flight = self._committing(event.checkpoint_id)
        self._retry_ms = self._now_ms + FINISH_RETRY_MS
        return self._fail(flight, event.cause)

    def _end_notified(self, event: EndNotified) -> list[CheckpointAction]:
        if not self._is_running:
            return []
        undelivered = {failure.subtask for failure in event.failures}
        self._parties.settle(event.checkpoint_id, event.unreached, undelivered)
        is_final = event.checkpoint_id == self._final_id
        stop = self._stop
        is_stop = stop is not None and stop.checkpoint_id == event.checkpoint_id
        if event.failures and not is_final:
            # The next deployment delivers it.
            return [FailJob(_undelivered(event.failures, self._name_of), event.failures[0].kind)]
        if not (is_final or is_stop) or not self._untold:
            return []
        self._untold &= {*event.unreached, *(failure.task_manager for failure in event.failures)}
        if event.failures:
            return self._deliver_later(event.failures)
        if self._untold:
            self._retry_ms = self._now_ms + FINISH_RETRY_MS
            return []
        if stop is not None:
            if stop.redeploys_job:
                return [RedeployJob(stop.checkpoint_id)]
            return [StopJob(stop.checkpoint_id, stop.path)]
        self._final_wanted = False
        return [FinalDone(event.checkpoint_id)]

    def _deliver_later(self, failures: Sequence[DeliveryFailure]) -> list[CheckpointAction]:
        """Sinks have not delivered what the last checkpoint covers: there is no other deployment that does it."""
        settings = self._settings
        self._deliveries_failed += 1
        if self._deliveries_failed > settings.deliveries_max:
            cause = (
                f"{_undelivered(failures, self._name_of)}; given up after {self._deliveries_failed} attempts"
            )
            return [FailJob(cause, FailureKind.PERMANENT)]
        self._retry_ms = self._now_ms + back_off_ms(
            self._deliveries_failed, settings.delivery_delay_ms, settings.delivery_delay_ms_max
        )
        return []

    #: Which method handles which event.
    HANDLERS: ClassVar[Handlers] = {
        JobRuns: _job_runs,
        JobStops: _job_stops,
        SubtasksAdded: _added,
        SubtasksRetired: _retire,
        Hold: _hold,
        Release: _release,
        TaskManagerLost: _task_manager_lost,
        FinalRequested: _final_requested,
        PartDelivered: _delivered,
        PartDeclined: _declined,
        Committed: _committed,
        CommitFailed: _commit_failed,
        EndNotified: _end_notified,
        RowsCame: _rows_came,
        Tick: _tick,
    }


def _undelivered(failures: Sequence[DeliveryFailure], name_of: NameOf) -> str:
    first = failures[0]
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{name_of(first.subtask)}{others} could not deliver what it had received: {first.cause}"
