"""Which rows of a batch each aggregate takes: its ``where(...)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.stateless.expressions import ExpressionInput
from weir.operators.stateless.small_predicates import SmallPredicate, small_predicate
from weir.specs.aggregate_functions import AnyAggregate, different_conditions
from weir.specs.row_wise import has_selector

#: All rows count.
ALL_VALID = np.zeros(0, dtype=np.uint8)


class Conditions:
    """Conditions of a step's aggregates. Each different one is evaluated once for a batch, all of them together.

    Comparisons of integers are done by NumPy: a call of Polars costs more than eight of them over a whole batch.
    """

    def __init__(self, aggregates: Sequence[AnyAggregate]) -> None:
        self._conditions, self._numbers = different_conditions(aggregates)
        self._schema: pa.Schema | None = None
        #: By the number of a condition; True and False themselves are evaluated once.
        self._plain: dict[int, SmallPredicate] = {}
        self._literals: dict[int, int] = {
            number: pl.select(condition.fill_null(value=False).cast(pl.UInt8)).item()
            for number, condition in enumerate(self._conditions)
            if condition.meta.is_literal()
        }
        #: Those that see the same columns, together.
        self._others: list[tuple[ExpressionInput, dict[int, pl.Expr]]] = []

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """Return for each aggregate which rows count: uint8, or of length 0: all."""
        if not self._conditions:
            return [ALL_VALID] * len(self._numbers)
        if self._schema is None or not self._schema.equals(batch.schema):
            self._prepare(batch.schema)
        found = {number: plain.mask(batch).view(np.uint8) for number, plain in self._plain.items()}
        for number, value in self._literals.items():
            found[number] = np.full(batch.num_rows, value, dtype=np.uint8)
        for given, conditions in self._others:
            told = given.frame(batch).select(
                condition.fill_null(value=False).cast(pl.UInt8).alias(str(number))
                for number, condition in conditions.items()
            )
            for number in conditions:
                mask = told.get_column(str(number)).to_numpy()
                # Conditions without a column have one value.
                whole = len(mask) == batch.num_rows
                found[number] = np.array(mask) if whole else np.full(batch.num_rows, mask[0], dtype=np.uint8)
        return [ALL_VALID if number is None else found[number] for number in self._numbers]

    def _prepare(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._plain = {}
        # A selector does not see the times, which others may name.
        others: dict[bool, dict[int, pl.Expr]] = {False: {}, True: {}}
        for number, condition in enumerate(self._conditions):
            if number in self._literals:
                continue
            plain = small_predicate(condition, schema)
            if plain is None:
                others[has_selector(condition)][number] = condition
            else:
                self._plain[number] = plain
        self._others = [(ExpressionInput(list(each.values())), each) for each in others.values() if each]
