"""What a subtask is made of; ``subtask_factory`` puts it together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from task_manager.checkpoints.checkpoint_parts import Checkpoints
from task_manager.exchange.output import Output
from task_manager.exchange.pace import Gathering
from task_manager.progress import SubtaskProgress
from task_manager.subtasks.mailbox import Mailbox
from weir.clock import Clock
from weir.operators.chain import OperatorChain
from weir.operators.step_flow import WaitingRows
from weir.operators.user_errors import UserErrors
from weir.protocol.watermarks.input_times import InputTimes
from weir.types import SubtaskId


@dataclass(frozen=True, slots=True)
class SubtaskTimers:
    """Intervals of the loop."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    state_flush_interval_ms: float
    #: A barrier that waits longer for those of other inputs overtakes rows.
    alignment_timeout_ms: float
    #: How long a row may wait for others that go the same way, and the rows of the largest batch.
    batch_timeout_ms: float
    batch_rows_max: int
    #: How much longer it waits while the process is busy with small batches.
    gathering: Gathering | None = None
    #: Some step of the job does something when a watermark comes.
    watermarks_soon: bool = True
    #: Some step keeps rows of one input until others have come as far.
    watermarks_soon_in_backlogs: bool = False


@dataclass(frozen=True, slots=True)
class SubtaskParts:
    """What a subtask of any kind is made of."""

    subtask: SubtaskId
    #: What people read of it.
    name: str
    chain: OperatorChain[Output]
    mailbox: Mailbox
    timers: SubtaskTimers
    clock: Clock
    #: There is something to report.
    on_change: Callable[[], None]
    checkpoints: Checkpoints
    progress: SubtaskProgress
    #: Logs what the code of the job's author raises.
    errors: UserErrors
    #: Under what name it tells checkpoints of its watermarks, and where it goes on.
    times_key: str = ""
    restored_times: InputTimes = field(default_factory=InputTimes)
    #: Rows that its operators take before anything else.
    waiting_rows: Sequence[WaitingRows] = ()
