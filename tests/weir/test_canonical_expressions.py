"""The form in which checkpoints and fingerprints have expressions: golden ones, for later versions of Polars.

``tests/golden/fingerprints/expressions.json`` is never changed; expressions may be added.
"""

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest
from polars.plugins import register_plugin_function

from weir.specs.canonical import canonical_expression, expression_form

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


FORMS = json.loads((Path(__file__).parents[1] / "golden" / "fingerprints" / "expressions.json").read_text())


@pytest.mark.parametrize(("expression", "text"), GOLDEN, ids=[text for _, text in GOLDEN])
def test_golden_texts(expression, text):
    assert canonical_expression(expression) == text


def test_golden_forms():
    """A newer Polars that writes an expression otherwise gets its names into ``weir.specs.canonical``."""
    differ = [
        source
        for source, form in FORMS.items()
        if json.loads(json.dumps(expression_form(eval(source, {"pl": pl, "dt": dt})))) != form
    ]
    assert differ == []


def test_numbers_that_are_not_finite_are_told_apart():
    inf, nan = float("inf"), float("nan")
    forms = [
        json.dumps(expression_form(pl.when(pl.col("a") < one).then(other)))
        for one in (inf, -inf, nan, 1.0)
        for other in (inf, -inf, nan, 1.0)
    ]
    assert len(set(forms)) == 16


def test_a_plugin_may_lie_elsewhere(tmp_path):
    def form(folder, symbol):
        path = tmp_path / folder / "plugin.so"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return expression_form(register_plugin_function(plugin_path=path, function_name=symbol, args=["a"]))

    assert form("here", "f") == form("there", "f") != form("here", "g")


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
