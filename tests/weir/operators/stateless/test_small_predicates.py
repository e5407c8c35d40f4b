"""Translated predicates say what Polars says, and everything unusual stays with Polars."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.operators.stateless.small_predicates import small_predicate

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.int64(), nullable=False),
        pa.field("maybe", pa.int64()),
        pa.field("text", pa.string(), nullable=False),
    ]
)
a, b = pl.col("a"), pl.col("b")
TRANSLATED = [
    a % 1 == 0,
    a % 2**62 > b,
    a % (2**63 - 1) < b,
    a % 4 != 0,
    a + 1 > b,
    (a * 3 - b <= 7) & (b >= 0),
    (a == b) | (a < -5),
    a % 7 == 3,
]
#: As SQL writes integers.
TRANSLATED += [
    a % pl.lit(123, pl.Int64) == pl.lit(0),
    (a >= pl.lit(-3, pl.Int64)) & (b < pl.lit(2**40, pl.Int64)),
]


def batch(values: list[int], others: list[int]) -> pa.RecordBatch:
    columns = [values, others, values, [str(value) for value in values]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("predicate", TRANSLATED, ids=str)
@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=1, max_size=20))
def test_a_translation_agrees_with_polars(predicate, rows):
    small = small_predicate(predicate, SCHEMA)
    assert small is not None
    values, others = [list(column) for column in zip(*rows, strict=True)]
    with np.errstate(all="ignore"):
        ours = small.mask(batch(values, others)).tolist()
    theirs = pl.DataFrame({"a": values, "b": others}).select(predicate).to_series().to_list()
    assert ours == theirs


@pytest.mark.parametrize(
    "predicate",
    [
        pl.col("maybe") > 3,
        pl.col("text") == "x",
        a % b == 1,
        a // 2 == 1,
        a / 2 > 1,
        a > 1.5,
        a > pl.lit(1.5, pl.Float64),
        a > pl.lit(None, pl.Int64),
        a.is_in([1, 2]),
        a.cast(pl.String) == "1",
        a.shift(1) == 2,
        ~(a > 3),
        pl.lit(True),
        a + 2**70 > 0,
    ],
    ids=str,
)
def test_everything_else_stays_with_polars(predicate):
    assert small_predicate(predicate, SCHEMA) is None
