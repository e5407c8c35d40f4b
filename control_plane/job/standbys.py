"""Tells task managers whose state to keep, so that they can take over at once, and knows how far they are.

What is chosen is in no record: task managers report what they keep, and a control plane that takes over goes on with
that, once all of them have had the time to register. See docs/design/0020.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.web.views import StandbyView
from weir.config import ControlPlaneConfig
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.placement import TaskManagerLoad
from weir.protocol.job.standbys import choose_standbys
from weir.redaction import redacted_text
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_from_proto, subtask_to_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")


class Standbys:
    """Chooses the standbys of a job; all methods are called in the event loop.

    Args:
        job: the job.
        config: section ``controlPlane``.
        task_managers: that are there, and what they report.
        latest: returns the checkpoint that a restart begins with; None: there is none.
        avoided: returns the task managers that are being emptied.
        is_settling: returns whether task managers that run nothing may still have to register, after a takeover.
    """

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        task_managers: TaskManagers,
        *,
        latest: Callable[[], RestorePoint | None],
        avoided: Callable[[], Collection[str]],
        is_settling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._job = job
        self._config = config
        self._task_managers = task_managers
        self._latest = latest
        self._avoided = avoided
        self._is_settling = is_settling
        #: By task manager with state, those that are to keep it.
        self.chosen: dict[str, tuple[str, ...]] = {}
        #: What it was chosen of.
        self._facts: tuple[object, ...] = ()

    def order_for(self, name: str) -> control_pb2.StandbyOrder | None:
        """What a task manager is to keep now; None: as before. Called with each of its heartbeats."""
        if self._job.state is not JobState.RUNNING or self._is_settling():
            return None
        self._choose()
        order = control_pb2.StandbyOrder(disk_hold_bytes=self._config.disk_hold_bytes)
        latest = self._latest()
        owners = {owner for owner, names in self.chosen.items() if name in names}
        if not owners:
            return order
        if latest is None or (latest.uri, latest.job_id) != (
            self._config.checkpoint_uri,
            self._job.identity.job_id,
        ):
            # The first checkpoint of its own is about to come.
            return None
        order.checkpoint_id, order.manifest_path = latest.manifest.checkpoint_id, latest.path
        order.subtasks.extend(subtask_to_proto(subtask) for subtask in self._with_state(owners))
        return order

    def by_owner(self) -> dict[str, tuple[str, ...]]:
        """Return the standbys of each task manager with state, those that lack least first; called at a loss."""
        chosen = self.chosen or self._reported(self._job.preferred)
        return {owner: tuple(sorted(names, key=self._lack)) for owner, names in chosen.items()}

    def _reported(self, placement: Mapping[SubtaskId, str]) -> dict[str, tuple[str, ...]]:
        """Return who keeps whose state as task managers tell it: by orders of an earlier control plane."""
        if not self._config.standby_replicas:
            return {}
        found: dict[str, list[str]] = {}
        for name, report in sorted(self._task_managers.state_files.items()):
            kept = {subtask_from_proto(item) for item in report.standby_subtasks}
            for owner in {placement[subtask] for subtask in kept if subtask in placement} - {name}:
                found.setdefault(owner, []).append(name)
        return {owner: tuple(names) for owner, names in found.items()}

    def _lack(self, name: str) -> tuple[bool, int]:
        report = self._task_managers.state_files.get(name)
        return (True, 0) if report is None else (not report.standby_bytes, report.standby_missing_bytes)

    @property
    def missing(self) -> int:
        """Standbys that there should be, and for which there are not enough other task managers with free slots."""
        return sum(self._config.standby_replicas - len(names) for names in self.chosen.values())

    def views(self) -> list[StandbyView]:
        """What there is to show, by owner."""
        found = []
        latest = self._latest()
        latest_id = 0 if latest is None else latest.manifest.checkpoint_id
        for owner, names in sorted(self.chosen.items()):
            for name in names:
                report = self._task_managers.state_files.get(name, control_pb2.StateFiles())
                held_id = report.standby_checkpoint_id
                found.append(
                    StandbyView(
                        of=owner,
                        task_manager=name,
                        checkpoint=held_id or None,
                        lag_checkpoints=max(latest_id - held_id, 0) if held_id else None,
                        lag_bytes=report.standby_missing_bytes,
                        held_bytes=report.standby_bytes,
                        problem=redacted_text(report.standby_problem),
                    )
                )
        return found

    def _choose(self) -> None:
        if not self._config.standby_replicas:
            return
        members, avoided = self._task_managers.members(), set(self._avoided())
        running = self._running()
        with_state = sorted({self._job.machine.placement[subtask] for subtask in self._with_state(None)})
        loads = [
            TaskManagerLoad(member.name, member.quota, running.get(member.name, {}))
            for member in members
            if member.name not in avoided
        ]
        facts = (loads, with_state)
        # Another control plane chooses when all have come that the job runs on.
        if facts == self._facts or not set(with_state) <= {member.name for member in members}:
            return
        self._facts = facts
        owners = {name: sum(running[name].values()) for name in with_state}
        before = self.chosen or self._reported(self._job.machine.placement)
        self.chosen = choose_standbys(owners, loads, self._config.standby_replicas, before)
        for owner, names in self.chosen.items():
            if names != before.get(owner, ()):
                where = f"at {', '.join(names)}, too" if names else "nowhere else any more"
                log.info("the state of %s is kept %s", owner, where)

    def _running(self) -> dict[str, Counter[int]]:
        """Return how many subtasks of each stage run on each task manager."""
        machine, found = self._job.machine, dict[str, Counter[int]]()
        for subtask, name in machine.placement.items():
            if not machine.statuses[subtask].is_terminal:
                found.setdefault(name, Counter())[subtask.stage_index] += 1
        return found

    def _with_state(self, names: Collection[str] | None) -> list[SubtaskId]:
        """Subtasks that have keyed state, at these task managers or (None) anywhere."""
        machine, graph = self._job.machine, self._job.graph
        return [
            subtask
            for stage in graph.stages
            if stage.is_keyed
            for subtask in stage.subtasks()
            if subtask in machine.placement
            and not machine.statuses[subtask].is_terminal
            and (names is None or machine.placement[subtask] in names)
        ]
