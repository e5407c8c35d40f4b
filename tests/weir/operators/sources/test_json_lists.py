"""Columns of JSON lines that are lists: the scanner reads their values as the strict parser does."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import assert_paths_agree, decode, mutate, padded
from weir.operators.sources.json import json_decode
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.json.json_lists import ListValues

ITEM = pa.struct(
    [
        pa.field("sku", pa.string()),
        pa.field("n", pa.uint8()),
        pa.field("prices", pa.list_(pa.list_(pa.float64()))),
        pa.field("at", pa.struct([pa.field("x", pa.float64()), pa.field("day", pa.date32())])),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("ints", pa.list_(pa.int16())),
        pa.field("texts", pa.list_(pa.large_string())),
        pa.field("flags", pa.list_(pa.bool_())),
        pa.field("items", pa.list_(ITEM)),
        pa.field("times", pa.list_(pa.timestamp("ms"))),
        pa.field("sums", pa.list_(pa.decimal128(9, 2))),
        pa.field("in", pa.struct([pa.field("floats", pa.list_(pa.float64()))])),
        pa.field("raw", pa.list_(pa.binary())),
    ]
)


def drawn(rng: random.Random, data_type: pa.DataType) -> object:
    """A value of a type; sometimes null, and rarely of another type."""
    chance = rng.random()
    if chance < 0.1:
        return None
    if chance < 0.102:
        return rng.choice([True, "x", 1.5, 70_000, [], {}])
    if pa.types.is_list(data_type):
        return [drawn(rng, data_type.value_type) for _ in range(rng.choice((0, 1, 2, 9)))]
    if pa.types.is_struct(data_type):
        some = [field for field in data_type if rng.random() < 0.8]
        rng.shuffle(some)
        others = {"other": [1, {"sku": "no"}]} if rng.random() < 0.3 else {}
        return others | {field.name: drawn(rng, field.type) for field in some}
    if pa.types.is_integer(data_type):
        return rng.randrange(200)
    if pa.types.is_floating(data_type):
        return rng.choice([0, -0.0, 1.5, 1e300, rng.random(), 12345678901234567890])
    if pa.types.is_boolean(data_type):
        return rng.random() < 0.5
    if pa.types.is_decimal(data_type):
        return rng.choice([1, 2.25, "3.5", -0.01])
    if pa.types.is_temporal(data_type):
        return "2026-11-23" if pa.types.is_date(data_type) else "2026-11-23T10:00:00.5+01:00"
    return rng.choice(["", "a", 'quo"te', "é€😀", "line\nnext", "x" * 40])


def lines(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    whole = pa.struct(list(SCHEMA))
    rows = [drawn(rng, whole) for _ in range(count)]
    return [
        json.dumps(
            {"id": 1} | row if isinstance(row, dict) else row, ensure_ascii=rng.random() < 0.5
        ).encode()
        for row in rows
    ]


@pytest.mark.parametrize("seed", range(cases(1)))
def test_any_lists_are_read_alike(seed):
    some = lines(seed, 300)
    assert len(decode(some, SCHEMA)[0]) > 200
    assert_paths_agree(some, SCHEMA)


@pytest.mark.parametrize("name", [name for name in SCHEMA.names if name not in ("id", "in")])
def test_a_value_that_is_no_list_is_not_read_as_one(name):
    texts = ["28", "-5", "1.5", "true", '""', '"ab"', '"5,6]"', '"[1]"', "{}", '{"sku": "a"}', '{"x": [1]}']
    lines = [f'{{"id": {n}, "{name}": {text}}}'.encode() for n, text in enumerate(texts)]
    assert_paths_agree([*lines, b'{"id": 99, "in": {"floats": 17}}'], SCHEMA)
    rows, rejected = decode(lines, SCHEMA)
    assert (rows, len(rejected)) == ([], len(lines))


@pytest.mark.parametrize("seed", range(cases(1)))
def test_mutated_lists_are_read_alike(seed):
    rng = random.Random(100 + seed)
    some = lines(200 + seed, 60)
    assert_paths_agree([mutate(rng.choice(some), rng) for _ in range(250)], SCHEMA)


def test_more_values_than_are_read_at_a_time(monkeypatch):
    monkeypatch.setattr(json_decode, "_VALUES_MAX", 50)
    monkeypatch.setattr(json_decode, "_VALUES_MIN", 50)
    monkeypatch.setattr(json_decode, "_TEXT_BYTES_MAX", 4_000)
    rng = random.Random(7)
    some = []
    for number in range(80):
        count = rng.choice((0, 1, 30, 50, 51, 120))
        row = {"id": number, "ints": list(range(count)), "texts": ["é" * rng.randrange(90)] * count}
        some.append(json.dumps(row | {"in": {"floats": [0.1 * n for n in range(count)]}}).encode())
    rows, rejected = decode(some, SCHEMA)
    assert (len(rows), rejected) == (80, [])
    assert_paths_agree(some, SCHEMA)


def test_the_scanner_takes_lists_itself():
    decoder = JsonDecoder(SCHEMA)
    assert decoder._columns is not None
    kinds = {type(values) for values in decoder._columns._raw.values()}
    assert kinds == {ListValues}
    decoder._strict = None
    good = [
        b'{"id": 1, "ints": [1, null, -3], "texts": ["a", "\\u00e9"], "flags": [true], "sums": ["1.5", 2]}',
        b'{"id": 2, "items": [{"sku": "s", "prices": [[1, 0.5], null, []]}, null, {}], "in": {"floats": []}}',
        b'{"id": 3, "times": ["2026-11-23T10:00:00", null], "ints": null, "in": {"floats": [1e5, 0.1]}}',
    ]
    data, stop = padded(good)
    rows = decoder.decode(data, 0, stop).batch.to_pylist()
    assert rows[0]["ints"] == [1, None, -3]
    assert rows[1]["items"][0]["prices"] == [[1.0, 0.5], None, []]
    assert rows[1]["items"][1:] == [None, {"sku": None, "n": None, "prices": None, "at": None}]
    assert rows[2]["in"]["floats"] == [100000.0, 0.1]


def test_few_bad_lists_cost_their_lines_only():
    good = [b'{"id": %d, "ints": [%d]}' % (number, number % 9) for number in range(500)]
    good[123] = b'{"id": 123, "ints": [1, 70000, 3]}'
    good[321] = b'{"id": 321, "items": [{"sku": "a"}, {"sku": "a", "sku": "b"}]}'
    rows, rejected = decode(good, SCHEMA)
    assert [row["id"] for row in rows] == [number for number in range(500) if number not in (123, 321)]
    assert [reason for _, reason in rejected] == [
        "field ints is out of range for int16",
        "field sku occurs twice",
    ]
