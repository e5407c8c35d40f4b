"""Decimals of texts are exact or refused: Arrow alone makes other numbers of some that do not fit."""

from __future__ import annotations

import decimal
import json
import random

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.sources.json_paths_compared import decode, decode_each
from weir.errors import InputError
from weir.rows.decimals import decimals_of_texts

TYPES = [(9, 2), (18, 6), (38, 0), (38, 10), (38, 28)]
#: Each was taken as another number for one of these types.
UNFIT = [
    "7799944680599.73638",
    "261074096659.79",
    "12345678901234567890123456789012345678901",
    "3402823669209384634633746074317682114561",
    "-1.2440852236251558e+48",
    "1.5e-40",
    "-7.1179745e-32",
]


def written(rng):
    """A number, in one of the ways to write it."""
    digits = rng.choice([1, 3, 9, 17, 28, 37, 38])
    number = decimal.Decimal(rng.randrange(10**digits)).scaleb(-rng.randrange(digits + 1))
    form = rng.choice(["{:f}", "{:f}", "{:e}", "-{:f}", "{:f}e-2", "{:f}E+1"])
    return form.format(number)


def fitting(text, precision, scale):
    """The number as the type has it, or None."""
    with decimal.localcontext() as context:
        context.prec = 400
        number = decimal.Decimal(text)
        found = number.quantize(decimal.Decimal(1).scaleb(-scale))
        return found if found == number and abs(found) < decimal.Decimal(10) ** (precision - scale) else None


def numbers():
    rng = random.Random(0)
    return [*UNFIT, "0", "-0.00", "1e2", *(written(rng) for _ in range(60))]


@pytest.mark.parametrize(("precision", "scale"), TYPES)
def test_decimals_of_json_and_csv_are_exact_or_rejected(precision, scale, tmp_path):
    texts = numbers()
    wanted = [fitting(text, precision, scale) for text in texts]
    good = {number: value for number, value in enumerate(wanted) if value is not None}
    assert 10 < len(good) < len(texts) - len(UNFIT) / 2
    schema = pa.schema([pa.field("i", pa.int64()), pa.field("x", pa.decimal128(precision, scale))])
    nested = pa.schema([pa.field("i", pa.int64()), pa.field("of", pa.list_(pa.struct([schema.field("x")])))])
    for form in ('{{"i": {}, "x": {}}}', '{{"i": {}, "x": "{}"}}'):
        lines = [form.format(number, text).encode() for number, text in enumerate(texts)]
        for read in (decode, decode_each):
            rows, rejected = read(lines, schema)
            assert {row["i"]: row["x"] for row in rows} == good
            assert len(rejected) == len(texts) - len(good)
    lines = [
        f'{{"i": {number}, "of": [null, {{"x": {text}}}]}}'.encode() for number, text in enumerate(texts)
    ]
    rows, _ = decode(lines, nested)
    assert {row["i"]: row["of"][1]["x"] for row in rows} == good
    rest = [f"{number},{text}" for number, text in enumerate(texts)] + [
        f"{-number},1" for number in range(1, 200)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["i,x", *rest]))
    flow = weir.Dataflow("numbers")
    read = weir.Csv(str(tmp_path / "x.csv"), schema={"i": int, "x": pl.Decimal(precision, scale)})
    flow.source("rows", read).filter("kept", pl.col("i") >= 0).sink("out", weir.Collect())
    assert {row["i"]: row["x"] for row in weir.run(flow)["out"]} == good


def test_texts_that_are_no_decimals_are_refused():
    for text in ("1_000", "NaN", "Infinity", "", "1e", "0x10", "1 ", "1" * 39, "1e99999999999", "\u0661"):
        with pytest.raises(pa.ArrowInvalid):
            decimals_of_texts(pa.array(["1", text]), pa.decimal128(38, 0))


def test_a_folder_s_decimal_that_does_not_fit_fails_with_the_file(tmp_path):
    folder = tmp_path / f"x={UNFIT[0]}"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"i": 1}) + "\n")
    flow = weir.Dataflow("folders")
    read = weir.JsonLines(f"{tmp_path}/*/a.jsonl", schema={"i": int, "x": pl.Decimal(38, 28)})
    flow.source("rows", read).sink("out", weir.Collect())
    with pytest.raises(InputError, match=r"column x is '7799944680599\.73638' by its folder"):
        weir.run(flow)


def read_through_a_source(value):
    """What a column of more digits has of a table with this decimal."""
    table = pl.DataFrame({"x": [decimal.Decimal(value)]}, schema={"x": pl.Decimal(18, 5)})

    def read(position):
        if not position:
            yield table, 1

    flow = weir.Dataflow("tables")
    source = weir.UserSource(read, schema={"x": pl.Decimal(38, 28)})
    flow.source("rows", source).sink("out", weir.Collect())
    return [row["x"] for row in weir.run(flow)["out"]]


def test_a_table_of_a_source_with_decimals_that_do_not_fit_is_refused():
    assert read_through_a_source("7.5") == [decimal.Decimal("7.5")]
    with pytest.raises(weir.WeirError, match="the rows do not fit the source's schema"):
        read_through_a_source(UNFIT[0])
