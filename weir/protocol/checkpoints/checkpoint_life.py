"""What is known of a job's checkpoints: who takes part, which one is in flight, what waits; and what must hold. Pure.

``checkpoint.CheckpointMachine`` decides what an event leads to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.errors import InvalidTransitionError
from weir.protocol.checkpoints.checkpoint_calm import Calm
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointSettings, CheckpointState
from weir.protocol.checkpoints.checkpoint_parties import CheckpointParties
from weir.protocol.checkpoints.checkpoint_records import CheckpointRecords
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.protocol.job.event_counts import EventCounts
from weir.subtask_names import NameOf, numbered
from weir.types import SubtaskId

#: So often, at most, the time for a checkpoint is doubled after others that took too long.
_TIMEOUT_DOUBLED_MAX = 6


@dataclass
class Flight:
    """The checkpoint that is being made."""

    record: CheckpointRecord
    generation: int
    #: Subtasks whose part is not there.
    missing: set[SubtaskId]
    #: A savepoint that is made of last parts only, before the last checkpoint.
    is_at_end: bool = False
    #: See :attr:`Commit.settled`; as it was at the beginning, because it excludes ``parts``.
    settled: Mapping[int, EventCounts] = field(default_factory=dict)
    parts: dict[SubtaskId, SubtaskPart] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        """Return the checkpoint's number."""
        return self.record.checkpoint_id

    @property
    def is_committing(self) -> bool:
        """Return whether its manifest is being written."""
        return self.record.state is CheckpointState.COMMITTING


class CheckpointLife:
    """The checkpoints of a job; see :class:`~weir.protocol.checkpoints.checkpoint.CheckpointMachine`."""

    def __init__(self, settings: CheckpointSettings, next_id: int, name_of: NameOf = numbered) -> None:
        """``next_id``: higher than that of every checkpoint which may ever have begun in this store."""
        self._settings = settings
        self._name_of = name_of
        self._now_ms = 0
        self._generation = 0
        self._is_running = False
        #: The job has ended, or all its subtasks have: nothing more begins on request.
        self._is_over = False
        self._parties = CheckpointParties()
        self._holders: set[str] = set()
        self._flight: Flight | None = None
        self._records = CheckpointRecords(next_id)
        self._failures = 0
        #: Checkpoints in a row that were given up because they took too long.
        self._timeouts = 0
        #: A savepoint that could not be made although the job finishes, and the cause; one line, "" if there is none.
        self.missed_savepoint = ""
        #: Bytes of last parts that no checkpoint has counted yet.
        self._uncounted_bytes = 0
        self._due_ms = 0
        self._calm = Calm()
        #: When the next one would be due if something had come.
        self._due_with_news_ms = 0
        self._final_wanted = False
        self._final_id: int | None = None
        #: Who has not confirmed the last checkpoint.
        self._untold: set[str] = set()
        self._retry_ms: int | None = None
        self._deliveries_failed = 0
        #: A complete checkpoint with which the deployment ends: no other one begins any more in it.
        self._stop: CheckpointRecord | None = None

    # --- for the caller ---------------------------------------------------------------------------------------

    @property
    def records(self) -> list[CheckpointRecord]:
        """The latest checkpoints, newest first."""
        return self._records.newest_first()

    @property
    def next_id(self) -> int:
        """What the next checkpoint gets."""
        return self._records.next_id

    @property
    def in_flight(self) -> int | None:
        """Id of the checkpoint that is being made."""
        return self._flight.checkpoint_id if self._flight else None

    @property
    def is_settled(self) -> bool:
        """Return whether no manifest is being written: only then may the job start again, from the latest one."""
        return self._flight is None or not self._flight.is_committing

    @property
    def next_due_ms(self) -> int | None:
        """When :class:`Tick` can next lead to something; None if only another event can."""
        if not self._is_running:
            return None
        if self._flight is not None:
            if self._flight.is_committing:
                return None
            return (self._flight.record.started_ms or 0) + self._timeout_ms
        if self._final_wanted or self._stop is not None:
            return self._retry_ms
        return self._due_ms if self._settings.interval_ms and self._may_trigger() else None

    def waits_for_text(self, now_ms: int, since_ms: int = 0) -> str:
        """What the checkpoint that is being made waits for, in one line; empty: none is, or it has all parts.

        Also empty as long as it has waited less than ``since_ms``.
        """
        flight = self._flight
        if flight is None or not flight.missing or now_ms - (flight.record.started_ms or 0) < since_ms:
            return ""
        # Barriers come to it from those before it, and go on to those after it.
        subtask = min(flight.missing)
        waited_s = (now_ms - (flight.record.started_ms or 0)) / 1e3
        where = f"stage {subtask.stage_index}, {self._name_of(subtask)}"
        rest = len(flight.missing) - 1
        others = f" (and {rest} more after it)" if rest else ""
        return (
            f"checkpoint {flight.checkpoint_id} waits for {where}: {waited_s:.0f} s in the rows before the barrier"
            f"{others}"
        )

    @property
    def _timeout_ms(self) -> int:
        """Twice as long after each one that was given up: several slow steps have to be passed one after the other."""
        return self._settings.timeout_ms << min(self._timeouts, _TIMEOUT_DOUBLED_MAX)

    @property
    def minds_news(self) -> bool:
        """Return whether :class:`RowsCame` would change anything."""
        return self._calm.minds_news

    def take_ended(self) -> list[CheckpointRecord]:
        """Return the checkpoints that have ended since the last call, for the log."""
        return self._records.take_ended()

    def place(self, subtask: SubtaskId) -> str | None:
        """The task manager of a subtask; also of a retired one as long as it may have something to deliver."""
        return self._parties.placement.get(subtask)

    @property
    def is_anything_unsettled(self) -> bool:
        """Return whether there is a retired subtask whose sinks have not been told to deliver what they wrote last."""
        return self._parties.is_anything_unsettled

    def unsettled_at(self, task_manager: str) -> list[SubtaskId]:
        """Retired subtasks there whose sinks have not been told to deliver what they wrote last."""
        return self._parties.unsettled_at(task_manager)

    def awaits_generation(self, generation: int) -> bool:
        """Return whether a deployment is known elsewhere that does not run here yet: its parts would be taken later."""
        return generation > self._generation

    def waits_for(self, generation: int, checkpoint_id: int, subtask: SubtaskId) -> bool:
        """Return whether a part would be taken: the answer to who delivers it."""
        if generation != self._generation or not self._is_running or subtask not in self._parties.placement:
            return False
        if checkpoint_id == 0:
            return subtask not in self._parties.last_parts
        flight = self._flight
        return (
            flight is not None
            and not flight.is_committing
            and flight.checkpoint_id == checkpoint_id
            and subtask in flight.missing
        )

    def check_invariants(self) -> None:
        """Check what must hold between events.

        Raises:
            InvalidTransitionError: it does not; a bug in this module.
        """
        flight = self._flight
        rules = {
            "only a running job makes checkpoints": self._is_running
            or flight is None
            or flight.is_committing,
            "a part is there or missing": flight is None or not flight.missing & flight.parts.keys(),
            "a commit has all parts": flight is None or not flight.is_committing or not flight.missing,
            **self._parties.rules(),
            **self._records.rules(),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise InvalidTransitionError(f"checkpoints: broken: {'; '.join(broken)}")

    @property
    def _stop_under_way(self) -> CheckpointRecord | None:
        """The one with which this deployment is about to end."""
        flight = self._flight
        if flight is not None and flight.record.holds:
            return flight.record
        return self._stop or self._records.queued_stop

    def _may_trigger(self) -> bool:
        is_ending = self._final_wanted or self._is_over or self._stop is not None
        parties = self._parties
        has_work = parties.live_sources() or parties.after_ended_sources()
        return not (is_ending or self._holders) and bool(has_work)

    def _committing(self, checkpoint_id: int) -> Flight:
        flight = self._flight
        if flight is None or not flight.is_committing or flight.checkpoint_id != checkpoint_id:
            raise InvalidTransitionError(f"checkpoints: {checkpoint_id} is not being committed")
        return flight

    def _check_nothing_in_flight(self, what: str) -> None:
        if self._flight is not None and not self._flight.is_committing:
            raise InvalidTransitionError(
                f"checkpoints: subtasks are {what} while checkpoint {self._flight.checkpoint_id} is in flight"
            )
