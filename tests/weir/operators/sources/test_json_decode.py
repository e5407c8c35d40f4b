"""The scanner, the bulk parser and the strict parser agree on what is good, and on the values."""

from __future__ import annotations

import json
import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import (
    FLAT,
    assert_paths_agree,
    decode,
    decode_singly,
    mutate,
    padded,
)
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.lines.line_shapes import SHAPE_OBJECT, line_shapes

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.float64())])),
    ]
)
GOOD = '{"id": 7, "name": "server-1", "load": 0.25, "up": true, "port": 80, "long_name": "x"}'


def variant(**changes: str) -> bytes:
    """The good line with some values replaced by raw JSON text; an empty text removes the field."""
    fields = {"id": "7", "name": '"a"', "load": "0.5", "up": "true", "port": "80", "long_name": '"b"'}
    fields |= changes
    return ("{" + ", ".join(f'"{k}": {v}' for k, v in fields.items() if v) + "}").encode(
        "utf-8", "surrogatepass"
    )


BAD = {
    "string for integer": variant(id='"7"'),
    "decimal for integer": variant(id="7.0"),
    "exponent for integer": variant(id="1e3"),
    "boolean for integer": variant(id="true"),
    "null": variant(id="null"),
    "missing": variant(name=""),
    "out of range": variant(id="9223372036854775808"),
    "far out of range": variant(id="1" * 30),
    "out of the narrow range": variant(port="65536"),
    "negative for unsigned": variant(port="-1"),
    "leading zero": variant(id="007"),
    "plus": variant(id="+7"),
    "lone minus": variant(id="-"),
    "integer for string": variant(name="1"),
    "object for string": variant(name='{"a": 1}'),
    "list for string": variant(name='["a"]'),
    "string for float": variant(load='"0.5"'),
    "NaN": variant(load="NaN"),
    "infinite": variant(load="1e400"),
    "point without digits": variant(load="1."),
    "point first": variant(load=".5"),
    "integer for boolean": variant(up="1"),
    "capital literal": variant(up="True"),
    "literal with a tail": variant(up="truex"),
    "duplicate": variant(id='7, "id": 8'),
    "duplicate by escape": variant(id='7, "\\u0069d": 8'),
    "lone surrogate": variant(name='"\\ud800"'),
    "lone surrogate in an ignored field": variant(name='"a", "other": "\\udc00"'),
    "control character": variant(name='"a\tb"'),
    "NUL in a string": variant(name='"a\0b"'),
    "bad escape": variant(name='"\\x"'),
    "trailing comma": GOOD[:-1].encode() + b",}",
    "trailing garbage": GOOD.encode() + b" x",
    "two objects": GOOD.encode() + GOOD.encode(),
    "NUL behind": GOOD.encode() + b"\0",
    "cut": GOOD[:-5].encode(),
    "open string": GOOD[:20].encode(),
    "array": b"[" + GOOD.encode() + b"]",
    "null line": b"null",
    "number line": b"12",
    "invalid UTF-8": GOOD.encode().replace(b"server", b"ser\xff\xfer"),
    "UTF-8 cut": GOOD.encode().replace(b"server", b"serv\xe2\x82"),
    "overlong UTF-8": GOOD.encode().replace(b"server", b"serv\xc0\xaf"),
    "encoded surrogate": GOOD.encode().replace(b"server", b"serv\xed\xa0\x80"),
    "invalid UTF-8 in an ignored field": GOOD[:-1].encode() + b', "other": "\xff"}',
    "binary": bytes(b for b in range(256) if b != 10),
    "UTF-16": GOOD.encode("utf-16-le").replace(b"\n", b""),
    "deep": b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep and open": b"[" * 300_000,
    "carriage return in a string": variant(name='"a\rb"'),
}
ACCEPTED = {
    "as is": GOOD.encode(),
    "carriage return": GOOD.encode() + b"\r",
    "spaces": GOOD.encode().replace(b":", b" \t: ").replace(b",", b" , ") + b"  ",
    "other order": b'{"long_name": "x", "up": false, "port": 1, "load": 1, "name": "", "id": -0}',
    "nullable null": variant(long_name="null"),
    "nullable missing": variant(long_name=""),
    "integer for float": variant(load="3"),
    "big integer for float": variant(load="123456789012345678901234567890"),
    "exponent for float": variant(load="1.5E+3"),
    "many digits": variant(load="0.1234567890123456789"),
    "least integer": variant(id="-9223372036854775808"),
    "greatest integer": variant(id="9223372036854775807"),
    "escapes": variant(name='"a\\n\\u00e9\\ud83d\\ude00\\""'),
    "beyond ASCII": variant(name='"żółć €😀"'),
    "unknown fields": variant(id='7, "a": "é", "b": -1.5, "c": null, "d": false, "e": {"id": [1]}, "f": 1e5'),
    "unknown duplicates": variant(id='7, "a": 1, "a": 2'),
    "name as a prefix": variant(id='7, "idx": 1, "i": 2'),
    "escaped key": variant(id='7, "na\\u006d\\u0065x": 1'),
    "name as a value": variant(name='"id"'),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_line_is_rejected_with_its_position_on_every_path(kind):
    for copies in (1, 600):
        lines = [GOOD.encode()] * copies + [BAD[kind]] + [variant(id="8")] * copies
        rows, rejected = decode(lines)
        assert [start for start, _ in rejected] == [copies * (len(GOOD) + 1)]
        assert rejected[0][1]
        assert "\n" not in rejected[0][1]
        assert [row["id"] for row in rows] == [7] * copies + [8] * copies
        assert decode(lines, use_scanner=False) == (rows, rejected)


@pytest.mark.parametrize("kind", ACCEPTED)
def test_good_line_has_the_same_values_on_every_path(kind):
    lines = [GOOD.encode()] + [ACCEPTED[kind]] * 600
    rows, rejected = decode(lines)
    assert rejected == []
    expected = json.loads(ACCEPTED[kind])
    expected["load"] = float(expected["load"])
    assert rows[1:] == [{name: expected.get(name) for name in FLAT.names}] * 600
    assert decode(lines, use_scanner=False) == (rows, [])


def test_reasons_name_the_field():
    reasons = [
        decode([BAD[kind]])[1][0][1] for kind in ("string for integer", "missing", "duplicate", "deep")
    ]
    assert reasons == [
        "field id must be int64, not a string",
        "field name is missing or null",
        "field id occurs twice",
        "nested deeper than 128 levels",
    ]


def test_blank_lines_are_passed_over():
    rows, rejected = decode([b"", GOOD.encode(), b"  \t", b"\r", GOOD.encode()])
    assert (len(rows), rejected) == (2, [])


def test_line_beyond_the_bound_is_rejected_whatever_its_content():
    bound = len(variant(id="8")) + 1
    for scanner in (True, False):
        rows, rejected = decode([GOOD.encode(), variant(id="8")], line_bytes_max=bound, use_scanner=scanner)
        assert [row["id"] for row in rows] == [8]
        assert rejected == [(0, f"line longer than line_bytes_max ({bound} bytes)")]


def test_object_over_two_lines_beside_two_objects_in_a_line_is_bad():
    simple = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    lines = [b'{"id": 1}'] * 600 + [b'{"id":', b'2} {"id": 3}'] + [b'{"id": 4}'] * 600
    rows, rejected = decode(lines, simple, use_scanner=False)
    assert len(rows) == 1200
    assert len(rejected) == 2


def test_nested_fields_work_and_agree():
    lines = [
        b'{"id": 1, "tags": ["a", null], "at": {"x": 1, "y": 2, "z": 3}}',
        b'{"id": 2, "tags": null, "at": {}}',
        b'{"id": 3, "at": null, "tags": []}',
        b'{"id": 4, "tags": [1]}',
        b'{"id": 5, "at": {"x": 1.5}}',
        b'{"id": 6, "at": {"x": 1, "x": 2}}',
        b'{"id": 7, "at": []}',
        b'{"tags": []}',
        b'{"id": 8}',
    ] * 30
    rows, rejected = decode(lines, NESTED)
    assert len(rows) == 4 * 30
    assert len(rejected) == 5 * 30
    assert rows[0] == {"id": 1, "tags": ["a", None], "at": {"x": 1, "y": 2.0}}
    assert_paths_agree(lines, NESTED)


def test_types_that_only_pyarrow_converts():
    schema = pa.schema([pa.field("at", pa.timestamp("ms")), pa.field("id", pa.int64(), nullable=False)])
    lines = [b'{"id": 1, "at": "2024-01-01T00:00:00"}', b'{"id": 2, "at": "soon"}', b'{"at": null}'] * 20
    rows, rejected = decode(lines, schema)
    assert [row["id"] for row in rows] == [1] * 20
    assert len(rejected) == 40


DAYS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("days", pa.list_(pa.struct([pa.field("day", pa.date64()), pa.field("x", pa.float32())]))),
        pa.field("share", pa.float32()),
    ]
)


@pytest.mark.parametrize("nullable", [False, True])
def test_floats_of_32_bits_are_read_back_where_no_other_column_is_left_to_a_slower_parser(nullable):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.float32(), nullable=nullable)])
    bits = np.random.default_rng(0).integers(0, 2**32, cases(2_000), dtype=np.uint32)
    # Numbers whose shortest digits lie just between two floats of 32 bits; and very small and large ones.
    odd = np.array([116513136, -35900688, 1e-40, -1e-45, 3.4028235e38, 2.0622010e38, 0.0], dtype=np.float32)
    values = np.concatenate([odd, bits.view(np.float32)])
    values = values[np.isfinite(values)]
    lines = [f'{{"id": {number}, "x": {value!s}}}'.encode() for number, value in enumerate(values)]
    if nullable:
        lines.append(b'{"id": 1, "x": null}')
    rows, rejected = decode(lines, schema)
    assert rejected == []
    found = np.array([row["x"] for row in rows[: len(values)]], dtype=np.float32)
    assert np.flatnonzero(found != values).tolist() == []
    assert [row["x"] for row in rows[len(values) :]] == [None] * nullable


@pytest.mark.parametrize("copies", [1, 60])
def test_dates_are_texts_and_narrow_floats_hold_what_fits(copies):
    good = [
        b'{"id": 1, "day": "2026-11-23", "days": [{"day": "1960-02-29", "x": 0.5}, null], "share": 1}',
        b'{"id": 2, "day": null, "days": [], "share": null}',
        b'{"id": 3, "day": "0001-01-01", "days": [{"day": null, "x": -3e38}], "share": 1e-50}',
    ]
    bad = [
        b'{"id": 4, "day": "2026-02-30"}',
        b'{"id": 4, "day": "2026-1-2"}',
        b'{"id": 4, "day": "2026-11-23T00:00:00"}',
        b'{"id": 4, "day": 20000}',
        b'{"id": 4, "days": [{"day": "soon"}]}',
        b'{"id": 4, "days": [{"x": 1e39}]}',
        b'{"id": 4, "share": -1e39}',
    ]
    rows, rejected = decode(good * copies, DAYS)
    assert (len(rows), rejected) == (3 * copies, [])
    assert str(rows[0]["day"]) == "2026-11-23"
    assert rows[0]["days"][1] is None
    assert_paths_agree(good * copies, DAYS)
    for line in bad:
        rows, rejected = decode([*good, line] * copies, DAYS)
        assert (len(rows), len(rejected)) == (3 * copies, copies)
    assert rejected[0][1] == "field share is out of range for float"
    (first,) = decode([bad[0]], DAYS)[1]
    assert first[1] == "field day is no date, such as 2026-11-23: '2026-02-30'"


def test_the_field_that_only_pyarrow_converts_is_named():
    schema = pa.schema([pa.field("at", pa.timestamp("ms")), pa.field("price", pa.decimal128(5, 2))])
    lines = [b'{"at": "2026-01-01T00:00:00", "price": "1.234"}', b'{"at": "soon", "price": 1.5}']
    _, rejected = decode(lines, schema)
    assert [reason for _, reason in rejected] == [
        "field price is not of type decimal128(5, 2)",
        "field at is not of type timestamp[ms]",
    ]


def test_a_time_with_more_digits_than_its_column_says_so_by_the_path_that_was_declared(tmp_path):
    fine = '"2026-01-01T00:00:00.123456"'
    (tmp_path / "in.jsonl").write_text(
        f'{{"o": {{"at": {fine}, "n": 1}}}}\n' + '{"o": {"at": "2026-01-01T00:00:00.123"}}\n' * 2
    )
    (tmp_path / "in.csv").write_text(f"at\n{fine}\n2026-01-01T00:00:00.123\n2026-01-01T00:00:00.123\n")
    time = pl.Datetime("ms")
    reasons = []
    for source in (
        weir.JsonLines(str(tmp_path / "in.jsonl"), schema={"o.at": time}),
        weir.Csv(str(tmp_path / "in.csv"), schema={"at": time}),
    ):
        result = weir.run(weir.Dataflow("times").source("events", source))
        reasons += [letter.reason for letter in result.dead_letters]
    told = "has more digits than ms: '2026-01-01T00:00:00.123456'; declare it finer"
    assert reasons == [f"field o.at {told}", f"field at {told}"]


@pytest.mark.parametrize("kind", [pl.Time, pl.Duration("ms"), pl.List(pl.Time), pl.Array(pl.Int64, 2)])
def test_columns_that_no_value_of_json_can_be_are_refused(kind):
    for source in (
        weir.JsonLines("none", schema={"x": kind}),
        weir.Kafka(bootstrap="b:1", topics="t", schema={"x": kind}),
    ):
        with pytest.raises(weir.GraphError, match="column 'x': a value of JSON cannot be "):
            source.to_spec()


INTEGERS = pa.schema([pa.field("s", pa.int64()), pa.field("u", pa.uint64()), pa.field("raw", pa.binary())])


@pytest.mark.parametrize("name", ["s", "u"])
def test_integers_up_to_64_bits_and_no_further(name):
    limits = (0, 9, 10**18, 2**63 - 2, 2**63, 9_999_999_999_999_999_998, 2**64 - 2, 10**19, 2**65, 10**20)
    texts = [sign + str(limit + more) for sign in ("", "-") for limit in limits for more in range(4)]
    texts += ["-0", "00", "01", "1.0", "1e2", "18446744073709551615.0", "18446744073709551615e0", "+1", "-"]
    lines = [b'{"%s": %s}' % (name.encode(), text.encode()) for text in texts]
    assert_paths_agree(lines, INTEGERS)
    decoder = JsonDecoder(INTEGERS)
    decoder._strict = None
    certain = [line for line in lines if decode([line], INTEGERS)[0] and b"-9223372036854775808" not in line]
    certain = [line for line in certain if name == "s" or b"-" not in line]
    data, stop = padded(certain)
    assert decoder.decode(data, 0, stop).batch.num_rows == len(certain) > 12


def test_numbers_with_large_exponents_are_good_where_they_are_finite():
    schema = pa.schema([pa.field("x", pa.float64()), pa.field("id", pa.int64())])
    texts = [
        "1e-400",
        "1e-150",
        "2.5e-307",
        "5e-324",
        "1e307",
        "1.7976931348623157e308",
        "1.8e308",
        "1e309",
        "1e1000",
    ]
    texts += ["12345e303", "12345e304", "12345e305", "0e999", "-1e-999", "1e-0001", "1e+0300", "1E0", "1e"]
    for form in ('{"x": %s}', '{"id": 1, "other": [%s]}'):
        assert_paths_agree([(form % text).encode() for text in texts], schema)


def test_bytes_are_texts():
    copies = 40
    lines = [
        b'{"raw": "a\\u00e9\\n"}',
        b'{"raw": ""}',
        b'{"raw": null}',
        b'{"raw": 1}',
        b'{"raw": "\\ud800"}',
    ] * copies
    rows, rejected = decode(lines, INTEGERS)
    assert [row["raw"] for row in rows[:3]] == ["aé\n".encode(), b"", None]
    assert (len(rows), len(rejected)) == (3 * copies, 2 * copies)
    assert (rows, rejected) == decode(lines, INTEGERS, use_scanner=False)


def is_odd(line: bytes) -> bool:
    """Whether the strict decoder keeps the line from pyarrow."""
    data, stop = padded([line])
    shapes = np.empty(1, dtype=np.uint8)
    line_shapes(data, np.array([[0, stop, 0]]), 1, 1 << 20, shapes)
    return bool(shapes[0] != SHAPE_OBJECT)


NESTED_LINES = [b'{"id": 1, "tags": ["a", null], "at": {"x": 1, "y": 2, "z": [{}]}}', b'{"id": 2}']


@pytest.mark.parametrize("seed", range(cases(2)))
def test_mutated_lines_agree_on_every_path(seed):
    rng = random.Random(seed)
    seeds = [GOOD.encode(), *ACCEPTED.values(), *(line for line in BAD.values() if len(line) < 1000)]
    lines = [mutate(rng.choice(seeds), rng) for _ in range(700)]
    assert_paths_agree(lines)


@pytest.mark.parametrize("schema", [FLAT, NESTED], ids=["flat", "nested"])
def test_bulk_parser_takes_all_good_lines_and_no_bad_one(schema):
    rng = random.Random(99)
    seeds = [*ACCEPTED.values(), *NESTED_LINES, *(line for line in BAD.values() if len(line) < 1000)]
    lines = [mutate(rng.choice(seeds), rng) for _ in range(700)]
    singles = decode_singly(lines, schema)
    good = [line for line, (rows, _) in zip(lines, singles, strict=True) if rows]
    bulk = JsonDecoder(schema)._strict._bulk
    # Lines whose structure is not that of one object never reach it; neither do NaN and its like.
    odd = [line for line in good if is_odd(line)]
    plain = [line for line in good if line not in odd]
    assert len(plain) > 40
    rows = bulk(b"".join(line + b"\n" for line in plain)).to_pylist()
    assert rows == [rows[0] for line, (rows, _) in zip(lines, singles, strict=True) if line in set(plain)]
    needed = [field.name for field in schema if not field.nullable]
    for line, (rows, _) in zip(lines, singles, strict=True):
        if not rows and line.strip() and not is_odd(line):
            taken = bulk(line + b"\n")
            assert taken is None or any(taken.column(name).null_count for name in needed), line


@pytest.mark.parametrize("seed", range(cases(1)))
def test_mutated_nested_lines_agree(seed):
    rng = random.Random(seed)
    assert_paths_agree([mutate(rng.choice(NESTED_LINES), rng) for _ in range(400)], NESTED)


@settings(max_examples=cases(15), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.integers(-(2**63), 2**63 - 1),
                "name": st.text(),
                "load": st.floats(allow_nan=False, allow_infinity=False),
                "up": st.booleans(),
                "port": st.integers(0, 2**16 - 1),
            },
            optional={"long_name": st.none() | st.text(), "other": st.none() | st.text() | st.floats(0, 1)},
        ),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_written_rows_are_read_back(rows, ascii_only):
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "replace") for row in rows]
    expected = [{name: json.loads(line).get(name) for name in FLAT.names} for line in lines]
    for scanner in (True, False):
        assert decode(lines, use_scanner=scanner) == (expected, [])


@pytest.mark.parametrize("use_scanner", [True, False])
def test_no_more_lines_are_decoded_than_are_wanted(use_scanner):
    lines = [b'{"n": %d}' % number for number in range(50)]
    lines[13] = b"bad"
    data, stop = padded(lines)
    decoder = JsonDecoder(pa.schema([("n", pa.int64())]), lines_max=20, use_scanner=use_scanner)
    start, found, sizes = 0, [], []
    for wanted in (7, 1, 100, None, 9):
        decoded = decoder.decode(data, start, stop, wanted)
        start = decoded.next_start
        found += decoded.batch.column("n").to_pylist()
        sizes.append(decoded.batch.num_rows + len(decoded.rejections))
    assert sizes == [7, 1, 20, 20, 2]
    assert found == [number for number in range(50) if number != 13]


def test_scanner_takes_simple_lines_itself():
    """Otherwise all the other tests could pass without it."""
    data, stop = padded([GOOD.encode()] * 3)
    decoder = JsonDecoder(FLAT)
    decoder._strict = None
    assert decoder.decode(data, 0, stop).batch.num_rows == 3
