"""The form in which checkpoints have the conditions of aggregates: golden texts, for later versions."""

import polars as pl
import pytest

from weir.specs.canonical import canonical_expression

GOLDEN = [
    (pl.col("a") > 3, '{">":[{"column":"a"},{"literal":3}]}'),
    (
        (pl.col("a") == "x") & (pl.col("b") != 1.5),
        '{"&":[{"==":[{"column":"a"},{"literal":["String",["x"]]}]},{"!=":[{"column":"b"},{"literal":1.5}]}]}',
    ),
    (
        pl.col("x").is_in([1, 2, 3]),
        '{"call":{"Boolean":{"IsIn":{"nulls_equal":false}}},"of":[{"column":"x"},{"literal":["List",[[1,2,3]]]}]}',
    ),
]


@pytest.mark.parametrize(("expression", "text"), GOLDEN, ids=[text for _, text in GOLDEN])
def test_golden_texts(expression, text):
    assert canonical_expression(expression) == text


def test_expressions_that_polars_shows_alike_differ():
    one, other = (pl.col("x").is_in([*range(50), last]) for last in (50, 51))
    assert canonical_expression(one) != canonical_expression(other)
    assert canonical_expression(pl.col("x") > 1) == canonical_expression(pl.col("x") > 1)
    assert canonical_expression(pl.col("x").cast(pl.Int32) > 1) != canonical_expression(
        pl.col("x").cast(pl.Int64) > 1
    )


def test_what_has_a_function_in_python_has_a_form_too():
    text = canonical_expression(pl.col("a").map_elements(str.isdigit, return_dtype=pl.Boolean))
    # A memory address would differ in another process.
    assert text.startswith('{"shown":')
    assert "0x" not in text
