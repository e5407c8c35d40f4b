"""Numbers in tables of a source, at any depth: what does not fit a column is refused, and never another number."""

from __future__ import annotations

import decimal
import math
import random

import pyarrow as pa
import pytest

from weir.operators.sources.user.source_rows import checked_rows
from weir.rows.python_rows import rows_batch

#: By name, the type of a column that has numbers of a type, and a value of it that has these two.
SHAPES = {
    "plain": (lambda dtype: dtype, lambda one, other: one),
    "list": (pa.list_, lambda one, other: [one, other]),
    "large list": (pa.large_list, lambda one, other: [one, other]),
    "fixed list": (lambda dtype: pa.list_(dtype, 2), lambda one, other: [one, other]),
    "struct": (lambda dtype: pa.struct([("y", dtype)]), lambda one, other: {"y": one}),
    "deep": (
        lambda dtype: pa.list_(pa.struct([("y", pa.list_(dtype, 2))])),
        lambda one, other: [None, {"y": None}, {"y": [other, one]}],
    ),
}
shapes = pytest.mark.parametrize("shape", SHAPES)


def wanted_type(column, dtype):
    """A column's type, whose lists have 32-bit offsets."""
    made = column(dtype)
    return pa.list_(dtype) if pa.types.is_large_list(made) else made


def fits(number, dtype):
    return number is None or (
        number == round(number, dtype.scale)
        and abs(number) < decimal.Decimal(10) ** (dtype.precision - dtype.scale)
    )


@shapes
@pytest.mark.parametrize("seed", range(8))
def test_decimals_of_a_table_are_exact_or_refused(shape, seed):
    column, value = SHAPES[shape]
    rng = random.Random(seed)
    outcomes = set()
    with decimal.localcontext(prec=200):
        for _ in range(60):
            source = rng.choice([pa.decimal128, pa.decimal128, pa.decimal64, pa.decimal32])
            digits = rng.randrange(1, {pa.decimal128: 39, pa.decimal64: 19, pa.decimal32: 10}[source])
            given = source(digits, rng.randrange(digits + 1))
            precision = rng.choice([9, 18, 38, 38, 38])
            dtype = pa.decimal128(precision, rng.randrange(precision + 1))
            numbers = [
                decimal.Decimal(rng.randrange(10 ** rng.randrange(digits + 1))).scaleb(-given.scale)
                * rng.choice([1, -1])
                for _ in range(2)
            ]
            one, other = numbers[0], rng.choice([None, numbers[1]])
            table = pa.table({"x": pa.array([None, value(one, other)], column(given))})
            schema = pa.schema([("x", wanted_type(column, dtype))])
            used = [one] if shape in ("plain", "struct") else [one, other]
            is_good = all(fits(number, dtype) for number in used)
            outcomes.add(is_good)
            if is_good:
                assert checked_rows(table, schema, []).batch["x"].to_pylist() == [None, value(one, other)]
            else:
                with pytest.raises(TypeError, match="the rows do not fit the source's schema"):
                    checked_rows(table, schema, [])
    assert outcomes == {True, False}


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string()])
def test_decimals_of_a_table_of_texts_are_exact_or_refused(dtype):
    schema = pa.schema([("x", pa.decimal128(38, 28))])
    good = pa.table({"x": pa.array(["7.5", None, "1e3"], dtype)})
    assert checked_rows(good, schema, []).batch["x"].to_pylist() == [decimal.Decimal("7.5"), None, 1000]
    for text in ("1234567890123", "1e10", "3402823669209384634633746074317682114561"):
        with pytest.raises(TypeError, match="the rows do not fit the source's schema"):
            checked_rows(pa.table({"x": pa.array(["7.5", text], dtype)}), schema, [])


@shapes
@pytest.mark.parametrize("narrow", [pa.float32(), pa.float16()])
def test_finite_numbers_of_a_table_never_become_infinite(shape, narrow):
    column, value = SHAPES[shape]
    numbers = [2.5, 1e39, math.inf, None, -1e300, math.nan, 1.5]
    values = [None, *(value(number, -math.inf) for number in numbers)]
    table = pa.table({"x": pa.array(values, column(pa.float64()))})
    # In pieces of any length.
    table = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    checked = checked_rows(table, pa.schema([("x", wanted_type(column, narrow))]), [])
    assert [number for number, _, _ in checked.bad] == [2, 5]
    assert {reason.split(" for ")[0] for _, reason, _ in checked.bad} == {"field x is out of range"}
    assert checked.good.tolist() == [0, 1, 3, 4, 6, 7]
    assert repr(checked.batch["x"].to_pylist()) == repr([values[number] for number in (0, 1, 3, 4, 6, 7)])


def test_a_row_may_have_a_time_with_too_many_digits_and_a_number_out_of_range():
    given = pa.struct([("at", pa.timestamp("us")), ("y", pa.list_(pa.float64()))])
    wanted = pa.struct([("at", pa.timestamp("ms")), ("y", pa.list_(pa.float64()))])
    rows = [{"at": 1, "y": [1e39]}, {"at": 1000, "y": [1e39]}, {"at": 1000, "y": [1.5]}]
    table = pa.table({"x": pa.array(rows, given), "z": [1e39, 1.5, 2.5]})
    checked = checked_rows(table, pa.schema([("x", wanted), ("z", pa.float32())]), [])
    assert [(number, reason.split(" (")[0][:26]) for number, reason, _ in checked.bad] == [
        (0, "field x.at has more digits")
    ]


def test_texts_that_no_narrow_float_has():
    schema = pa.schema([("x", pa.float32())])
    checked = checked_rows(pa.table({"x": ["1e39", "inf", "2.5", None]}), schema, [])
    assert [number for number, _, _ in checked.bad] == [0]
    assert checked.batch["x"].to_pylist() == [math.inf, 2.5, None]


@shapes
def test_rows_of_python_with_decimals_below_the_last_digit_are_refused(shape):
    column, value = SHAPES[shape]
    schema = pa.schema([("x", wanted_type(column, pa.decimal128(38, 2)))])
    rows = [{"x": None}, {"x": value(decimal.Decimal("1.25"), decimal.Decimal("0E-50"))}]
    assert rows_batch(rows, schema).to_pylist() == rows
    for text in ("0.001", "1.5e-40", "-9e-77"):
        with pytest.raises(pa.ArrowInvalid, match="column 'x'"):
            rows_batch([*rows, {"x": value(decimal.Decimal(text), None)}], schema)
