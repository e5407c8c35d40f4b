"""Each entry of the table of translated expressions says the same in Spark SQL and in Polars, value by value."""

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest

from weir.rows.schemas import to_schema
from weir.spark.expressions import translated
from weir.spark.types import ddl, quoted, wire_schema

LOW, HIGH = -(2**63), 2**63 - 1
NAN, INF = float("nan"), float("inf")
SCHEMA = to_schema(
    {
        "a": pl.Int64,
        "b": pl.Int64,
        "small": pl.Int32,
        "tiny": pl.Int8,
        "x": pl.Float64,
        "y": pl.Float64,
        "s": pl.String,
        "t": pl.String,
        "p": pl.Boolean,
        "q": pl.Boolean,
        "d": pl.Date,
        "at": pl.Datetime("us"),
        "zoned": pl.Datetime("us", "UTC"),
        "in ner": pl.Struct({"f": pl.Int64, "g": pl.String}),
    }
)
_WHOLE = [0, 1, -1, 7, -7, 3, -3, LOW, HIGH, LOW + 1, None, 10**10]
_FLOATS = [0.0, -0.0, 1.5, -1.5, NAN, INF, -INF, None, 1e308, -1e308, 5e-324, 3.0]
_TEXTS = ["", "a", "ab", "äö", "b%_", None, "A", "a'b\\", "ﬁ", "z", "ab", "😀"]
_LOGIC = [True, False, None]
ROWS = pa.table(
    {
        "a": pa.array([value for value in _WHOLE for _ in _WHOLE], pa.int64()),
        "b": pa.array(_WHOLE * len(_WHOLE), pa.int64()),
        "small": pa.array([2**31 - 1, -(2**31), 0, 5, None, -7] * 24, pa.int32()),
        "tiny": pa.array([127, -128, 0, None] * 36, pa.int8()),
        "x": pa.array([value for value in _FLOATS for _ in _FLOATS], pa.float64()),
        "y": pa.array(_FLOATS * len(_FLOATS), pa.float64()),
        "s": pa.array([value for value in _TEXTS for _ in _TEXTS], pa.string()),
        "t": pa.array(_TEXTS * len(_TEXTS), pa.string()),
        "p": pa.array(_LOGIC * 48, pa.bool_()),
        "q": pa.array([value for value in _LOGIC for _ in range(48)], pa.bool_()),
        "d": pa.array([dt.date(1969, 12, 31), dt.date(2026, 11, 29), None] * 48, pa.date32()),
        "at": pa.array([-1, 0, 999, -1001, 1_616_889_599_999_999, None] * 24, pa.timestamp("us")),
        "zoned": pa.array([-1, 0, 999, -1001, -(10**15), None] * 24, pa.timestamp("us", "UTC")),
        "in ner": pa.array(
            [{"f": 1, "g": "x"}, None, {"f": None, "g": None}] * 48, SCHEMA.field("in ner").type
        ),
    },
    schema=SCHEMA,
)
A, B, X, Y, S, T, P, Q = (pl.col(name) for name in "abxystpq")
SMALL, TINY = pl.col("small"), pl.col("tiny")
#: Those that are Spark's.
TABLE = {
    "epoch": pl.col("at").dt.epoch("ms"),
    "epoch_of_utc": pl.col("zoned").dt.epoch("ms") - 1,
    "plus": A + B,
    "minus": A - 1,
    "times": A * B,
    "plus_of_32_bits": SMALL + 1,
    "plus_of_8_bits": TINY + 1,
    "floats": X * Y + 1.5,
    "float_and_whole": X + A,
    "divided": A / 4,
    "divided_float": X / 1024,
    "divided_negative": A / -4,
    "divided_rounded": X / 3,
    "divided_rounded_whole": A / -7,
    "divided_by_a_float": X / 0.1,
    "divided_by_the_least": X / 5e-324,
    "divided_by_zero": X / 0,
    "divided_by_zero_of_a_sign": A / -0.0,
    "divided_by_a_column": A / B,
    "divided_floats": X / Y,
    "divided_number": 5 / X,
    "divided_by_a_quotient": 1.5 / (X / Y),
    "divided_as_in_sql": X / (X.is_null().cast(pl.Float64) + 5),
    "divided_by_no_zero": X / pl.when(Y != 0).then(Y),
    "logic_as_float": P.cast(pl.Float64),
    "rest": A % 3,
    "rest_of_32_bits": SMALL % 7,
    "floor": A // 3,
    "floor_of_one": A // 1,
    "equal": A == B,
    "equal_floats": X == Y,
    "not_equal_floats": X != Y,
    "less_floats": X < Y,
    "more_floats": X >= Y,
    "less": A < B,
    "whole_and_float": A < X,
    "texts": S < T,
    "equal_texts": S == T,
    "logic_equal": P == Q,
    "dates": pl.col("d") == pl.col("d"),
    "and": P & Q,
    "or": P | Q,
    "not": ~P,
    "null": X.is_null(),
    "not_null": S.is_not_null(),
    "between": A.is_between(-3, 7),
    "between_open": A.is_between(-3, 7, closed="none"),
    "between_left": X.is_between(0, 1.5, closed="left"),
    "in": A.is_in([1, 7, LOW]),
    "in_texts": S.is_in(["a", "äö", "a'b\\"]),
    "filled": A.fill_null(5),
    "filled_with": S.fill_null(T),
    "coalesce": pl.coalesce(A, B, pl.lit(3)),
    "when": pl.when(A > B).then(A).otherwise(B),
    "when_null": pl.when(P).then(S).otherwise(None),
    "when_chain": pl.when(A > 1).then(pl.lit("x")).when(A < 0).then(pl.lit("y")).otherwise(pl.lit("z")),
    "contains": S.str.contains("b", literal=True),
    "contains_wild": S.str.contains("%_", literal=True),
    "starts": S.str.starts_with("a"),
    "ends": S.str.ends_with(T),
    "joined": pl.concat_str(S, T),
    "joined_by": pl.concat_str(S, T, separator="'-\\"),
    "field": pl.col("in ner").struct.field("f"),
    "widened": SMALL.cast(pl.Int64),
    "as_float": A.cast(pl.Float64),
    "constant": pl.lit("it's"),
    "lowest": pl.lit(LOW, pl.Int64),
    "renamed": A.alias("other"),
}
#: Those that stay in Polars, because Spark has another meaning of them for some values, or none.
IN_POLARS = {
    "rest_of_a_column": A % B,
    "rest_of_a_negative": A % -3,
    "floor_of_floats": X // 2,
    "narrowed": A.cast(pl.Int32),
    "text_to_number": S.cast(pl.Int64, strict=False),
    "regex": S.str.contains("a.*b"),
    "lower": S.str.to_lowercase(),
    "in_with_null": A.is_in([1, None]),
    "several": pl.col("a", "b") + 1,
    "function": A.map_elements(lambda value: value, return_dtype=pl.Int64),
    "rounded": X.round(1),
    "hash": A.hash(),
    "not_a_number": pl.lit(NAN),
    "length": S.str.len_chars(),
}


@pytest.mark.parametrize("name", IN_POLARS)
def test_what_may_differ_stays_in_polars(name):
    assert translated(IN_POLARS[name], SCHEMA) is None


@pytest.mark.spark
def test_each_entry_says_the_same_for_every_value(own_spark):
    frame = pl.from_arrow(ROWS)
    texts = {name: translated(expression, SCHEMA) for name, expression in TABLE.items()}
    assert [name for name, text in texts.items() if text is None] == []
    given = own_spark.createDataFrame(
        [tuple(row.values()) for row in ROWS.to_pylist()], ddl(wire_schema(SCHEMA))
    )
    found = given.selectExpr(*(f"{text} AS {quoted(name)}" for name, text in texts.items())).toArrow()
    for name, expression in TABLE.items():
        expected = frame.select(expression.alias(name))
        expected = (
            pl.repeat(expected.item(), frame.height, eager=True)
            if expected.height == 1
            else expected.to_series()
        )
        made = pl.Series(name, found.column(name))
        assert made.dtype == expected.dtype, name
        same = made.eq_missing(expected)
        wrong = frame.filter(~same).with_columns(spark=made.filter(~same), polars=expected.filter(~same))
        assert wrong.is_empty(), (name, wrong.head(3).to_dicts())
