"""Single values of lists as columns: the scanner and the strict parser agree with each other and with orjson."""

from __future__ import annotations

import random
from decimal import Decimal

import orjson
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import decode, decode_singly, mutate, padded
from weir.errors import GraphError
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.rows.nested_paths import column_paths

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("commits[0].author.name", pa.string()),
        pa.field("commits[2].n", pa.float64()),
        pa.field("commits[2].tags", pa.list_(pa.int64())),
        pa.field("pair[1]", pa.int32()),
        pa.field("grid[0][1]", pa.float64()),
    ]
)
PATHS = dict(column_paths(SCHEMA, {}))
LINES = [
    b'{"id": 1, "commits": [{"author": {"name": "a"}, "n": ""}, {}, {"n": 1.5, "tags": [1, null]}], "pair": ["x", 5]}',
    b'{"id": 2, "commits": [], "pair": [{"pair": [1, 2]}], "grid": [[]]}',
    b'{"id": 3, "grid": [[1, 2.5, []], 3], "commits": [ null , {"author": 1} , { } ] , "pair" : [ ] }\r',
    b'{"commits": null, "id": 4, "grid": [null, 1], "x": [[{"id": 9}]], "pair": [{}, -7, 9]}',
    b'{"id":5,"commits":[{"author":{"name":"\\u00e9","x":[]},"z":[{}]},[],{"n":123456789012345678901234567890}]}',
    b'{"id":6,"commits":[{"author":null}],"pair":[1,null]}',
]
BAD = [
    (b'{"id": 7, "commits": {}}', "field commits must be a list, not an object"),
    (b'{"id": 8, "commits": [5]}', "field commits must be a struct, not an integer"),
    (b'{"id": 9, "pair": [1, "2"]}', "field pair[1] must be int32, not a string"),
    (b'{"id": 10, "grid": [7]}', "field grid[0] must be a list, not an integer"),
    (b'{"id": 11, "commits": [{"author": {"name": "x", "name": "y"}}]}', "field name occurs twice"),
    (b'{"id": 12, "pair": [1, 2,]}', "not valid JSON: trailing comma is not allowed"),
    (b'{"id": 13, "pair": [1 2]}', None),
    (b'{"id": 14, "pair": [1, 2}', None),
    (b'{"id": 15, "pair": [,1]}', None),
    (b'{"id": 16, "pair": [0, 1], "pair": [0, 1]}', "field pair occurs twice"),
]


def _at(value: object, path: tuple[str | int, ...]) -> object:
    for key in path:
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def test_values_of_lists_are_what_orjson_finds_there():
    decoder = JsonDecoder(SCHEMA, paths=PATHS)
    decoder._strict = None
    data, stop = padded(LINES[:4])
    assert decoder.decode(data, 0, stop).batch.num_rows == 4
    expected = [
        {name: _at(orjson.loads(line), PATHS.get(name, (name,))) for name in SCHEMA.names} for line in LINES
    ]
    for use_scanner in (True, False):
        assert decode(LINES, SCHEMA, paths=PATHS, use_scanner=use_scanner) == (expected, [])


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_lines_that_are_not_so_are_bad(line, reason):
    for use_scanner in (True, False):
        rows, rejected = decode([LINES[0], line, LINES[1]], SCHEMA, paths=PATHS, use_scanner=use_scanner)
        assert [row["id"] for row in rows] == [1, 2]
        assert [told for _, told in rejected] == [reason or rejected[0][1]]


@pytest.mark.parametrize("seed", range(cases(2)))
def test_mutated_lines_agree(seed):
    rng = random.Random(seed)
    lines = [mutate(rng.choice([*LINES, BAD[0][0], BAD[4][0]]), rng) for _ in range(800)]
    expected = decode_singly(lines, SCHEMA, paths=PATHS)
    rows, rejected = decode(lines, SCHEMA, paths=PATHS)
    assert rows == [row for got, _ in expected for row in got]
    assert [reason for _, reason in rejected] == [reason for _, bad in expected for _, reason in bad]
    assert decode(lines, SCHEMA, paths=PATHS, use_scanner=False) == (rows, rejected)


def test_numbers_keep_all_their_digits_and_what_is_required_must_be_there():
    schema = pa.schema(
        [
            pa.field("price", pa.decimal128(38, 20), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
        ]
    )
    paths = dict(column_paths(schema, {"price": "prices[1]", "at": ["at", 0]}))
    lines = [
        b'{"prices": [1, 12345678901234567.12345678901234567890], "at": ["2026-11-23T10:00:00Z"]}',
        b'{"prices": [1]}',
    ] * 300
    for use_scanner in (True, False):
        rows, rejected = decode(lines, schema, paths=paths, use_scanner=use_scanner)
        assert {row["price"] for row in rows} == {Decimal("12345678901234567.12345678901234567890")}
        assert (len(rows), len(rejected)) == (300, 300)
        assert rejected[0][1] == "field prices[1] is missing or null"


@pytest.mark.parametrize(
    ("schema", "paths", "message"),
    [
        ({"a": weir.Nullable(int)}, {"a": "[0]"}, "is not a path"),
        ({"a": weir.Nullable(int)}, {"a": [0, "a"]}, "is not a path"),
        ({"a": weir.Nullable(int)}, {"a": ["a", -1]}, "is not a path"),
        ({"a": weir.Nullable(int)}, {"a": ["a", True]}, "is not a path"),
        ({"a[0]": int, "a.b": int}, {}, "column 'a.b' is in an object, which by another column is something else"),
        ({"a": str, "a[0]": int}, {}, "column 'a\\[0\\]' lies in 'a', which by another column is string, not a list"),
        ({"a[0]": int, "a": str}, {}, "another column says that 'a' is a list"),
    ],
)  # fmt: skip
def test_places_that_cannot_be(schema, paths, message):
    with pytest.raises(GraphError, match=message):
        weir.JsonLines("x", schema=schema, paths=paths).to_spec()


def test_a_key_with_brackets_is_given_as_a_list_of_keys(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'{"a[0]": 1, "a": [2], "b": {"[0]": 3}}\n')
    flow = weir.Dataflow("brackets")
    source = weir.JsonLines(
        str(tmp_path), schema={"x": int, "a[0]": int, "y": int}, paths={"x": ["a[0]"], "y": ["b", "[0]"]}
    )
    flow.source("rows", source).sink("out", weir.Collect())
    assert weir.run(flow)["out"].to_dicts() == [{"x": 1, "a[0]": 2, "y": 3}]


def test_places_in_lists_are_for_json():
    kafka = weir.Kafka(
        bootstrap="host:9092", topics="t", value=weir.Avro(registry="http://host"), schema={"a[0]": int}
    )
    with pytest.raises(GraphError, match=r"column 'a\[0\]' is a value of a list, which is for JSON"):
        kafka.to_spec()
