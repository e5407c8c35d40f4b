"""Production parts with a rule broken on purpose, which the simulation must find; installed for the length of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from experiments.simulation.ledger import Ledger
from task_manager.exchange import output_edge
from task_manager.exchange.channels import Channel
from task_manager.exchange.output import Output
from task_manager.exchange.writer import ChannelWriter
from task_manager.ownership.group_ownership import Ownership
from task_manager.rescale import rescale_opening
from task_manager.rescale.switching import Switching
from task_manager.subtasks import subtask_factory, task_subtask
from task_manager.topology import Topology
from weir.operators.subtask_times import TaskTimes
from weir.plan.graph import Edge
from weir.protocol.checkpoints import checkpoint_model as checkpoints
from weir.protocol.checkpoints.checkpoint import CheckpointMachine
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.protocol.rescale.rescale_owner import OwnerAction, OwnerEvent, OwnerMachine, OwnerPhase
from weir.rows.records import InputRows
from weir.types import SubtaskId

#: What can be broken on purpose, and what that is.
FENCES = {
    "acknowledgement": "the control plane takes parts of earlier generations and of ended leases",
    "channel": "task managers take rows of other generations",
    "commit": "the record can be written, and checkpoints confirmed, by a control plane that leads no more",
    "create": "manifests are overwritten, and numbers of an earlier control plane used again",
    "names": "names of pending files do not tell the generation",
    "last part": "a last part counts for a checkpoint whose barrier was passed before",
    "settled": "a job starts again while a manifest is being written",
    "told": "the job counts as finished although not all sinks know the last checkpoint",
    "retired": "a subtask that a rescale retired is left out of the next checkpoint",
    "first marker": "an owner hands key groups over when one of its inputs has switched",
    "finishes early": "an owner ends with its inputs, whatever is on its way to it",
    "uncertain": "an owner hands key groups over although the rescale may still be taken back",
    "parking": "an owner processes rows of key groups that it does not have yet",
    "watermark": "an owner's watermark passes rows that wait for their key group",
    "leaving": "an owner's watermark goes on while rows of key groups that it is to hand over wait at the new owner",
    "held rows": "rows that waited when their sender switched leave after its marker",
    "ended": "nobody tells a new subtask that one before it has ended",
    "lost": "consumers are not told that a new subtask was lost before it sent a row",
    "lost last": "consumers are not told that a new subtask was lost, if that ended the rescale",
}


class _FirstMarkerIsEnough(OwnerMachine):
    """Hands over when one input has switched."""

    def _is_aligned(self, version: int) -> bool:
        return not self._markers or any(seen >= version for seen in self._markers.values())


class _FinishesEarly(OwnerMachine):
    """Ends with its inputs, whatever is on its way."""

    @property
    def may_finish(self) -> bool:
        """Whether all inputs have ended."""
        return not self._markers


class _HandsOverUncertain(OwnerMachine):
    """Hands over when all inputs have ended, although the plan may still be taken back."""

    def handle(self, event: OwnerEvent) -> list[OwnerAction]:
        """Take an event in."""
        actions = super().handle(event)
        if self._plan is not None and not self._markers:
            self._certain_version = self._plan.version
            actions += [*self._give_away(), *self._close()]
        return actions


class _GoesOnWhileLeaving(OwnerMachine):
    """Holds the watermark only until it knows what moves."""

    @property
    def holds_watermark(self) -> bool:
        """Whether a rescale has begun of which it was not told."""
        return self.phase is OwnerPhase.UNPLANNED


class _ParksNothing(Ownership):
    """Processes rows of groups that it does not own."""

    def admit(self, rows: InputRows, shown_ms: int) -> pa.RecordBatch | None:
        """All rows."""
        return rows.batch


class _HoldsNothing(TaskTimes[Output]):
    """Lets the watermark pass parked rows."""

    def show(self) -> bool:
        """Tell of the combined watermark."""
        self.is_parked = lambda: False
        return super().show()


class _KeepsHeldRows(ChannelWriter):
    """Sends rows that waited at a switch after the marker."""

    def send_now(self) -> bool:
        """Nothing."""
        return False


class _ForgetsEnded(Switching):
    """Opens no channels to new subtasks for one that has ended."""

    def _open_channels(self, subtask: SubtaskId, edge: Edge, topology: Topology) -> Mapping[int, Channel]:
        return {} if self._running[subtask].is_over else super()._open_channels(subtask, edge, topology)


class CountsEveryLastPart(CheckpointMachine):
    """Broken: a last part counts although its subtask passed the barrier before."""

    @staticmethod
    def _counts(last_part: SubtaskPart, flight: object) -> bool:
        return True


class ForgetsRetired(CheckpointMachine):
    """Broken: a retired subtask is no part of the next checkpoint."""

    def handle(self, event: checkpoints.CheckpointEvent, now_ms: int) -> list[checkpoints.CheckpointAction]:
        """Take one event in."""
        if not isinstance(event, checkpoints.SubtasksRetired):
            return super().handle(event, now_ms)
        for subtask in event.subtasks:
            self._parties.placement.pop(subtask, None)
            self._parties.last_parts.pop(subtask, None)
        return []


class NeverWaits(CheckpointMachine):
    """Broken: a job starts again while a manifest is being written."""

    @property
    def is_settled(self) -> bool:
        """Whether a job may start again."""
        return True


#: By the name of what is broken: the machine that takes the place of the checkpoints' own.
BROKEN_MACHINES: dict[str, type[CheckpointMachine]] = {
    "last part": CountsEveryLastPart,
    "retired": ForgetsRetired,
    "settled": NeverWaits,
}

#: By the name of what is broken: where the production part is named, and what takes its place.
_PARTS: dict[str, tuple[Any, str, type]] = {
    "first marker": (subtask_factory, "OwnerMachine", _FirstMarkerIsEnough),
    "finishes early": (subtask_factory, "OwnerMachine", _FinishesEarly),
    "uncertain": (subtask_factory, "OwnerMachine", _HandsOverUncertain),
    "parking": (task_subtask, "Ownership", _ParksNothing),
    "watermark": (task_subtask, "TaskTimes", _HoldsNothing),
    "leaving": (subtask_factory, "OwnerMachine", _GoesOnWhileLeaving),
    "held rows": (output_edge, "ChannelWriter", _KeepsHeldRows),
    "ended": (rescale_opening, "Switching", _ForgetsEnded),
}


@contextlib.contextmanager
def parts_of_run(broken: str, ledger: Ledger) -> Iterator[None]:
    """Let a run have the part that breaks this rule, if it is one of these; the ledger watches over all owners."""
    module, attribute, part = _PARTS.get(broken, (subtask_factory, "OwnerMachine", OwnerMachine))
    changes = {(module, attribute): part}
    machine = changes.get((subtask_factory, "OwnerMachine"), OwnerMachine)
    changes[subtask_factory, "OwnerMachine"] = ledger.watched(machine)
    before = {place: getattr(*place) for place in changes}
    for (where, name), changed in changes.items():
        setattr(where, name, changed)
    try:
        yield
    finally:
        for (where, name), kept in before.items():
            setattr(where, name, kept)
