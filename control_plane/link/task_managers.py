"""The task managers that hold a lease, and the connections to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control_plane.ports import Connect, TaskManagerCalls
from weir.errors import ConnectionLostError, WeirError
from weir.protocol.job.disk_watch import DiskWatch
from weir.protocol.job.job_machine import Assignment
from weir.protocol.job.membership import Member, Membership
from weir.rpc import control_pb2
from weir.types import MachineUse, SubtaskId


def reason_of(error: BaseException) -> str:
    """Why a call failed, one line that is never empty."""
    return str(error) or type(error).__name__


async def job_at(connect: Connect, address: str) -> tuple[str, int, str] | None:
    """The job that a task manager runs: id, generation, and its own incarnation; None: nobody answers, or runs one."""
    client = connect(address)
    try:
        status = await client.status()
    except WeirError:
        return None
    finally:
        await client.close()
    return (status.job_id, status.generation, status.incarnation) if status.job_id else None


class TaskManagers:
    """The task managers that a process knows; ``Leases`` adds and removes, others look up and call."""

    def __init__(self, lease_timeout_ms: int, disk_hold_bytes: int = 0) -> None:
        self.membership = Membership(lease_timeout_ms)
        #: Connections to the task managers that hold a lease, by address.
        self.clients: dict[str, TaskManagerCalls] = {}
        #: What rows of a task manager wait for outside of the job, by address; not of those that wait for nothing.
        self.waits_for: dict[str, str] = {}
        #: What each has in use of its machine, by address; as it last reported.
        self.use: dict[str, MachineUse] = {}
        #: Files of checkpoints that each has, by address; as it last reported.
        self.state_files: dict[str, control_pb2.StateFiles] = {}
        #: Whether their disks have room.
        self.disks = DiskWatch(disk_hold_bytes)

    def waits(self, name: str) -> str:
        """What rows wait for outside of the job because of one of them, one line; empty: nothing."""
        return self.waits_for.get(name, "") or self.disks.held_by(name)

    def all_waits(self) -> str:
        """The same of all of them."""
        found = {*self.waits_for.values(), self.disks.reason} - {""}
        return ", ".join(sorted(found))

    def members(self) -> list[Member]:
        """Return all lease holders, by address."""
        return self.membership.members()

    def incarnations(self) -> dict[str, str]:
        """Which process holds the lease of each task manager, by address."""
        return {member.name: member.incarnation_id for member in self.members()}

    def client(self, name: str) -> TaskManagerCalls:
        """The connection to a registered task manager.

        Raises:
            ConnectionLostError: it has left.
        """
        if name not in self.clients:
            raise ConnectionLostError(f"task manager {name} is not registered any more")
        return self.clients[name]

    def is_registered(self, name: str) -> bool:
        """Return whether a task manager holds a lease."""
        return name in self.clients

    def reachable(self, assignments: Iterable[Assignment]) -> dict[str, list[SubtaskId]]:
        """Subtasks by task manager, without those that have left: their loss is an event of its own."""
        grouped: dict[str, list[SubtaskId]] = {}
        for item in assignments:
            if item.task_manager in self.clients:
                grouped.setdefault(item.task_manager, []).append(item.subtask)
        return grouped

    def by_task_manager(
        self, subtasks: Iterable[SubtaskId], placement: Mapping[SubtaskId, str]
    ) -> dict[str, list[SubtaskId]]:
        """Return :meth:`reachable` subtasks that are where ``placement`` says; others are left out."""
        return self.reachable(
            Assignment(subtask, placement[subtask]) for subtask in subtasks if subtask in placement
        )

    async def close(self) -> None:
        """Free connections; called when the process ends."""
        for client in self.clients.values():
            await client.close()
