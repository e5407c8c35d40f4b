"""How barriers of checkpoints pass a subtask with inputs: aligned, or before rows where they have waited for long."""

from __future__ import annotations

from collections.abc import Callable

from task_manager.checkpoints.checkpoint_inputs import CheckpointInputs
from task_manager.checkpoints.checkpoint_parts import Checkpoints, TakenPart
from task_manager.exchange.inbox import Inbox
from weir.clock import Clock
from weir.protocol.checkpoints.alignment import Step
from weir.rows.records import Barrier, InputRows


class BarrierPassing:
    """Used by the subtask's thread.

    Args:
        barriers: the inputs, with what is put aside.
        inbox: of the subtask.
        clock: for what is late.
        checkpoints: takes parts.
        alignment_timeout_ms: how long a barrier waits before it overtakes rows.
        snapshot: passes a barrier on and notes the state; None: that failed, and with it the checkpoint.
        rest: returns rows that were taken in and are not processed yet; None: there are none.
    """

    def __init__(
        self,
        barriers: CheckpointInputs,
        inbox: Inbox,
        clock: Clock,
        checkpoints: Checkpoints,
        alignment_timeout_ms: float,
        snapshot: Callable[[int], TakenPart | None],
        rest: Callable[[], InputRows | None],
    ) -> None:
        self._barriers = barriers
        self._inbox = inbox
        self._clock = clock
        self._checkpoints = checkpoints
        self._timeout_ms = alignment_timeout_ms
        self._snapshot = snapshot
        self._rest = rest
        #: A checkpoint whose barrier may not come, because those before this subtask have ended; 0: none.
        self.wanted_id = 0

    def let_pass(self) -> None:
        """Begin what checkpoint is wanted, and let barriers that have waited for long overtake what is before them."""
        if self.wanted_id:
            self._begin_wanted()
        waiting = self._inbox.barriers_s
        due_s = waiting[0] + self._timeout_ms / 1e3 if waiting else float("inf")
        if self._clock.monotonic_s() >= min(due_s, self._barriers.overdue_s):
            self._overtake()

    def after(self, step: Step, checkpoint_id: int) -> None:
        """Do what a barrier, or the end of an input, leads to."""
        match step:
            case Step.BEGIN:
                self._barriers.begin(self._timeout_ms)
            case Step.SNAPSHOT:
                part = self._snapshot(checkpoint_id)
                if part is not None:
                    self._checkpoints.deliver(part)
                self._barriers.go_on()
            case Step.RECORDED:
                self._barriers.deliver_recorded(self._checkpoints)
            case Step.GO_ON:
                pass

    def _begin_wanted(self) -> None:
        barriers, aligner = self._barriers, self._barriers.aligner
        checkpoint_id = self.wanted_id
        if checkpoint_id <= max(aligner.checkpoint_id, aligner.ended_id):
            # Its barrier came, or it is over.
            self.wanted_id = 0
            return
        if not aligner.all_among(self._inbox.ended) or not barriers.pull(self._inbox):
            return
        self.wanted_id = 0
        aligner.begin(checkpoint_id)
        part = self._snapshot(checkpoint_id)
        barriers.overtake(part, self._rest())
        if part is not None:
            step = barriers.overtake_waiting(self._checkpoints)
            # Their ends may have been noted by an earlier one.
            self.after(aligner.look() if step is Step.GO_ON else step, checkpoint_id)

    def _overtake(self) -> None:
        """Barriers have waited too long for others, or behind rows: they overtake the rows before them."""
        barriers, aligner = self._barriers, self._barriers.aligner
        may_pass = barriers.pull(self._inbox)
        newest = barriers.newest_barrier() if may_pass else None
        if newest is not None and isinstance(newest.element, Barrier):
            aligner.begin(newest.element.checkpoint_id)
        checkpoint_id = aligner.checkpoint_id
        if not checkpoint_id:
            return
        if not aligner.is_recording:
            part = self._snapshot(checkpoint_id)
            barriers.overtake(part, self._rest())
            if part is None:
                return
        if may_pass:
            self.after(barriers.overtake_waiting(self._checkpoints), checkpoint_id)
