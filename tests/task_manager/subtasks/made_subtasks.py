"""A subtask with one operator and no consumers, which runs in the test's thread."""

from types import SimpleNamespace

from task_manager.exchange.output import Output
from task_manager.progress import SubtaskProgress
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.author.operator import OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.user_errors import UserErrors
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.types import ChannelId, SubtaskId

SUBTASK = SubtaskId(1, 0)


def input_channels(count):
    """Of so many subtasks of the stage before."""
    return [ChannelId(SubtaskId(0, index), SUBTASK, 0) for index in range(count)]


def task_subtask(name, operator, inbox, inputs, clock):
    """Not begun yet; ``name`` is the step's."""
    mailbox = Mailbox(inbox)
    chain = OperatorChain(
        [(operator, OperatorContext("job", name, 1, 0, 1))],
        Output([], mailbox.wait_for_credit, clock),
        mailbox.check_cancelled,
        StateTables(MemoryBackend(), 1 << 20, 8),
    )
    parts = SubtaskParts(
        subtask=SUBTASK,
        name="step 'made', subtask 0",
        chain=chain,
        mailbox=mailbox,
        timers=SubtaskTimers(200, 0, 1000, 60_000, 1000, 5, 100),
        clock=clock,
        on_change=lambda: None,
        checkpoints=SimpleNamespace(),
        progress=SubtaskProgress(),
        errors=UserErrors(),
    )
    return TaskSubtask(parts, inputs)
