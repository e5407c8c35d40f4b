"""Expressions that take less time say what they said before."""

import polars as pl
import pytest

from weir.operators.stateless.quick_forms import quick_form

ROWS = pl.DataFrame(
    {
        "text": ["a", "", None, "B", "bb", "é"],
        "other": ["x", "y", None, "", "b", "é"],
        "n": [1, 0, 2, None, 4, 5],
    }
)
LOW = pl.col("text").str.to_lowercase()
OTHER = pl.col("other")


def found(pattern, group=1, nothing=""):
    """What SQL makes of REGEXP_EXTRACT."""
    matched = OTHER.str.extract(pl.lit(pattern, pl.String), group)
    return pl.when(OTHER.is_not_null()).then(matched.fill_null(pl.lit(nothing, pl.String)))


FOUND = found("([a-z]*)")


def nullif(value, text):
    return pl.when(value == text).then(None).otherwise(value)


def fewer(value, part, new="", **options):
    shorter = value.str.replace_all(
        pl.lit(part, pl.String), pl.lit(new, pl.String), **{"literal": True, **options}
    )
    return value.str.len_chars().cast(pl.Int64) - shorter.str.len_chars().cast(pl.Int64)


@pytest.mark.parametrize(
    "expression",
    [
        *(fewer(pl.col("text"), part).alias("made") for part in ("b", "bb", "é", ".", "(", "not there")),
        (fewer(LOW, "b") + 1).alias("made"),
        nullif(LOW, "b").alias("made"),
        nullif(LOW, pl.lit("b", pl.String)).alias("made"),
        nullif(LOW, ""),
        nullif(LOW, "b") + nullif(LOW, "a"),
        nullif(FOUND, "").alias("made"),
        nullif(FOUND, pl.lit("", pl.String)).alias("made"),
        nullif(found("(z)|(y)", 2), "").alias("made"),
        nullif(found("([a-z])"), "b").alias("made"),
        nullif(found("([a-z])", nothing="b"), "").alias("made"),
        nullif(found("([a-z])", nothing="b"), "b").alias("made"),
        nullif(nullif(LOW, "b").str.head(1), "a").alias("made"),
        pl.when(pl.col("n") > 1).then(nullif(LOW, "b")).otherwise(pl.lit("?")),
        nullif(pl.col("text").str.replace("a", "nothing"), "nothing").is_null(),
    ],
    ids=str,
)
def test_values_names_and_types_are_the_same_and_what_takes_long_is_there_once(expression):
    quick = quick_form(expression)
    assert ROWS.select(quick).equals(ROWS.select(expression))
    assert ROWS.select(quick).schema == ROWS.select(expression).schema
    assert len(quick.meta.root_names()) < len(expression.meta.root_names())


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("n") * 2,
        nullif(pl.col("text"), "b"),
        nullif(pl.col("n").abs(), 4),
        fewer(pl.col("text"), ""),
        fewer(pl.col("text"), "b", new="c"),
        fewer(pl.col("text"), "b", literal=False),
        pl.col("other").str.len_chars().cast(pl.Int64) - fewer(pl.col("text"), "b", new="c"),
        pl.when(LOW == "b").then(None).otherwise(pl.col("other").str.to_lowercase()),
        pl.when(LOW == "b").then(pl.lit("c")).otherwise(LOW),
        pl.when(LOW != "b").then(None).otherwise(LOW),
        nullif(LOW, pl.col("other")),
        nullif(pl.col("text").map_elements(str.lower, pl.String), "b"),
        FOUND,
    ],
    ids=str,
)
def test_all_else_stays_as_it_is(expression):
    assert quick_form(expression) is expression
