"""Which rows of a batch each aggregate takes: its ``where(...)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.stateless.expressions import ExpressionInput
from weir.operators.stateless.small_predicates import SmallPredicate, small_predicate
from weir.specs.aggregate_functions import AnyAggregate

#: All rows count.
ALL_VALID = np.zeros(0, dtype=np.uint8)


class Conditions:
    """Of the aggregates of a step. Each different condition is evaluated once for a batch, all of them together.

    Comparisons of integers are done by NumPy: a call of Polars costs more than eight of them over a whole batch.
    """

    def __init__(self, aggregates: Sequence[AnyAggregate]) -> None:
        self._conditions = {str(a.condition): a.condition for a in aggregates if a.condition is not None}
        self._texts = [None if a.condition is None else str(a.condition) for a in aggregates]
        self._schema: pa.Schema | None = None
        self._plain: dict[str, SmallPredicate] = {}
        self._others: dict[str, pl.Expr] = {}
        self._input = ExpressionInput([])

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """For each aggregate which rows count: uint8, or of length 0: all."""
        if not self._conditions:
            return [ALL_VALID] * len(self._texts)
        if self._schema is None or not self._schema.equals(batch.schema):
            self._prepare(batch.schema)
        found = {text: plain.mask(batch).view(np.uint8) for text, plain in self._plain.items()}
        if self._others:
            frame = self._input.frame(batch)
            told = frame.select(
                condition.fill_null(value=False).cast(pl.UInt8).alias(text)
                for text, condition in self._others.items()
            )
            for text in self._others:
                mask = told.get_column(text).to_numpy()
                # Conditions without a column have one value.
                whole = len(mask) == batch.num_rows
                found[text] = np.array(mask) if whole else np.full(batch.num_rows, mask[0], dtype=np.uint8)
        return [ALL_VALID if text is None else found[text] for text in self._texts]

    def _prepare(self, schema: pa.Schema) -> None:
        self._schema = schema
        translated = {text: small_predicate(each, schema) for text, each in self._conditions.items()}
        self._plain = {text: plain for text, plain in translated.items() if plain is not None}
        self._others = {text: each for text, each in self._conditions.items() if text not in self._plain}
        self._input = ExpressionInput(list(self._others.values()))
