"""Rows that leave a step beside its own output: ``yield weir.side("late", row)``, ``stream.side_output("late")``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SideRows:
    """What a step yields for one of its side outputs, in the midst of what it yields for its own output."""

    output: str
    #: A record batch with the time columns; of an author's function that takes one row at a time, a dict.
    rows: Any


def side(output: str, rows: Any) -> SideRows:
    """Send rows to a side output of the step: what an author's operator yields beside its result.

    Args:
        output: name of a side output that the step declares.
        rows: where results are dicts, a dict; where they are record batches, a record batch. A batch of as many rows as
            the one that was given may leave the time columns out.
    """
    return SideRows(output, rows)


def output_id(step: str, output: str) -> str:
    """What an output is called in the job: a step's own one by the step's name, another as ``step/output``."""
    return f"{step}/{output}" if output else step
