"""Tells the control plane of parts of checkpoints: those that are made at about the same time in one message.

A call costs both sides about a millisecond of CPU, whatever is in it, and each thread that is woken some 50 µs. So one
thread waits a moment for the parts of all subtasks here that had one for the last checkpoint, makes them, and sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from task_manager.link.control_calls import MadePart
from weir import threads

#: So long a part waits for others, at most.
_WAIT_S = 0.03
#: Parts of so many bytes are not gathered any further: a message has a bound.
_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    checkpoint_id: int
    make: Callable[[], MadePart]
    #: It lets others wait no longer: the checkpoint fails.
    is_urgent: bool


class Acknowledgements:
    """The acknowledgements of a deployed job; several threads call it."""

    def __init__(
        self,
        send: Callable[[Sequence[MadePart]], None],
        submit: Callable[[Callable[[], None]], None],
        wait_s: float = _WAIT_S,
    ) -> None:
        """Nothing is told yet.

        Args:
            send: tells of parts of one checkpoint, and raises nothing.
            submit: runs what waits, makes parts and sends, in another thread.
            wait_s: for others, at most.
        """
        self._send = send
        self._submit = submit
        self._wait_s = wait_s
        self._condition = threads.condition()
        self._waiting: list[_Entry] = []
        #: The checkpoint of the last part, how many parts it has, and how many the one before it had.
        self._number, self._made, self._expected = 0, 0, 1

    def add(self, part: MadePart) -> None:
        """Tell of a part together with others; of a last one in this thread, which returns when it is taken."""
        if part.checkpoint_id == 0:
            # It is sent until it is taken, which may be never.
            self._send([part])
        else:
            self.gather(part.checkpoint_id, lambda: part, is_urgent=bool(part.failure))

    def gather(self, checkpoint_id: int, make: Callable[[], MadePart], *, is_urgent: bool = False) -> None:
        """Add a part that is still to be made: one thread makes all of them. Returns at once.

        ``make`` raises nothing.
        """
        with self._condition:
            if checkpoint_id != self._number:
                self._number, self._made, self._expected = checkpoint_id, 0, max(self._made, 1)
            self._made += 1
            self._waiting.append(_Entry(checkpoint_id, make, is_urgent))
            if len(self._waiting) > 1:
                if self._is_due():
                    self._condition.notify_all()
                return
        self._submit(self._send_waiting)

    def _send_waiting(self) -> None:
        with self._condition:
            self._condition.wait_for(self._is_due, self._wait_s)
            taken, self._waiting = self._waiting, []
        made = [entry.make() for entry in taken]
        for number in sorted({part.checkpoint_id for part in made}):
            for parts in _in_messages([part for part in made if part.checkpoint_id == number]):
                self._send(parts)

    def _is_due(self) -> bool:
        """Return whether all are here, or one that lets others wait no longer, or another checkpoint has begun."""
        last = self._waiting[-1]
        return (
            last.is_urgent
            or self._made >= self._expected
            or last.checkpoint_id != self._waiting[0].checkpoint_id
        )


def _in_messages(parts: Sequence[MadePart]) -> list[list[MadePart]]:
    messages: list[list[MadePart]] = []
    size_bytes = _BYTES_MAX
    for part in parts:
        if size_bytes >= _BYTES_MAX:
            messages.append([])
            size_bytes = 0
        messages[-1].append(part)
        size_bytes += len(part.part_json)
    return messages
