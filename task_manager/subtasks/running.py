"""A subtask of this task manager and what belongs to it, for all who drive it: deployments, rescales, reports."""

from __future__ import annotations

from dataclasses import dataclass

from task_manager.exchange.output import Output
from task_manager.rescale.group_state import SubtaskGroupState
from task_manager.subtasks.isolation import Isolation
from task_manager.subtasks.subtask import Subtask
from weir.operators.base import SourceReader
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile


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
