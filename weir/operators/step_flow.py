"""Rows on their way into one step of a chain, and where the step is with those that it was given.

A step before may tell much at once, for which a slow step takes long. So a step takes what waits for it in parts that
are bounded by the time they take, and barriers pass between two of them: what waits then is part of the checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from weir.protocol.part_rows import PartRows
from weir.rows.records import WATERMARK_MIN_MS


class WaitingRows(NamedTuple):
    """Rows that wait for a step, in a checkpoint."""

    #: Which of the steps, see :func:`step_keys`.
    step: str
    batch: pa.RecordBatch
    #: The watermark that the step knew.
    known_ms: int


class StepFlow:
    """What a chain keeps for one of its steps, and sets."""

    def __init__(self, rows_max: int) -> None:
        """``rows_max``: of the largest batch."""
        self.parts = PartRows(rows_max)
        #: The watermark that it was told of, and what that is as of the last row that it was given.
        self.told_ms = self.reached_ms = WATERMARK_MIN_MS
        #: Rows that it takes next.
        self.waiting: deque[pa.RecordBatch] = deque()
        #: What it is given just now, and the row up to which it has taken it; None: nothing.
        self.given: pa.RecordBatch | None = None
        self.taken = 0
        #: The watermark as of the last of those that it is taking now.
        self.all_taken_ms = WATERMARK_MIN_MS
        #: What it yields just now, and what of :attr:`given` that is about; None: it yields nothing, it is of no rows.
        self.outputs: Iterator[Any] | None = None
        self.batch: pa.RecordBatch | None = None
        #: The latest that it has yielded was a pause, after so many of those rows; None: no pause.
        self.at_pause: int | None = None

    def begin(self, outputs: Iterator[Any], batch: pa.RecordBatch | None) -> None:
        """Note what the step is about to yield, of these rows or of none."""
        self.outputs, self.batch, self.at_pause = outputs, batch, None

    def next_part(self) -> pa.RecordBatch:
        """Rows that wait, as many as it is to take at once."""
        part = self.waiting.popleft()
        rows = self.parts.rows
        if part.num_rows > rows and self.parts.is_limited:
            self.waiting.appendleft(part.slice(rows))
            part = part.slice(0, rows)
        return part

    @property
    def known_ms(self) -> int:
        """The watermark as of the rows that it has taken."""
        taken_ms = self.all_taken_ms if self.at_pause is None else WATERMARK_MIN_MS
        return max(self.told_ms, self.reached_ms, taken_ms)

    @property
    def rest(self) -> pa.RecordBatch | None:
        """Rows that the step was given and has not taken; None: it was given none."""
        if self.given is None:
            return None
        taken = self.taken
        if self.at_pause is not None and self.batch is not None:
            taken += self.at_pause - self.batch.num_rows
        return self.given.slice(taken)


def step_keys(names: list[str]) -> list[str]:
    """Names of the steps of a chain, told apart where one step has two operators."""
    found: list[str] = []
    for name in names:
        found.append(f"{name}#{names[: len(found)].count(name) + 1}" if name in names[: len(found)] else name)
    return found
