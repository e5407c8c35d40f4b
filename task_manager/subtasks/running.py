"""A subtask of this task manager and what belongs to it, for all who drive it: deployments, rescales, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from task_manager.exchange.output import Output
from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.progress import FINAL_STATES
from task_manager.subtasks.isolation import Isolation
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.subtask import Subtask
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.author.operator import SourceReader
from weir.errors import HandshakeError
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile
from weir.protocol.rescale.rescale_owner import OwnerEvent
from weir.state.api import StateBackend


@dataclass(frozen=True)
class RunningSubtask:
    """A subtask and what belongs to it."""

    subtask: Subtask
    chain: OperatorChain[Output]
    dead_letters: DeadLetterFile | None
    #: In stages whose subtasks own key groups.
    group_state: SubtaskGroupState | None
    isolation: Isolation | None = None
    #: Of a source.
    reader: SourceReader | None = None
    #: What the tables of its operators read and write; None: it is no owner of key groups.
    store: StateBackend | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the subtask has ended."""
        return self.subtask.progress.state in FINAL_STATES

    def tell(self, event: OwnerEvent) -> Future[None] | None:
        """Let the subtask take an event of a rescale in, between two batches; None: it has ended.

        Raises:
            HandshakeError: it is a source, which owns nothing.
        """
        task = self.subtask
        if not isinstance(task, TaskSubtask):
            raise HandshakeError(f"subtask {task.subtask} is a source: it owns no key groups")
        return task.tell(event)

    def align(self, lowest_ms: Mapping[str, int]) -> None:
        """Tell a source of the lowest watermark of each group of sources; others do not need it."""
        if isinstance(self.subtask, SourceSubtask):
            self.subtask.align(lowest_ms)

    def hold_back(self, reason: str) -> None:
        """Let a source read nothing for this reason; empty: it reads on."""
        if isinstance(self.subtask, SourceSubtask):
            self.subtask.hold_back(reason)

    def post(self, command: Callable[[], None]) -> Future[None] | None:
        """Run this between two of the subtask's batches, or at a pause of its operators; None: it has ended."""
        return self.subtask.mailbox.post(command, at_pauses=True)
