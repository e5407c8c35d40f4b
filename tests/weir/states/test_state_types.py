"""Bytes of declared state: golden values, exact round trips, keys in order, and which stored types are read."""

import dataclasses
import datetime as dt
import decimal
import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from weir.errors import StateMismatchError
from weir.state.types import MapKeyType, describe, key_reads, reads, value_type


@dataclasses.dataclass
class Place:
    name: str
    at: list[float]
    note: str | None = None


GOLDEN = [
    (pl.Int64, 2**63 - 1, b"\x019223372036854775807"),
    (pl.UInt64, 2**64 - 1, b"\x0118446744073709551615"),
    (float, 0.1, b"\x010.1"),
    (float, math.inf, b'\x01"inf"'),
    (bool, True, b"\x01true"),
    (str, "ä\n", b'\x01"\xc3\xa4\\n"'),
    (bytes, b"\x00\xff", b"\x02\x00\xff"),
    (pl.List(pl.Binary), [b"\x00\xff"], b'\x01["AP8="]'),
    (pl.Decimal(10, 2), decimal.Decimal("1.20"), b'\x01"1.20"'),
    (pl.Date, dt.date(2020, 1, 1), b"\x0118262"),
    (pl.Time, dt.time(1, 2, 3, 4), b"\x013723000004000"),
    (pl.Datetime("us"), dt.datetime(1960, 1, 1, microsecond=7), b"\x01-315619199999993"),
    (pl.Datetime("ms", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), b"\x011577836800000"),
    (pl.Duration("us"), dt.timedelta(days=-1, microseconds=5), b"\x01-86399999995"),
    (pl.List(pl.Int32), [1, None], b"\x01[1,null]"),
    (pl.Struct({"a": pl.Int8, "b": pl.String}), {"a": 1, "b": None}, b"\x01[1,null]"),
    (Place, Place("x", [0.5]), b'\x01["x",[0.5],null]'),
]


@pytest.mark.parametrize(("dtype", "value", "data"), GOLDEN)
def test_bytes_do_not_change(dtype, value, data):
    kind = value_type(dtype)
    assert kind.encode(value) == data
    assert kind.decode(data) == value
    with pytest.raises(StateMismatchError, match="format version 03"):
        kind.decode(b"\x03" + data[1:])


def test_bytes_that_were_kept_as_text_are_read():
    assert value_type(bytes).decode(b'\x01"AP8="') == b"\x00\xff"


@given(st.lists(st.floats()))
def test_floats_are_exact(values):
    kind = value_type(pl.List(pl.Float64))
    found = kind.decode(kind.encode(values))
    assert [math.isnan(value) or value for value in found] == [math.isnan(value) or value for value in values]


@pytest.mark.parametrize(
    "dtype", [pl.Object, pl.Categorical, pl.Int128, dict, 3, pl.List, pl.List(pl.Object)]
)
def test_other_types_are_refused(dtype):
    with pytest.raises(weir.GraphError, match="cannot be the type of a state"):
        value_type(dtype)


INTEGERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(st.text(), INTEGERS, st.binary())))
def test_keys_of_maps_keep_their_order(keys):
    kind = MapKeyType((str, int, bytes))
    assert [kind.decode(data) for data in sorted(map(kind.encode, keys))] == sorted(keys)
    for parts in ((str, int, bytes), (int, str, int, bool), (bytes, int), (int, bool), (bool, str)):
        some = MapKeyType(parts)
        rows = [
            tuple({str: text, int: number, bytes: data, bool: number > 0}[part] for part in parts)
            for text, number, data in keys * 16
        ]
        assert some.decode_many(list(map(some.encode, rows))) == rows
    whole = MapKeyType(int)
    numbers = [number for _, number, _ in keys]
    assert [whole.decode(data) for data in sorted(map(whole.encode, numbers))] == sorted(numbers)


def test_types_that_are_read():
    wide = {"struct": [["a", "int64"], ["b", {"list": "float64"}]]}
    assert reads({"struct": [["a", "uint32"], ["b", {"list": "float32"}]]}, wide)
    assert not reads(wide, {"struct": [["a", "uint32"], ["b", {"list": "float32"}]]})
    assert not reads("int64", "uint64")
    assert not reads("uint64", "int64")
    assert not reads("int32", "float64")
    assert reads("string", {"nullable": "string"})
    assert key_reads("int32", "int64")
    assert not key_reads("uint32", "uint64"), "keys of this type have other bytes"
    assert describe(wide) == "struct<a: int64, b: list<float64>>"
