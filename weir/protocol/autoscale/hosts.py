"""Processors that subtasks share: those of a host, by all of its task managers. Pure.

A subtask that was busy for half of its time has no room for twice the load if others had the processor meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from weir.protocol.autoscale.measures import JobMeasure, StageMeasure, TaskManagerMeasure

#: A host whose processors are used less than this has room for a subtask that computes.
_ROOM = 0.8
#: What others leave of the processors of a host counts as at least this share of them.
_LEFT_MIN = 0.05


class Hosts:
    """The hosts of a job; made anew for each measurement. Hosts whose processors are not known do not limit."""

    def __init__(self, job: JobMeasure) -> None:
        managers = job.task_managers
        self._host_of = {each.name: each.host for each in managers}
        self._processors = {each.host: each.processors for each in managers if each.processors}
        self._used: defaultdict[str, float] = defaultdict(float)
        for each in managers:
            self._used[each.host] += each.processors_used or 0.0
        self._has_room = any(each.free_slots > 0 and self._has_time(each) for each in managers)

    def of(self, stage: StageMeasure) -> StageHosts:
        """What the hosts allow a stage."""
        own: defaultdict[str, float] = defaultdict(float)
        hosts = [self._host_of.get(each.task_manager, "") for each in stage.subtasks]
        for host, each in zip(hosts, stage.subtasks, strict=True):
            own[host] += each.computing
        limited = {
            host: (self._processors[host], max(self._used[host] - computing, 0.0))
            for host, computing in own.items()
            if host in self._processors
        }
        return StageHosts(hosts, sum(own.values()), limited, has_room=self._has_room)

    def _has_time(self, manager: TaskManagerMeasure) -> bool:
        processors = self._processors.get(manager.host)
        return processors is None or self._used[manager.host] < _ROOM * processors


class StageHosts:
    """The hosts of one stage: subtasks with the lowest indices stay where they are, further ones go where room is."""

    def __init__(
        self,
        hosts: Sequence[str],
        computing: float,
        limited: Mapping[str, tuple[int, float]],
        *,
        has_room: bool,
    ) -> None:
        """Note where subtasks are.

        Args:
            hosts: of the subtasks, by index.
            computing: processors that all of them together use.
            limited: by host its processors, and those that others use; not of hosts of which that is not known.
            has_room: there are slots for further subtasks where processors have time.
        """
        self._hosts, self._computing, self._limited, self._has_room = hosts, computing, limited, has_room
        self._placed = Counter(hosts)

    @property
    def names(self) -> str:
        """Names of the hosts."""
        return ", ".join(sorted(self._placed))

    def utilisation(self, count: int, factor: float) -> float:
        """Return the share of the processors left by others that the stage uses, on the fullest of its hosts.

        Args:
            count: its subtasks from now on, at least as many as now.
            factor: the load as a multiple of what was measured.
        """
        # Without room for new ones, the present ones have to do all of it.
        return self._highest(self._placed, count if self._has_room else len(self._hosts), factor)

    def fewest(self, least: int, utilisation_max: float, factor: float) -> int | None:
        """The fewest subtasks, from ``least`` to as many as now, with which no host is fuller than this; None: none."""
        placed = Counter(self._hosts[: least - 1])
        for count in range(least, len(self._hosts) + 1):
            placed[self._hosts[count - 1]] += 1
            if self._highest(placed, count, factor) <= utilisation_max:
                return count
        return None

    def _highest(self, placed: Mapping[str, int], parts: int, factor: float) -> float:
        highest = 0.0
        for host, (processors, others) in self._limited.items():
            left = max(processors - factor * others, _LEFT_MIN * processors)
            highest = max(highest, factor * self._computing * placed[host] / parts / left)
        return highest
