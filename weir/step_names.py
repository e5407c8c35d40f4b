"""What a step was called before, where a job says so: ``renamed_from=``."""

from __future__ import annotations

from typing import overload


class RenamedStep(str):
    """The name of a step that had another one in the checkpoint from which the job starts."""

    __slots__ = ("renamed_from",)
    #: Its name then.
    renamed_from: str


@overload
def renamed_step(name: str, renamed_from: str | None) -> str: ...
@overload
def renamed_step(name: str | None, renamed_from: str | None) -> str | None: ...
def renamed_step(name: str | None, renamed_from: str | None) -> str | None:
    """The name of a step, which the flow takes with what the step was called before; None: as it is called now."""
    if renamed_from is None or not isinstance(name, str):
        return name
    step = RenamedStep(name)
    step.renamed_from = renamed_from
    return step
