"""When a subtask with several inputs takes its snapshot: barriers are waited for, and may overtake rows. Pure.

Aligned (the rule): an input whose barrier has come is put aside until the barriers of all open inputs are there. Timed:
after a while :meth:`BarrierAligner.overtake` takes the snapshot at once; rows that come before the barriers that
are still missing are *recorded*: they are processed as ever and belong to the checkpoint too. See docs/design/0002.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from enum import Enum


class Step(Enum):
    """The next thing that the subtask does."""

    #: Nothing, or nothing yet.
    GO_ON = "go on"
    #: The first barrier of a checkpoint: the time-out starts.
    BEGIN = "begin"
    #: Take the snapshot; nothing needs to be recorded.
    SNAPSHOT = "snapshot"
    #: What was recorded is complete; the snapshot was taken when the barriers were overtaken.
    RECORDED = "recorded"


class BarrierAligner:
    """State of one subtask's inputs, named by anything hashable; called by the subtask's loop."""

    def __init__(self, inputs: Iterable[Hashable], ended_id: int = 0) -> None:
        """``ended_id``: checkpoints up to this number are over; late barriers of them mean nothing."""
        self._open = set(inputs)
        self._arrived: set[Hashable] = set()
        self._ended_id = ended_id
        #: The checkpoint that is under way; 0: none.
        self.checkpoint_id = 0
        self.is_recording = False

    @property
    def ended_id(self) -> int:
        """Checkpoints up to this number are over, or were passed."""
        return self._ended_id

    def blocks(self, name: Hashable) -> bool:
        """Return whether elements of this input are to be put aside for now."""
        return self.checkpoint_id != 0 and not self.is_recording and name in self._arrived

    def records(self, name: Hashable) -> bool:
        """Return whether rows of this input belong to the checkpoint under way."""
        return self.is_recording and name not in self._arrived

    def add(self, name: Hashable) -> None:
        """A new input."""
        self._open.add(name)

    def barrier(self, name: Hashable, checkpoint_id: int) -> Step:
        """A barrier came; a newer one than the one under way ends that (its coordinator has given it up)."""
        if checkpoint_id <= self._ended_id or checkpoint_id < self.checkpoint_id:
            return Step.GO_ON
        begins = checkpoint_id > self.checkpoint_id
        if begins:
            self._reset()
            self.checkpoint_id = checkpoint_id
        self._arrived.add(name)
        step = self.look()
        return Step.BEGIN if begins and step is Step.GO_ON else step

    def begin(self, checkpoint_id: int) -> None:
        """A barrier of this checkpoint lies behind rows that it is to overtake; no input has arrived at it yet."""
        if checkpoint_id > max(self.checkpoint_id, self._ended_id):
            self._reset()
            self.checkpoint_id = checkpoint_id

    def end(self, name: Hashable) -> Step:
        """An input has ended: no barrier comes from it, and none is needed."""
        self._open.discard(name)
        self._arrived.discard(name)
        return self.look()

    def is_open(self, name: Hashable) -> bool:
        """Return whether the end of this input has not been noted."""
        return name in self._open

    def all_among(self, ended: Collection[Hashable]) -> bool:
        """Return whether every open input is one of these."""
        return self._open.issubset(ended)

    def overtake(self) -> None:
        """The time-out is over and the snapshot is being taken: record what comes before the missing barriers."""
        self.is_recording = True

    def give_up(self, checkpoint_id: int) -> None:
        """The coordinator has given up this checkpoint and all before it, or it is complete."""
        self._ended_id = max(self._ended_id, checkpoint_id)
        if self.checkpoint_id <= self._ended_id:
            self._reset()

    def look(self) -> Step:
        """What follows from the inputs that are open."""
        if self.checkpoint_id == 0 or not self._open <= self._arrived:
            return Step.GO_ON
        step = Step.RECORDED if self.is_recording else Step.SNAPSHOT
        self._ended_id = self.checkpoint_id
        self._reset()
        return step

    def _reset(self) -> None:
        self.checkpoint_id = 0
        self.is_recording = False
        self._arrived.clear()
