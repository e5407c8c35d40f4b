"""Nested, optional and many columns: the scanner, the bulk parser and the strict parser agree."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import (
    assert_paths_agree,
    decode,
    decode_singly,
    mutate,
    padded,
)
from weir.errors import GraphError
from weir.operators.sources.json.json_decode import JsonDecoder

WIDE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("load", pa.float64()),
        pa.field("up", pa.bool_()),
        pa.field("tags", pa.list_(pa.int16())),
        pa.field(
            "at",
            pa.struct(
                [
                    pa.field("x", pa.int32()),
                    pa.field("name", pa.string()),
                    pa.field(
                        "in", pa.struct([pa.field("y", pa.float64()), pa.field("l", pa.list_(pa.string()))])
                    ),
                ]
            ),
        ),
        pa.field("port", pa.uint16()),
    ]
)
WIDE_LINES = [
    b'{"id": 1, "name": "a", "load": 1e-3, "up": null, "tags": [1, 2], "at": {"x": 1, "in": {"y": 2.5}}, "port": 1}',
    b'{"meta": {"a": [1, {"b": "\\u00e9\\n"}, [], {}], "id": "no"}, '
    b'"at": {"in": {"l": ["x", null], "y": -0.0}}, "id": 2}',
    b'{"id":3,"at":{},"tags":[],"load":0.12345678901234567,"name":"\\ud83d\\ude00 \\"q\\" \\/",'
    b'"x":{"tags":[true,null,-1.5E+10]}}',
    b'{"at": {"name": "n", "z": {"name": [[[]]]}, "x": -5}, "id": 4, "port": null, "up": false, "load": -0}',
    b'{"id": 5, "tags": null, "at": null, "load": 100000000000000000000, "name": ""}\r',
    b'{"id": 9223372036854775807, "load": 0.0, "up": true, "port": 65535, "name": "\xc3\xa9"}',
    b'{"id": 1234567890123456789, "at": {"in": null, "in2": {"in": 1}}}',
]


def test_scanner_takes_nested_and_optional_fields_and_escapes_itself():
    decoder = JsonDecoder(WIDE)
    decoder._strict = None
    data, stop = padded(WIDE_LINES)
    assert decoder.decode(data, 0, stop).batch.num_rows == len(WIDE_LINES)
    assert_paths_agree(WIDE_LINES * 3, WIDE)


@pytest.mark.parametrize("seed", range(cases(2)))
def test_mutated_wide_lines_agree(seed):
    rng = random.Random(1000 + seed)
    assert_paths_agree([mutate(rng.choice(WIDE_LINES), rng) for _ in range(500)], WIDE)


def test_a_bad_element_of_a_list_is_told_of_and_costs_its_line_only():
    lines = [
        WIDE_LINES[0],
        b'{"id": 7, "tags": [1, "x"]}',
        b'{"id": 8, "tags": [70000]}',
        WIDE_LINES[0],
        b"{}",
    ] * 20
    rows, rejected = decode(lines, WIDE)
    assert len(rows) == 40
    assert len(rejected) == 60
    assert_paths_agree(lines, WIDE)


#: Any JSON, with wanted keys in wrong places and of wrong types.
_KEYS = drawn.sampled_from(["id", "name", "at", "x", "in", "y", "l", "tags", "é", 'a"b', "load"])
_PLAIN = drawn.one_of(
    drawn.just(None), drawn.booleans(), drawn.any_integers(), drawn.finite_floats(), drawn.texts(max_size=12)
)


def _json_within(depth):
    if not depth:
        return _PLAIN
    inner = _json_within(depth - 1)
    return drawn.one_of(
        _PLAIN, _PLAIN, drawn.lists(inner, max_size=3), drawn.dictionaries(_KEYS, inner, max_size=4)
    )


_ROWS = drawn.lists(
    drawn.dictionaries(drawn.sampled_from([*WIDE.names, "other", "i"]), _json_within(4), max_size=8),
    max_size=20,
    min_size=1,
)


@settings(max_examples=cases(15), deadline=None)
@given(
    drawn.drawn(_ROWS, byte_count=2000),
    st.booleans(),
    st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", "\t: ")]),
)
def test_any_objects_agree(rows, ascii_only, separators):
    lines = [
        json.dumps({"id": n} | row, ensure_ascii=ascii_only, separators=separators).encode()
        for n, row in enumerate(rows)
    ]
    assert_paths_agree(lines, WIDE)


ESCAPED = pa.schema(
    [
        pa.field("größe", pa.int64(), nullable=False),
        pa.field("a/b", pa.string()),
        pa.field("日本", pa.struct([pa.field("x😀y", pa.float64()), pa.field("größe", pa.bool_())])),
        pa.field("gr", pa.int64()),
    ]
)
ESCAPED_LINES = [
    b'{"gr\\u00f6\\u00dfe": 1, "a\\/b": "x", "\\u65e5\\u672c": {"x\\ud83d\\ude00y": 0.5, "\\u0067r": 1}}',
    b'{"\\u65e5\xe6\x9c\xac": {"gr\xc3\xb6\\u00dfe": true, "a\\"b": 1}, "g\\u0072": 7, "gr\xc3\xb6\xc3\x9fe": 2}',
    b'{"gr\\u00f6\\u00df": 1, "gr\\u00f6\\u00dfe\\u0000": 2, "\\"": {"gr\\u00f6\\u00dfe": 1}, "gr\\u00f6\\u00dfe": 3}',
    b'{"\\u0067\\u0072\\u00F6\\u00dF\\u0065":4,"\\u0061\\u002fb":null,"\\\\":1,"\\ud83d\\ude00":1,"\\n":[]}',
]


def test_scanner_takes_keys_with_escapes_itself():
    decoder = JsonDecoder(ESCAPED)
    decoder._strict = None
    data, stop = padded(ESCAPED_LINES)
    rows = decoder.decode(data, 0, stop).batch.to_pylist()
    assert rows == [
        {"größe": 1, "a/b": "x", "日本": {"x😀y": 0.5, "größe": None}, "gr": None},
        {"größe": 2, "a/b": None, "日本": {"x😀y": None, "größe": True}, "gr": 7},
        {"größe": 3, "a/b": None, "日本": None, "gr": None},
        {"größe": 4, "a/b": None, "日本": None, "gr": None},
    ]


@pytest.mark.parametrize("seed", range(cases(1)))
def test_mutated_keys_with_escapes_agree(seed):
    rng = random.Random(3000 + seed)
    twice = [b'{"gr\\u00f6\\u00dfe": 1, "gr\xc3\xb6\xc3\x9fe": 2}', b'{"gr\\u00f6\\u00dfe": 1, "\\ud83d": 2}']
    assert_paths_agree(twice, ESCAPED)
    assert decode(twice, ESCAPED)[0] == []
    assert_paths_agree([mutate(rng.choice(ESCAPED_LINES), rng) for _ in range(500)], ESCAPED)


PATHS = {"domain": ("meta", "domain"), "new": ("length", "new"), "y": ("at", "in", "y"), "dotted": ("a.b",)}
FLATTENED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("new", pa.int64()),
        pa.field("y", pa.float64()),
        pa.field("at", pa.struct([pa.field("x", pa.int32())])),
        pa.field("dotted", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
PATH_LINES = [
    b'{"id": 1, "meta": {"domain": "a", "x": [1]}, "length": {"old": 1, "new": 2}, "a.b": true, "tags": ["t"]}',
    b'{"id": 2, "meta": {"domain": "b"}, "length": null, "at": {"in": {"y": 1}, "x": 7}}',
    b'{"id": 3, "at": {"in": null}, "length": {"new": null}, "meta": {"domain": "\\u00e9"}}',
    b'{"id": 4, "meta": {"domain": null}}',
    b'{"id": 5, "meta": "no"}',
    b'{"id": 6, "meta": {"domain": "a"}, "length": []}',
    b'{"id": 7, "meta": {"domain": "a", "domain": "b"}}',
    b'{"id": 8, "length": {"new": 1.5}, "meta": {"domain": "a"}}',
]


@pytest.mark.parametrize("at", [False, True], ids=["parts only", "an object whole and in parts"])
def test_columns_at_paths(at):
    schema = FLATTENED if at else FLATTENED.remove(FLATTENED.get_field_index("at"))
    for copies in (1, 200):
        rows, rejected = decode(PATH_LINES * copies, schema, paths=PATHS)
        assert [row["id"] for row in rows] == [1, 2, 3] * copies
        assert [(row["domain"], row["new"], row["y"]) for row in rows[:3]] == [
            ("a", 2, None), ("b", None, 1.0), ("é", None, None)
        ]  # fmt: skip
        assert rows[0]["dotted"] is True
        assert rejected[0][1] == "field meta.domain is missing or null"
        assert decode(PATH_LINES * copies, schema, paths=PATHS, use_scanner=False) == (rows, rejected)


@pytest.mark.parametrize("seed", range(cases(1)))
def test_mutated_lines_with_paths_agree(seed):
    rng = random.Random(seed)
    schema = FLATTENED.remove(FLATTENED.get_field_index("at"))
    lines = [mutate(rng.choice(PATH_LINES), rng) for _ in range(400)]
    expected = decode_singly(lines, schema, paths=PATHS)
    rows, rejected = decode(lines, schema, paths=PATHS)
    assert rows == [row for got, _ in expected for row in got]
    assert [reason for _, reason in rejected] == [reason for _, bad in expected for _, reason in bad]
    assert decode(lines, schema, paths=PATHS, use_scanner=False) == (rows, rejected)


def test_a_path_in_the_name_of_a_column(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(PATH_LINES[:3]))
    flow = weir.Dataflow("paths")
    source = weir.JsonLines(
        str(tmp_path),
        schema={"id": int, "meta.domain": str, "n": weir.Nullable(int)},
        paths={"n": "length.new"},
    )
    flow.source("rows", source).sink("out", weir.Collect())
    rows = weir.run(flow)["out"].to_dicts()
    assert [(row["id"], row["meta.domain"], row["n"]) for row in rows] == [
        (1, "a", 2),
        (2, "b", None),
        (3, "é", None),
    ]


@pytest.mark.parametrize(
    ("schema", "paths", "message"),
    [
        ({"a": int, "a.b": int}, {}, "column 'a.b' lies in 'a', which by another column is int64"),
        ({"a.b": int, "a": int}, {}, "another column says that 'a' is an object"),
        ({"a": int}, {"b": "c"}, "there is no column 'b'"),
        ({"a..b": int}, {}, "'a..b' is not a path"),
    ],
)
def test_paths_that_cannot_be(schema, paths, message):
    with pytest.raises(GraphError, match=message):
        weir.JsonLines("x", schema=schema, paths=paths).to_spec()


def test_many_columns_are_read_with_the_same_strictness_alone_and_together():
    """More columns than the scanner takes; few long lines are parsed together."""
    names = [f"c{number}" for number in range(299)] + ["größe"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    values = [{name: row + number for number, name in enumerate(names)} for row in range(200)]
    good = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    twice = good[0][:-1] + ', "größe": 1}'.encode()
    text = good[1][:-1] + b', "other": "\\"c1\\":", "c2 ": [{"c5": ","}, ": "]}'
    wrong = good[2].replace(b'"c7": 9', b'"c7": "9"')
    for lines in ([twice, text, wrong], [*good, twice, text, wrong], [*good]):
        rows, rejected = decode(lines, schema)[:2]
        assert len(rejected) == (0 if lines == good else 2)
        expected = [
            value for value, line in zip([*values, values[1]], [*good, text], strict=True) if line in lines
        ]
        assert rows == expected
        if rejected:
            assert [reason for _, reason in rejected] == [
                "field größe occurs twice",
                "field c7 must be int64, not a string",
            ]


def test_a_required_time_that_its_object_lacks_makes_a_bad_line():
    schema = pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)])
    lines = [b'{"meta": {"at": "2026-11-23T10:00:00"}}', b'{"meta": {}}', b'{"meta": 5}']
    for use_scanner in (True, False):
        rows, rejected = decode(lines, schema, paths={"at": ("meta", "at")}, use_scanner=use_scanner)
        assert len(rows) == 1
        assert [reason for _, reason in rejected] == ["field meta.at is missing or null"] * 2


@pytest.mark.parametrize("count", [63, 64, 65, 130, 640])
def test_many_columns_in_any_order_are_scanned(count):
    rng = random.Random(count)
    types = [pa.int64(), pa.string(), pa.float64(), pa.bool_()]
    schema = pa.schema([pa.field(f"column {n}", types[n % 4], nullable=n % 8 != 0) for n in range(count)])
    values = []
    for row in range(12):
        kinds = (row, f"é{row}", row / 4, row % 2 == 0)
        value = {f"column {n}": kinds[n % 4] for n in range(count) if n % 8 == 0 or (n + row) % 3}
        value |= {f"other {n}": n for n in range(row)}
        names = list(value)
        if row % 2:
            rng.shuffle(names)
        values.append({name: value[name] for name in names})
    lines = [json.dumps(value).encode() for value in values]
    decoder = JsonDecoder(schema)
    decoder._strict = None
    data, stop = padded(lines)
    rows = decoder.decode(data, 0, stop).batch.to_pylist()
    assert rows == [{name: value.get(name) for name in schema.names} for value in values]
    last = f"column {count - 1}"
    bad = [lines[0][:-1] + f', "{last}": null, "{last}": null}}'.encode(), b"{}"]
    assert_paths_agree([*lines, *bad], schema)
