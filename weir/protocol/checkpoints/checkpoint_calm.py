"""Whether a job has nothing new to put into a checkpoint: then the next one may wait. Pure.

A checkpoint costs the same whatever is in it: messages, files, a manifest. So a job to which nothing comes makes fewer,
and as many as ever from the moment when something comes: what it delivers then does not wait longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.protocol.checkpoints.manifest import Json, SubtaskPart
from weir.protocol.job.event_counts import EventCounts
from weir.types import SubtaskId

#: What a part says about what has happened.
_Said = tuple[EventCounts, Mapping[str, Json]]


class Calm:
    """What the last complete checkpoint had in it, and whether anything has come since it began."""

    def __init__(self) -> None:
        #: By subtask; None: there is no complete checkpoint to compare with.
        self._covered: dict[SubtaskId, _Said] | None = None
        self._has_news = True
        #: The last two checkpoints have the same in them, and nothing has come since the last one began.
        self.holds = False

    @property
    def minds_news(self) -> bool:
        """Return whether :meth:`news` would change anything."""
        return not self._has_news

    def begin(self) -> None:
        """A checkpoint begins: what comes from now on may not be in it."""
        self._has_news = False

    def news(self) -> None:
        """Something has come that the last checkpoint may not have."""
        self._has_news, self.holds = True, False

    def forget(self) -> None:
        """The subtasks are others, or a checkpoint was not made."""
        self._covered = None
        self.news()

    def complete(self, parts: Mapping[SubtaskId, SubtaskPart]) -> None:
        """The checkpoint that began last is complete, with these parts."""
        before = self._covered
        self._covered = {subtask: (part.counts, part.operators) for subtask, part in parts.items()}
        has_rows = any(part.rows for part in parts.values())
        self.holds = not self._has_news and not has_rows and self._covered == before
