"""What subtasks are called where people read of them. Pure.

The machines know numbers only; they are given a function, mostly ``PhysicalGraph.name_of``, that knows the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.types import SubtaskId

#: From a subtask to its name in a text: "step 'count', subtask 0".
NameOf = Callable[[SubtaskId], str]
#: Between the names of the steps of a chain.
CHAINED = " -> "
_LISTED_MAX = 3


def numbered(subtask: SubtaskId) -> str:
    """The name of a subtask of which nothing else is known: "subtask 1/0"."""
    return f"subtask {subtask}"


def in_step(step: str, subtask: SubtaskId) -> str:
    """The name of a subtask by its step, or by the steps of its chain: "step 'count', subtask 0"."""
    kind = "steps" if CHAINED in step else "step"
    return f"{kind} {step!r}, subtask {subtask.subtask_index}"


def listed(name_of: NameOf, subtasks: Sequence[SubtaskId]) -> str:
    """The names of some subtasks, or of the first few and how many there are beside them."""
    named = " and ".join(map(name_of, subtasks[:_LISTED_MAX]))
    rest = len(subtasks) - _LISTED_MAX
    return f"{named} and {rest} more" if rest > 0 else named


def without_step(cause: str, step: str) -> str:
    """A cause less its beginning, where that only names the step, which is said already."""
    if not step:
        return cause
    for kind in ("step", "sink", "source"):
        for beginning in (f"{kind} {step!r}: ", f"{kind} {step}: ", f"{kind} {step!r} failed: "):
            if cause.startswith(beginning):
                return cause[len(beginning) :]
    return cause
