"""The fold of each aggregate function.

A fold is some 8-byte cells of a key's slot, or of an entry of a window; its layout is persisted, so the order of a
step's aggregates and their functions must not change while a store is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.operators.aggregation.decimal_folds import DECIMAL_FOLDS
from weir.operators.aggregation.fold import (
    CountFold,
    DroppedFold,
    ExtremeFold,
    Fold,
    MeanFold,
    SumFold,
)
from weir.operators.aggregation.part_folds import DistinctFold, QuantileFold, RegistersFold
from weir.operators.aggregation.value_folds import ByTimeFold, LargestFold, MomentsFold
from weir.specs.aggregate_functions import AnyAggregate

_CLASSES: dict[str, type[Fold]] = {
    "count": CountFold,
    "sum": SumFold,
    "min": ExtremeFold,
    "max": ExtremeFold,
    "mean": MeanFold,
    "variance": MomentsFold,
    "stddev": MomentsFold,
    "first": ByTimeFold,
    "last": ByTimeFold,
    "largest": LargestFold,
    "count_distinct": DistinctFold,
    "approx_distinct": RegistersFold,
    "quantile": QuantileFold,
    "dropped": DroppedFold,
}


def fold_class(aggregate: AnyAggregate, dtype: pa.DataType | None) -> type[Fold]:
    """The class for an aggregate over a column of this type; None: it has no column, or an unknown one."""
    is_decimal = dtype is not None and pa.types.is_decimal(dtype)
    return (is_decimal and DECIMAL_FOLDS.get(aggregate.function)) or _CLASSES[aggregate.function]


def made_folds(aggregates: Sequence[AnyAggregate], schema: pa.Schema | None) -> list[Fold]:
    """Folds side by side in the order given; columns that ``schema`` does not have are of no decimals."""
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    made: list[Fold] = []
    cell = 0
    for aggregate in aggregates:
        dtype = types.get(str(aggregate.column))
        fold = fold_class(aggregate, dtype)(aggregate, dtype, cell)
        made.append(fold)
        cell += fold.width
    return made


def cell_count(aggregates: Sequence[AnyAggregate], schema: pa.Schema | None = None) -> int:
    """Cells that a key needs for all aggregates; ``schema`` as for :func:`made_folds`."""
    return sum(fold.width for fold in made_folds(aggregates, schema))
