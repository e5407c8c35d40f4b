"""Which rows of a batch each aggregate takes: its ``where(...)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.stateless.expressions import ExpressionInput
from weir.specs.aggregate_functions import AnyAggregate

#: All rows count.
ALL_VALID = np.zeros(0, dtype=np.uint8)


class Conditions:
    """Of the aggregates of a step. Each different condition is evaluated once for a batch."""

    def __init__(self, aggregates: Sequence[AnyAggregate]) -> None:
        self._conditions = {str(a.condition): a.condition for a in aggregates if a.condition is not None}
        self._inputs = {text: ExpressionInput([each]) for text, each in self._conditions.items()}
        self._texts = [None if a.condition is None else str(a.condition) for a in aggregates]

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """For each aggregate which rows count: uint8, or of length 0: all."""
        if not self._conditions:
            return [ALL_VALID] * len(self._texts)
        found = {
            text: _mask(self._inputs[text].frame(batch), condition, batch.num_rows)
            for text, condition in self._conditions.items()
        }
        return [ALL_VALID if text is None else found[text] for text in self._texts]


def _mask(frame: pl.DataFrame, condition: pl.Expr, rows: int) -> np.ndarray:
    found = frame.select(condition.fill_null(value=False)).to_series()
    mask = found.cast(pl.UInt8).to_numpy()
    # A condition without a column has one value.
    return np.array(mask) if len(mask) == rows else np.full(rows, mask[0], dtype=np.uint8)
