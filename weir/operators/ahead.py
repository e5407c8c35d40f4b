"""What filters leave of rows before these are due."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.author.operator import AheadFilter, Operator
from weir.rows.late_column import LateColumn
from weir.rows.records import Block


def looked_ahead(
    operators: Sequence[Operator], batch: pa.RecordBatch, late: LateColumn | None
) -> Block | None:
    """What the first operators, as far as they only drop rows, leave of rows; None: there is nothing to know.

    Args:
        operators: of a chain.
        batch: rows that come later.
        late: a column that they lack.
    """
    numbers = np.arange(batch.num_rows)
    kept: list[np.ndarray] = []
    for operator in operators:
        if not isinstance(operator, AheadFilter):
            break
        left = batch if len(numbers) == batch.num_rows else batch.take(pa.array(numbers))
        mask = operator.kept_ahead(left)
        if mask is None:
            break
        numbers = numbers[mask]
        kept.append(numbers)
    if operators and not kept:
        return None
    return Block(batch, numbers if len(numbers) < batch.num_rows else None, late, kept)
