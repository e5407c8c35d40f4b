"""Reports the restore of each subtask: that its state comes from a checkpoint, how far it is, and its end."""

from __future__ import annotations

import logging

from task_manager.progress import SubtaskProgress
from weir.clock import Clock
from weir.subtask_names import NameOf
from weir.types import SubtaskId

log = logging.getLogger(__name__)


class RestoreListener:
    """The listener for the restores of a deployed job.

    It notes in each subtask's progress what the heartbeat, and with it ``/restores`` and the metrics, then tell. A
    restored subtask works from its start on; its restore ends when none of its state is in images of the checkpoint
    alone.
    """

    def __init__(self, clock: Clock, began_us: int, name_of: NameOf) -> None:
        """``began_us``: wall clock, epoch µs, before the store of the job was opened: fetching tables counts."""
        self._name_of = name_of
        self._clock = clock
        self._began_us = began_us
        self._began_s = clock.monotonic_s()
        #: Those whose restore has not ended.
        self._open: dict[SubtaskId, SubtaskProgress] = {}

    def began(self, subtask: SubtaskId, progress: SubtaskProgress, groups: int, left: int) -> None:
        """A subtask was made; called by a deployment, before the subtask starts.

        Args:
            subtask: which.
            progress: of it.
            groups: its key groups that have state in the checkpoint; 0: it is not restored.
            left: as for :meth:`progressed`.
        """
        if not groups:
            return
        progress.restore_groups = groups
        progress.restore_started_us = self._began_us
        log.info(
            "restoring %s: %d key groups, %d of them in the background", self._name_of(subtask), groups, left
        )
        self._open[subtask] = progress
        self.progressed(subtask, left)

    def progressed(self, subtask: SubtaskId, left: int) -> None:
        """Called with every report; ``left``: key groups whose state still comes from the checkpoint."""
        progress = self._open.get(subtask)
        if progress is None:
            return
        progress.restore_s = max(self._clock.monotonic_s() - self._began_s, 0.0)
        progress.restoring_groups = left
        if left == 0 and self._open.pop(subtask, None) is not None:
            log.info(
                "restored %s: %d key groups in %.3f s",
                self._name_of(subtask),
                progress.restore_groups,
                progress.restore_s,
            )

    def gave_up(self, subtask: SubtaskId) -> None:
        """A subtask is gone; called for each one at the latest when the job is closed."""
        progress = self._open.pop(subtask, None)
        if progress is not None:
            log.info(
                "the restore of %s ended with it: %d of %d key groups were left",
                self._name_of(subtask),
                progress.restoring_groups,
                progress.restore_groups,
            )
