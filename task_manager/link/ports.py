"""What the link to the control plane needs of this task manager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import JobIdentity


class LinkedJob(Protocol):
    """The job that runs here, as the link sees it; implemented by ``JobRuntime``."""

    identity: JobIdentity

    @property
    def is_over(self) -> bool:
        """Return whether nothing here needs a control plane any more."""

    @property
    def waits_for(self) -> str:
        """What rows wait for outside of the job, one line; empty: nothing."""

    def deliver_last_parts_again(self) -> None:
        """Tell another control plane the last parts of subtasks that have ended."""


class LinkedServer(Protocol):
    """The task manager, as the link sees it; implemented by ``job_slot.JobSlot``."""

    address: str
    incarnation: str
    #: With it the control plane shows that this task manager has registered there.
    orders_secret: bytes

    @property
    def runtime(self) -> LinkedJob | None:
        """The deployed job, if any."""

    def reports(self) -> list[control_pb2.SubtaskReport]:
        """Return a report for each subtask."""

    def ownership_reports(self) -> list[control_pb2.OwnershipReport]:
        """What owners here have of the latest rescale."""

    def state_files(self) -> control_pb2.StateFiles | None:
        """What is here of checkpoints' files, and what was fetched; None: no job is."""
        ...

    def keep_standby(self, job_id: str, generation: int, order: control_pb2.StandbyOrder) -> None:
        """Keep state of other task managers of a deployment; comes with each heartbeat."""
        ...

    def align(self, job_id: str, generation: int, lowest_ms: Mapping[str, int]) -> None:
        """Tell sources of a deployment of the lowest watermark of each group of sources."""

    def hold_back(self, reason: str) -> None:
        """Let sources read nothing for this reason; empty: they read on."""

    def forget(self, subtasks: Iterable[common_pb2.SubtaskId]) -> None:
        """The control plane needs nothing more of these subtasks."""

    def renew_incarnation(self) -> None:
        """Drop the job and come as a new task manager."""

    def drop_job(self, runtime: object = None) -> None:
        """Cancel the job, only if it is ``runtime`` where that is given."""
