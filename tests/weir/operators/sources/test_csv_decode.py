"""Which records of CSV are good, what is in them, and that it does not matter how much of a file is at hand."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import cases
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.csv import csv_decode
from weir.operators.sources.csv.csv_decode import CsvDecoder
from weir.operators.sources.csv.csv_format import CsvFormat, header_fields

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])


def window(text):
    data = text if isinstance(text, bytes) else text.encode()
    return np.frombuffer(bytearray(data + bytes(PADDING_BYTES)), dtype=np.uint8), len(data)


def decode(text, schema=SCHEMA, fields=None, may_be_more=False, rows_max=1000, **form):
    decoder = CsvDecoder(schema, [], fields or schema.names, CsvFormat(**form), rows_max)
    data, stop = window(text)
    return decoder.decode(data, 0, stop, may_be_more)


def rows(text, schema=SCHEMA, **more):
    decoded = decode(text, schema, **more)
    assert not decoded.rejections
    return [tuple(row.values()) for row in decoded.batch.to_pylist()]


def values(data_type, *texts, **form):
    """What a column of this type makes of each text."""
    schema = pa.schema([("v", data_type), ("end", pa.string())])
    decoded = decode("".join(f"{text},\n" for text in texts), schema, **form)
    found = dict(zip(decoded.starts.tolist(), decoded.batch.column("v").to_pylist(), strict=True))
    found |= {rejection.start: rejection.reason for rejection in decoded.rejections}
    return [value for _, value in sorted(found.items())]


def test_quotes_newlines_and_line_ends():
    assert rows('1,a,2.5\n2,"b ""q"", c\nd",3\r\n\r\n\n-3,,\n"4","","5"\n') == [
        (1, "a", 2.5),
        (2, 'b "q", c\nd', 3.0),
        (-3, None, None),
        (4, "", 5.0),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_quotes_that_an_escape_stands_before(seed):
    dice = random.Random(seed)
    texts = ["".join(dice.choices('\\\\""ab,\n\ré☃', k=dice.randrange(20))) for _ in range(300)]
    quoted = [text.replace("\\", "\\\\").replace('"', dice.choice(['\\"', '""'])) for text in texts]
    data = "".join(f'1,"{text}",2\n3,"{text}","4"\n' for text in quoted)
    wanted = [text for text in texts for _ in range(2)]
    assert [row[1] for row in rows(data, escape="\\")] == wanted
    numbers = pa.schema([SCHEMA.field("id"), SCHEMA.field("x")])
    assert rows(data, numbers, fields=["id", "name", "x"], escape="\\") == [(1, 2.0), (3, 4.0)] * 300
    only = decode(data, pa.schema([SCHEMA.field("id")]), ["id", "name", "x"], escape="\\")
    assert only.batch.column("id").to_pylist() == [1, 3] * 300
    # Outside quotes, and before anything else, it is as it is.
    assert rows('1,a\\b\\,\n2,"a\\b",\n', escape="\\") == [(1, "a\\b\\", None), (2, "a\\b", None)]
    header = (",".join(f'"{text}"' for text in quoted) + "\n").encode()
    assert header_fields(header, CsvFormat(escape="\\"), False) == (texts, len(header))


def test_a_quote_after_a_backslash_tells_of_the_escape():
    decoded = decode('1,"a\\"b",2\n')
    assert [rejection.reason for rejection in decoded.rejections] == [
        'field name has a quote in the wrong place; if \\" is a quote in a field, give the source escape="\\\\"'
    ]


def test_numbers():
    assert values(pa.int64(), "007", "+5", "-9223372036854775808", "9223372036854775807") == [
        7,
        5,
        -(2**63),
        2**63 - 1,
    ]
    bad = "field v is not of type int64"
    assert values(pa.int64(), " 1", "1 ", "1.0", "1e3", "-", "+", "0x10", "1_0", '" 1"') == [bad] * 9
    beyond = "field v is out of range for "
    assert (
        values(pa.int64(), "9223372036854775808", "-9223372036854775809", "9" * 40) == [beyond + "int64"] * 3
    )
    assert values(pa.uint8(), "0", "255", "256", "-1") == [0, 255, beyond + "uint8", beyond + "uint8"]
    assert values(pa.uint64(), str(2**64 - 1), "0x10", str(2**64)) == [
        2**64 - 1,
        *["field v is not of type uint64"] * 2,
    ]
    good = ["1.", ".5", "-0.25", "1e5", "+2.5E-3", "123456789012345678.25", "4.9e-324", "1e-999"]
    assert values(pa.float64(), *good) == [float(text) for text in good]
    assert values(pa.float64(), "inf", "-Infinity") == [float("inf"), float("-inf")]
    assert str(values(pa.float64(), "NaN")) == "[nan]"
    bad = "field v is not of type double"
    assert values(pa.float64(), ".", "e5", "1e", "1.5.", "na", "infi", " 1", "1,"[:1] + "x") == [bad] * 8
    assert values(pa.float64(), "1e999", "2.5", "-1e999") == [beyond + "double", 2.5, beyond + "double"]


def test_other_types():
    assert values(pa.bool_(), "true", "False", "TRUE", "1") == [
        True,
        False,
        True,
        "field v is not of type bool",
    ]
    assert values(pa.date32(), "2024-02-29", "2023-02-29", '"2024-01-01"') == [
        datetime.date(2024, 2, 29),
        "field v is not of type date32[day]",
        datetime.date(2024, 1, 1),
    ]
    assert values(pa.decimal128(10, 2), "1.5", "1.555") == [
        decimal.Decimal("1.50"),
        "field v is not of type decimal128(10, 2)",
    ]
    assert values(pa.float32(), "0.1", "x") == [float(np.float32(0.1)), "field v is not of type float"]
    assert values(pa.timestamp("us"), "2024-01-02T03:04:05.5") == [
        datetime.datetime(2024, 1, 2, 3, 4, 5, 500_000)
    ]
    assert values(pa.binary(), "é") == ["é".encode()]


def test_null_values_in_quotes_are_null_in_columns_that_are_no_texts():
    """So do programs write them that put every field in quotes."""
    types = (
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.decimal128(9, 2),
        pa.uint64(),
        pa.string(),
        pa.binary(),
    )
    schema = pa.schema([(f"c{number}", data_type) for number, data_type in enumerate(types)])
    line = ",".join(['""'] * len(types)) + "\n" + ",".join(['"NA"'] * len(types)) + "\n"
    found = rows(line, schema, null_values=("", "NA"))
    assert found == [(*(None,) * 6, "", b""), (*(None,) * 6, "NA", b"NA")]
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert [r.reason for r in decode('""\n', required).rejections] == ["field id is null"]


def test_numbers_that_stand_for_null_are_null_in_every_column():
    nulls = ("", "0", "9999", "-1", "12345678")
    given = ("0", "9999", "-1", '"9999"', "12345678", "99990", "00", "1")
    for data_type in (pa.int64(), pa.int16(), pa.uint64(), pa.float64(), pa.float32(), pa.decimal128(9, 0)):
        narrow = data_type == pa.int16()
        found = values(
            data_type, *(text for text in given if not narrow or len(text) != 5), null_values=nulls
        )
        assert found == [None] * 5 + [99990, 0, 1][narrow:], data_type
    last = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert rows("9999,9999\n1,0\n", last, null_values=nulls) == [(None, None), (1, None)]
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert [r.reason for r in decode("9999\n1\n", required, null_values=nulls).rejections] == [
        "field id is null"
    ]


def test_nulls_are_unquoted_and_only_where_they_may_be():
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    decoded = decode('1,\n,a\n3,NULL\n4,"NULL"\nNULL,b\n6,NUL\n', schema, null_values=("", "NULL"))
    assert decoded.batch.to_pylist() == [
        {"id": 1, "name": None},
        {"id": 3, "name": None},
        {"id": 4, "name": "NULL"},
        {"id": 6, "name": "NUL"},
    ]
    assert [r.reason for r in decoded.rejections] == ["field id is null"] * 2
    assert rows(",x\n", pa.schema([("a", pa.string()), ("b", pa.string())]), null_values=()) == [("", "x")]


def test_bad_records_are_put_aside_and_the_rest_goes_on():
    lines = [
        ("7,x\n", "the record has 2 fields, not 3"),
        ("8,a,b,c\n", "the record has 4 fields, not 3"),
        ('9,a"b,1\n', "field name has a quote in the wrong place"),
        ('10,"a"b,1\n', "field name has a quote in the wrong place"),
        ("x,a,y\n", "field id is not of type int64"),
        (b"11,\xff,1\n", "field name is not UTF-8"),
        (b"12,a\xc3,1\n", "field name is not UTF-8"),
        ('13,"' + "a" * 200 + '",1\n', "line longer than line_bytes_max (100 bytes)"),
        ('14,"open,1\n', "field name has a quote that is not closed"),
    ]
    text = b"1,a,1\n"
    for line, _ in lines:
        text += (line if isinstance(line, bytes) else line.encode()) + b"2,b,2\n"
    decoded = decode(text, record_bytes_max=100)
    assert decoded.batch.column("id").to_pylist() == [1] + [2] * len(lines)
    assert [r.reason for r in decoded.rejections] == [reason for _, reason in lines]
    for rejection, (line, _) in zip(decoded.rejections, lines, strict=True):
        assert text[rejection.start : rejection.stop] == (line if isinstance(line, bytes) else line.encode())


def test_only_wanted_fields_are_decoded_but_all_are_checked():
    schema = pa.schema([("b", pa.int64())])
    decoded = decode(b'x,1,"y,\n"\n\xff,2,\n,3,a"\n,4,\n', schema, fields=["a", "b", "c"])
    assert decoded.batch.to_pylist() == [{"b": 1}, {"b": 4}]
    assert [r.reason for r in decoded.rejections] == [
        "field a is not UTF-8",
        "field c has a quote in the wrong place",
    ]


def test_a_newline_ends_a_record_where_fields_hold_none():
    decoded = decode('1,"a\n2,b",1\n3,c,3\n', one_line=True, may_be_more=True)
    assert decoded.batch.column("id").to_pylist() == [3]
    assert [r.reason for r in decoded.rejections] == [
        "field name has a quote that is not closed",
        "field name has a quote in the wrong place",
    ]


def test_without_quotes_they_are_letters():
    assert rows('1,"a,2\n', quote="") == [(1, '"a', 2.0)]
    assert rows("1;'a;b';2\n", delimiter=";", quote="'") == [(1, "a;b", 2.0)]


def test_fields_that_nobody_wants_are_as_right_or_wrong_as_those_that_are_read():
    """The former are passed over in blocks of 64 bytes: every mark at every place of a block."""
    dice = random.Random(5)
    texts = [b"", b"x", b"x" * 7, b"xyz" * 20, "é".encode(), "日本".encode(), "ก".encode(), "👍".encode()]
    mistakes = [b'"', b'""', b",", b'",', b',"', b"\xff", b"\xc3", b"\x80", b"\r", b"\n"]
    lines = []
    for number in range(4000):
        made = [b"".join(dice.choices(texts, k=dice.randrange(4))) for _ in range(3)]
        quoted = [
            b'"' + b'""'.join([text, b",", text]) + b'"' if dice.random() < 0.3 else text for text in made
        ]
        line = b",".join(quoted)
        if dice.random() < 0.3:
            at = dice.randrange(len(line) + 1)
            line = line[:at] + dice.choice(mistakes) + line[at + dice.randrange(2) :]
        lines.append(b"%d," % number + line + dice.choice([b"\n", b"\n", b"\r\n"]))
    fields = [pa.field(name, pa.string()) for name in ("id", "b", "c", "d")]
    for form in ({}, {"one_line": True}, {"quote": ""}):
        read, passed = (
            decode(
                b"".join(lines),
                pa.schema(wanted),
                ["id", "b", "c", "d"],
                rows_max=9000,
                null_values=(),
                **form,
            )
            for wanted in (fields, fields[:1])
        )
        assert len(read.rejections) > 500 < len(read.starts)
        assert passed.rejections == read.rejections
        assert passed.starts.tolist() == read.starts.tolist()


def test_integers_of_all_lengths():
    numbers = [int("1234567890123456789"[:length]) for length in range(1, 20)]
    numbers += [2**53 + 1, 10**8, 10**8 - 1, 2**63 - 1]
    assert values(pa.int64(), *map(str, numbers)) == numbers
    assert values(pa.int64(), "1234567x", "12345678x", "123456789:", "12345678/")[0].startswith("field v")


texts = st.text(st.sampled_from('ab,"\n\ré0 '), max_size=12)


@settings(max_examples=cases(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), texts, st.floats(allow_nan=False)), max_size=8),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_python_writes_is_read(records, quoting, line_end):
    out = io.StringIO()
    csv.writer(out, quoting=quoting, lineterminator=line_end).writerows(records)
    found = rows(out.getvalue(), null_values=())
    assert found == [(a, b, c) for a, b, c in records]


def test_memory_is_bounded_by_bytes_and_not_by_columns(monkeypatch):
    """Of many columns of texts each had room for all that was decoded at a time."""
    names = [f"c{number}" for number in range(100)]
    schema = pa.schema(
        [(name, pa.int64() if number % 10 == 7 else pa.string()) for number, name in enumerate(names)]
    )
    dice = random.Random(3)

    def record(size):
        texts = [dice.choice(["é" * size, '"a\n""b"', '""', "", "x"]) for _ in names]
        return ",".join(str(n) if n % 10 == 7 else text for n, text in enumerate(texts))

    records = [record(dice.choice([1, 20, 500])) for _ in range(20)]
    records[5:5] = ["x,y", ",".join(["\udcff" * 200] * 100), '"' + "a" * 10_000]
    text = "\n".join(records) + "\n"
    data, stop = window(text.encode(errors="surrogateescape"))
    form = CsvFormat(record_bytes_max=1 << 20)
    asked = []
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda shape, dtype: asked.append(shape) or empty(shape, dtype=dtype))

    def decode_all(room_bytes):
        monkeypatch.setattr(csv_decode, "_TEXT_BYTES_MAX", room_bytes)
        decoder = CsvDecoder(schema, [], names, form, 100)
        asked.clear()
        batches, rejections, at = [], [], 0
        while at < stop:
            decoded = decoder.decode(data, at, stop, False)
            batches.append(decoded.batch)
            rejections += decoded.rejections
            at = decoded.next_start
        return pa.Table.from_batches(batches).combine_chunks(), rejections, max(asked)

    found, rejections, largest = decode_all(1 << 20)
    assert largest < 1.1 * (1 << 20)
    wanted, all_rejections, _ = decode_all(1 << 40)
    assert found == wanted
    assert rejections == all_rejections
    assert len(rejections) == 3
    assert found.num_rows == 20


def in_windows(text, dice, schema=SCHEMA, **form):
    """As a reader does: with some lines at hand, and more if that is too little."""
    decoder = CsvDecoder(schema, [], schema.names, CsvFormat(**form), 3)
    found, bad, at, hand = [], [], 0, 0
    while at < len(text):
        hand = max(hand, at)
        if hand == at or dice.random() < 0.5:
            hand = text.find(b"\n", min(hand + dice.randrange(20), len(text) - 1)) + 1 or len(text)
        data, stop = window(text[:hand])
        decoded = decoder.decode(data, at, stop, hand < len(text))
        if decoded.next_start == at:
            hand = text.find(b"\n", hand) + 1 or len(text)
            continue
        found += zip(decoded.starts.tolist(), [str(row) for row in decoded.batch.to_pylist()], strict=True)
        bad += [(r.start, r.stop, r.reason) for r in decoded.rejections]
        at = decoded.next_start
    return found, bad


@pytest.mark.parametrize("seed", range(cases(25)))
def test_windows_and_restarts_change_nothing(seed):
    dice = random.Random(seed)
    parts = [
        b'"',
        b"\n",
        b",",
        b"1",
        b"a",
        b"\r\n",
        b"\xc3\xa9",
        b"\xff",
        b'""',
        b"2.5",
        b"1,a,2\n",
        b'3,"x\ny",\n',
    ]
    text = b"".join(dice.choices(parts, k=120)) + b"\n"
    form = {"one_line": dice.random() < 0.3, "record_bytes_max": dice.choice([8, 30, 1000])}
    decoded = decode(text, **form)
    whole = (
        [(s, str(row)) for s, row in zip(decoded.starts.tolist(), decoded.batch.to_pylist(), strict=True)],
        [(r.start, r.stop, r.reason) for r in decoded.rejections],
    )
    for _ in range(5):
        found, bad = in_windows(text, dice, **form)
        assert found == whole[0]
        assert [b[:2] for b in bad] == [b[:2] for b in whole[1]]


def test_headers():
    form = CsvFormat()
    assert header_fields(b'id,"a ""b"",\nc",x\r\n1,', form, False) == (["id", 'a "b",\nc', "x"], 19)
    assert header_fields(b"id", form, True) == (["id"], 2)
    for part in (b"", b"id", b"id,", b'"id', b'"id"', b"id,a\r"):
        assert header_fields(part, form, False) is None
    for wrong in (b'"id"x,a\n', b'i"d,a\n', b'"id'):
        with pytest.raises(ValueError, match="quote"):
            header_fields(wrong, form, True)
