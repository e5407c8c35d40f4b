"""Tells of what a job rejects, and lets the job fail when it is too much."""

from __future__ import annotations

import logging
from collections.abc import Callable

from control_plane.ports import TellJob
from control_plane.web.views import RejectedView
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind
from weir.process.entry_point import REPEATED_LOGGER
from weir.protocol.job import job_machine as machine
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.rejects import FirstReject, RejectLedger, Rejects
from weir.rpc import control_pb2
from weir.types import SubtaskId

#: The task manager that rejects says so, too.
repeated = logging.getLogger(REPEATED_LOGGER)

_JUDGED_STATES = (JobState.DEPLOYING, JobState.RUNNING, JobState.FINISHING)


class JobRejects:
    """The rejects of a job; all methods are called in the event loop."""

    def __init__(self, config: ControlPlaneConfig, state: Callable[[], JobState], tell_job: TellJob) -> None:
        """``state``: returns where the job is."""
        self._state = state
        self._tell_job = tell_job
        self._ledger = RejectLedger(
            config.dead_letter_share_max, config.dead_letter_grace, strict=config.strict
        )
        #: Step -> the number at which it is told of next.
        self._told_at: dict[str, int] = {}

    @property
    def totals(self) -> list[Rejects]:
        """Return the rejects of each step that had some."""
        return self._ledger.totals

    def reported(self, subtask: SubtaskId, report: control_pb2.SubtaskReport) -> None:
        """Take a report in; the job may fail of it."""
        self._ledger.take(subtask, map(_from_proto, report.rejected))
        for item in self._ledger.totals:
            if item.rejected >= self._told_at.get(item.step, 1):
                self._told_at[item.step] = 10 ** len(str(item.rejected))
                repeated.warning("%s", item.told)
        self.judge()

    def judge(self, *, at_end: bool = False) -> bool:
        """Let the job fail if it must; False if it may go on. ``at_end``: all subtasks have finished."""
        verdict = self._ledger.verdict(at_end=at_end)
        if verdict and self._state() in _JUDGED_STATES:
            self._tell_job(machine.FailRequested(verdict, FailureKind.PERMANENT))
        return bool(verdict)

    def retired(self, subtask: SubtaskId) -> None:
        """A rescale has ended a subtask."""
        self._ledger.retired(subtask)

    def begin_generation(self, *, keeps: bool) -> None:
        """The job is deployed anew; ``keeps``: from a checkpoint of the deployment that has ended."""
        self._ledger.begin_generation(keeps=keeps)

    def views(self) -> list[RejectedView]:
        """Return the rejects for ``/status``."""
        return [
            RejectedView(
                step=item.step,
                kind="source" if item.is_source else "step",
                rejected=item.rejected,
                rows_in=None if item.is_source else item.rows_in,
                first_reason="" if item.first is None else item.first.reason,
                first_source="" if item.first is None else item.first.source,
                first_position=item.first.position if item.first and item.first.position >= 0 else None,
                dead_letters="" if item.first is None else item.first.dead_letters,
            )
            for item in self._ledger.totals
        ]

    def summary(self) -> str:
        """Return a text for the last line of a job; empty if nothing was rejected."""
        return "; ".join(item.told for item in self._ledger.totals)


def _from_proto(message: control_pb2.RejectedRows) -> Rejects:
    first = (
        FirstReject(message.reason, message.source, message.position, message.dead_letters)
        if message.reason
        else None
    )
    return Rejects(
        message.step,
        message.is_source,
        message.rows_in,
        message.rejected,
        first,
        rejected_here=message.rejected_here,
    )
