"""How many events a job has read and delivered, exactly, over restarts. Pure.

What a subtask has counted at its barrier is in its part. A checkpoint has the sum of those and of what the checkpoint
covered from which its deployment began: a deployment that is taken back takes its counts back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from weir.types import SubtaskId


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Records that sources have read, and those that sinks have received."""

    events_in: int = 0
    events_out: int = 0

    def __add__(self, other: EventCounts) -> EventCounts:
        return EventCounts(self.events_in + other.events_in, self.events_out + other.events_out)


NO_EVENTS = EventCounts()


class CountedPart(Protocol):
    """A subtask's part of a checkpoint, or another word of what it has counted in its deployment."""

    @property
    def subtask(self) -> SubtaskId:
        """Whose it is."""

    @property
    def counts(self) -> EventCounts:
        """Records into and out of the subtask."""


def covered(
    before: EventCounts,
    parts: Iterable[CountedPart],
    settled: Mapping[int, EventCounts],
    sources: frozenset[int],
    sinks: frozenset[int],
) -> EventCounts:
    """What a checkpoint covers.

    Args:
        before: what the one covers from which the deployment began.
        parts: of the checkpoint.
        settled: by stage index: of subtasks that a rescale ended and that belong to no checkpoint any more.
        sources: stage indices of sources.
        sinks: stage indices of sinks.
    """
    total = before
    for stage, counts in (*((part.subtask.stage_index, part.counts) for part in parts), *settled.items()):
        total += EventCounts(
            counts.events_in if stage in sources else 0, counts.events_out if stage in sinks else 0
        )
    return total
