"""Batches of one producer on their way: numbered in order, sent again in order, answered once. Pure.

A batch gets its sequence just before it is sent first. What has no answer when a stream breaks is sent again,
oldest first, under the same producer, epoch and sequence, so that the leader knows what it has already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weir.errors import InvalidTransitionError

Item = TypeVar("Item")


@dataclass
class Sent(Generic[Item]):
    """Batch that has a sequence and no answer yet."""

    sequence: int
    item: Item
    size_bytes: int
    deadline_ms: int
    attempts: int = 0


@dataclass
class Outbox(Generic[Item]):
    """What one producer has under way."""

    in_flight_max: int
    in_flight_bytes_max: int
    epoch: int
    next_sequence: int = 0
    #: Numbered and not answered, by sequence.
    unanswered: deque[Sent[Item]] = field(default_factory=deque)
    #: How many of these were sent on the stream that is open.
    _sent_count: int = 0
    _bytes: int = 0

    def has_room(self) -> bool:
        """Return whether another batch may be numbered: everything before it was sent, on this stream."""
        return (
            self._sent_count == len(self.unanswered)
            and len(self.unanswered) < self.in_flight_max
            and (not self.unanswered or self._bytes < self.in_flight_bytes_max)
        )

    def add(self, item: Item, size_bytes: int, deadline_ms: int) -> Sent[Item]:
        """Number a new batch; :meth:`to_send` gives it out when it is its turn."""
        sent = Sent(self.next_sequence, item, size_bytes, deadline_ms)
        self.next_sequence += 1
        self.unanswered.append(sent)
        self._bytes += size_bytes
        return sent

    def to_send(self) -> Sent[Item] | None:
        """Return the oldest batch that was not sent on this stream yet; the caller sends it now. None: all were."""
        if self._sent_count >= len(self.unanswered):
            return None
        sent = self.unanswered[self._sent_count]
        self._sent_count += 1
        sent.attempts += 1
        return sent

    def disconnected(self) -> None:
        """Note that the stream has ended: whatever has no answer is sent again on the next one."""
        self._sent_count = 0

    def answered(self, sequence: int) -> Sent[Item] | None:
        """Take the answer to a batch; None: it is an old one.

        Raises:
            InvalidTransitionError: answers do not come in order.
        """
        if not self.unanswered or sequence < self.unanswered[0].sequence:
            return None
        if sequence != self.unanswered[0].sequence:
            raise InvalidTransitionError(
                f"the answer to batch {sequence} came before that to {self.unanswered[0].sequence}"
            )
        self._sent_count = max(self._sent_count - 1, 0)
        sent = self.unanswered.popleft()
        self._bytes -= sent.size_bytes
        return sent

    def expired(self, now_ms: int) -> list[Sent[Item]]:
        """Give up what was under way once the oldest batch has had its time; empty: it has not.

        All of it, since a batch behind one that may be absent could not be sent again in order. The next stream
        takes the producer's id over (epoch 0 in its opening), so that nothing of these comes later.
        """
        if not self.unanswered or now_ms < self.unanswered[0].deadline_ms:
            return []
        return self.give_up()

    def give_up(self) -> list[Sent[Item]]:
        """Forget all that is under way; returns it."""
        lost = list(self.unanswered)
        self.unanswered.clear()
        self._sent_count = self._bytes = 0
        return lost

    def begin_epoch(self, epoch: int) -> None:
        """Begin anew under an epoch that the leader has given; nothing is under way."""
        if self.unanswered:
            raise InvalidTransitionError("a producer takes its id over while batches are under way")
        self.epoch = epoch
        self.next_sequence = 0
