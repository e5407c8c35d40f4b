"""What a workflow engine is told, as records and as decisions: plain functions, the same for both forms of the job.

Source of the commands and of what they may do: the state benchmark, sections B, C and I. A workflow is at a *step*:
0: not there; 1: started; ``2 + 2 n``: its task ``n`` runs; ``3 + 2 n``: task ``n`` is complete. Each command is right
at one step only, so a duplicate and a command out of order are seen without looking at any task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import weir

START_WORKFLOW, START_TASK, COMPLETE_TASK = KINDS = ("StartWf", "StartTask", "CompleteTask")
#: Of a record's JSON; ``task`` is of StartWf the number of tasks that the workflow has, 0: nobody knows.
COLUMNS = {"kind": str, "workflow": str, "task": int, "payload": weir.Nullable(str)}
#: Beside them: when the record was written, ms since 1970, by the log's clock.
SENT = "sent_ms"

ACCEPTED = ""
DUPLICATE = "duplicate"
UNKNOWN_WORKFLOW = "unknown workflow"
OUT_OF_ORDER = "task out of order"
NO_SUCH_TASK = "no such task"
UNKNOWN_COMMAND = "unknown command"


def refusal(kind: str, task: int, step: int, tasks: int) -> str:
    """Why a command is refused; :data:`ACCEPTED`: it is not, and the workflow goes to the next step.

    Args:
        kind: of the command; any text.
        task: of the command; of StartWf it does not matter.
        step: where the workflow is.
        tasks: how many the workflow has; 0: nobody knows.
    """
    if kind == START_WORKFLOW:
        return DUPLICATE if step else ACCEPTED
    if kind not in (START_TASK, COMPLETE_TASK):
        return UNKNOWN_COMMAND
    if not step:
        return UNKNOWN_WORKFLOW
    right = 2 * task + (1 if kind == START_TASK else 2)
    if task >= 0 and right < step:
        return DUPLICATE
    if right != step:
        return OUT_OF_ORDER
    return NO_SUCH_TASK if 0 < tasks <= task else ACCEPTED


def latest_task(step: int) -> int:
    """The number of the task that was started last; 0 if there is none."""
    return max(0, step // 2 - 1)


def is_over(step: int, tasks: int) -> bool:
    """Whether all tasks of a workflow are complete; never if nobody knows how many it has."""
    return tasks > 0 and step == 1 + 2 * tasks


class Encoder:
    """Makes the records of some workflows: JSON, of which only the number and the payload change.

    Args:
        ids: of the workflows, without characters that JSON escapes.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._starts = {kind: [self._start(kind, each) for each in ids] for kind in KINDS}

    def __len__(self) -> int:
        return len(self._starts[START_WORKFLOW])

    @staticmethod
    def _start(kind: str, workflow: str) -> bytes:
        return f'{{"kind":"{kind}","workflow":"{workflow}","task":'.encode()

    def records(self, kind: str, task: int, first: int, stop: int) -> list[bytes]:
        """Records of one kind, for the workflows at these places."""
        end = b"%d}" % task
        return [start + end for start in self._starts[kind][first:stop]]

    def completions(self, task: int, first: int, payloads: Iterable[bytes]) -> list[bytes]:
        """CompleteTask for the workflows from this place on, one for each payload (of characters without escapes)."""
        middle = b'%d,"payload":"' % task
        starts = self._starts[COMPLETE_TASK][first:]
        return [start + middle + payload + b'"}' for start, payload in zip(starts, payloads, strict=False)]
