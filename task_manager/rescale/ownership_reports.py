"""What owners on a task manager have of the latest rescale of their stage; heartbeats tell the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from weir.rpc import control_pb2
from weir.rpc.wire import subtask_to_proto
from weir.types import SubtaskId


class OwnershipReports:
    """The reports of a deployed job's ownership; any thread may call it."""

    def __init__(self, address: str, on_change: Callable[[], None]) -> None:
        """``address`` is this task manager's; ``on_change``: there is something to report."""
        self._address = address
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reports: dict[SubtaskId, control_pb2.OwnershipReport] = {}

    def owned(self, subtask: SubtaskId, version: int, groups: Iterable[int], location: str) -> None:
        """Note that a subtask took groups over whose state is at ``location``."""
        listed = list(groups)
        with self._lock:
            report = self._report(subtask, version)
            report.owned_groups.extend(listed)
            report.locations.extend([location] * len(listed))
            if location == self._address:
                report.complete_groups.extend(listed)
        self._on_change()

    def completed(self, subtask: SubtaskId, group: int) -> None:
        """Note that all state of a group is here."""
        with self._lock:
            report = self._reports.get(subtask)
            if report is not None:
                report.complete_groups.append(group)
        self._on_change()

    def failed(self, subtask: SubtaskId, version: int, cause: str) -> None:
        """Note that groups of a subtask that has ended could not be handed over."""
        with self._lock:
            self._report(subtask, version).failure = cause
        self._on_change()

    def count_bytes(self, subtask: SubtaskId, version: int, size_bytes: int) -> None:
        """Note state that came with groups."""
        with self._lock:
            self._report(subtask, version).bytes_moved += size_bytes

    def count_sent(self, subtask: SubtaskId, version: int, size_bytes: int, relinked: int = 0) -> None:
        """Note what old owners sent ahead of groups or with them, and groups that are relinked."""
        with self._lock:
            report = self._report(subtask, version)
            report.bytes_sent += size_bytes
            report.relinked_groups += relinked

    def current(self, bytes_pulled: Callable[[SubtaskId], int]) -> list[control_pb2.OwnershipReport]:
        """Returns a copy of all reports; ``bytes_pulled``: state that a subtask has fetched in the background."""
        copies = []
        with self._lock:
            for subtask, report in self._reports.items():
                copy = control_pb2.OwnershipReport()
                copy.CopyFrom(report)
                if any(at != self._address for at in report.locations):
                    copy.bytes_moved += bytes_pulled(subtask)
                copies.append(copy)
        return copies

    def forget(self, subtask: SubtaskId) -> None:
        """Drop the report of a subtask that is not part of the job any more."""
        with self._lock:
            self._reports.pop(subtask, None)

    def _report(self, subtask: SubtaskId, version: int) -> control_pb2.OwnershipReport:
        """The report on the latest rescale; the caller has the lock."""
        report = self._reports.get(subtask)
        if report is None or report.routing_version < version:
            report = control_pb2.OwnershipReport(subtask=subtask_to_proto(subtask), routing_version=version)
            self._reports[subtask] = report
        return report
