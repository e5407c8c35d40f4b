"""Fetches state of key groups that came without it: in the background after a rescale, and before a store goes away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.ports import LocalSubtask
from weir.errors import WeirError
from weir.state.placement.migration import Migrator
from weir.types import SubtaskId

log = logging.getLogger(__name__)


class Fetching:
    """The fetching of a deployed job; any thread may call it."""

    def __init__(
        self,
        subtasks: Mapping[SubtaskId, LocalSubtask],
        migrator: Migrator,
        reports: OwnershipReports,
        fail: Callable[[SubtaskId, WeirError], bool],
    ) -> None:
        """``fail`` lets a subtask fail; it returns False if the subtask has ended."""
        self._subtasks = subtasks
        self._migrator = migrator
        self._reports = reports
        self._fail = fail

    def adopted(self, subtask: SubtaskId) -> Callable[[SubtaskGroupState], None]:
        """Returns what a subtask calls when groups came whose state may have to be fetched."""

        def fetch(group_state: SubtaskGroupState) -> None:
            if group_state.backend.pull.migrating():
                self._migrator.add(
                    group_state.backend,
                    on_complete=lambda group: self._reports.completed(subtask, group),
                    on_error=self._failing(subtask),
                )

        return fetch

    def pull(self, address: str) -> int:
        """Let owners here fetch what is in a store that is to go away; returns how many groups are not done.

        Called again and again until that is 0; no rescale runs meanwhile.
        """
        left = 0
        for subtask, local in list(self._subtasks.items()):
            group_state = local.group_state
            if group_state is None or local.is_over:
                continue
            backend = group_state.backend
            known = {migrating.group for migrating in backend.pull.migrating()}
            there = [group for group, at in backend.ownership.locations().items() if at == address]
            if not known.issuperset(there):
                backend.ownership.migrate(there)
                self._migrator.add(backend, on_error=self._failing(subtask))
            left += backend.pull.unsettled_count()
        return left

    def bytes_pulled(self, subtask: SubtaskId) -> int:
        """Returns the bytes that a subtask's latest migration has fetched."""
        local = self._subtasks.get(subtask)
        group_state = None if local is None else local.group_state
        return 0 if group_state is None else self._migrator.progress(group_state.backend).bytes

    def forget(self, group_state: SubtaskGroupState) -> None:
        """A subtask has ended: nothing more is fetched for it."""
        self._migrator.remove(group_state.backend)

    def close(self) -> None:
        """Stop after what is under way."""
        self._migrator.close()

    def _failing(self, subtask: SubtaskId) -> Callable[[WeirError], None]:
        def fail(error: WeirError) -> None:
            if not self._fail(subtask, error):
                log.debug("subtask %s: %s", subtask, error)

        return fail
