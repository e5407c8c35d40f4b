"""Where barriers pass, though an operator has not done all that one watermark, or one batch, makes it do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """Yielded by an operator among its batches where it could be taken up again from its state.

    What it has yielded before is gone from its state, and what it will yield is there: at the same watermark, or with
    the rows that it has not taken, the rest follows. Only where ``OperatorContext.fires_in_parts``.
    """

    #: Of the batch that it was given, so many were taken.
    rows: int = 0
