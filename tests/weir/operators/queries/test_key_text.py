"""Keys and values as they are written in questions and answers."""

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

from weir.keys.hashing import key_bytes
from weir.operators.queries.key_text import KeyText
from weir.protocol.queries import QueryError
from weir.questions.client import key_text
from weir.questions.json_values import plain


def test_keys_as_text():
    one = KeyText([pa.field("n", pa.int32())])
    assert one.decode([one.encode("-7"), one.encode("12")]) == [-7, 12]
    many = KeyText([pa.field("s", pa.string()), pa.field("n", pa.int64()), pa.field("d", pa.date32())])
    assert many.decode([many.encode('["a", 5, "2020-02-03"]')]) == [["a", 5, "2020-02-03"]]
    assert many.decode([many.encode('["a", null, null]')]) == [["a", None, None]]
    for text in ("a", '["a", 5]', '["a", "x", "2020-02-03"]'):
        with pytest.raises(QueryError):
            many.encode(text)
    with pytest.raises(QueryError, match=r"no int32 \(n\)"):
        one.encode("twelve")


def test_keys_of_several_columns_have_neither_bounds_nor_prefixes():
    # Their bytes begin with lengths: what is between two of them is between them by chance.
    many = KeyText([pa.field("s", pa.string()), pa.field("n", pa.int64())])
    with pytest.raises(QueryError, match="from and to are for keys of one column, and not of s, n"):
        many.bounds('["a", 5]', None)
    with pytest.raises(QueryError, match="prefix is for keys of one column, and not of s, n"):
        many.prefix("a")


def test_prefixes_of_keys():
    assert KeyText([pa.field("s", pa.string())]).prefix("ü") == "ü".encode()
    binary = KeyText([pa.field("b", pa.binary())])
    assert (binary.prefix("a"), binary.prefix("base64:/wA=")) == (b"a", b"\xff\0")
    with pytest.raises(QueryError, match="is no binary"):
        binary.prefix("base64:!")
    with pytest.raises(QueryError, match="prefix is for keys that are text; give from and to"):
        KeyText([pa.field("n", pa.int32())]).prefix("1")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pa.string(), "ü/☃"),
        (pa.string(), ""),
        (pa.int64(), -(2**63)),
        (pa.uint64(), 2**64 - 1),
        (pa.bool_(), True),
        (pa.date32(), dt.date(2020, 2, 3)),
        (pa.timestamp("ms"), dt.datetime(2020, 2, 3, 4, 5, 6, 120_000)),
        (pa.timestamp("s"), dt.datetime(2020, 2, 3)),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)),
        (pa.time64("us"), dt.time(4, 5, 6, 7)),
        (pa.duration("ms"), dt.timedelta(minutes=-3, milliseconds=1)),
        (pa.binary(), b"ab"),
        (pa.binary(), b"\xff\x00"),
        (pa.binary(), b"base64:a"),
    ],
)
def test_a_key_is_asked_for_as_the_client_has_it_and_as_answers_show_it(dtype, value):
    names = ["a", "b"]
    for count in (1, 2):
        keys = KeyText([pa.field(name, dtype) for name in names[:count]])
        columns = [pa.array([value], dtype)] * count
        key = key_bytes(pa.RecordBatch.from_arrays(columns, names=names[:count]), names[:count]).key(0)
        (shown,) = keys.decode([key])
        if isinstance(value, bytes):
            shown = f"base64:{shown}" if count == 1 else [f"base64:{part}" for part in shown]
        assert keys.encode(shown if isinstance(shown, str) else json.dumps(shown)) == key
        assert keys.encode(key_text(value if count == 1 else (value, value))) == key


def test_keys_that_lose_digits_are_refused():
    for dtype, text in (
        (pa.timestamp("ms"), "2020-02-03T04:05:06.0001"),
        (pa.time32("ms"), "04:05:06.000001"),
        (pa.duration("s"), "1.5"),
        (pa.duration("s"), "soon"),
        (pa.time64("us"), "noon"),
        (pa.binary(), "base64:?"),
    ):
        with pytest.raises(QueryError, match="is no ") as refused:
            KeyText([pa.field("k", dtype)]).encode(text)
        assert refused.value.status == 400


def test_values_as_json():
    given = {"at": dt.datetime(2020, 1, 1), "by": b"\xff", "of": [decimal.Decimal("1.50"), float("nan")]}
    assert plain(given) == {"at": "2020-01-01T00:00:00", "by": "/w==", "of": ["1.50", "nan"]}
