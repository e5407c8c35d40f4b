"""Rows as bytes and back: golden bytes, every type, slices."""

import datetime as dt
import decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from weir.operators.joins.row_codec import ROW_VERSION, RowCodec

#: Bytes of rows that version 1 has written; they must stay readable.
GOLDEN = {
    1: [
        (
            [pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.binary()],
            [
                [7, "a\N{EURO SIGN}", True, 0.5, b"\x00\x01"],
                [None, None, None, None, None],
                [-1, "", False, -2.0, b""],
            ],
            [
                "00"
                + "0700000000000000"
                + "01"
                + "000000000000e03f"
                + "04000000"
                + "02000000"
                + "61e282ac"
                + "0001",
                "1f" + "00" * 17 + "00" * 8,
                "00" + "ff" * 8 + "00" + "00000000000000c0" + "00" * 8,
            ],
        )
    ]
}


@pytest.mark.parametrize(("types", "rows", "expected"), GOLDEN[1])
def test_golden_bytes(types, rows, expected):
    assert ROW_VERSION == 1
    arrays = [pa.array([row[index] for row in rows], dtype) for index, dtype in enumerate(types)]
    codec = RowCodec(types)
    data, offsets = codec.encode(arrays, len(rows))
    assert [data[a:b].tobytes().hex() for a, b in pairwise(offsets)] == expected
    stored = np.frombuffer(bytes.fromhex("".join(expected)), dtype=np.uint8)
    assert codec.decode(stored, offsets[:-1].copy()) == arrays


VALUES = {
    pa.int8(): [1, None, -3],
    pa.uint64(): [2**64 - 1, 0, None],
    pa.float32(): [1.5, None, 2.5],
    pa.bool_(): [True, None, False],
    pa.date32(): [dt.date(2026, 1, 2), None, dt.date(1969, 1, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None, None],
    pa.duration("ms"): [dt.timedelta(seconds=1), None, dt.timedelta(0)],
    pa.decimal128(20, 3): [decimal.Decimal("1.250"), None, decimal.Decimal("-7.000")],
    pa.binary(3): [b"abc", None, b"\0\0\0"],
    pa.string(): ["x" * 300, None, ""],
    pa.large_string(): ["é", None, "z"],
    pa.list_(pa.int64()): [[1, None], None, []],
    pa.struct([("a", pa.int64()), ("b", pa.string())]): [{"a": 1, "b": None}, None, {"a": None, "b": "x"}],
    pa.list_(pa.struct([("a", pa.list_(pa.string()))])): [[{"a": ["p", "q"]}], [], None],
    pa.null(): [None, None, None],
}


@pytest.mark.parametrize("dtype", list(VALUES), ids=str)
def test_every_type_comes_back(dtype):
    array = pa.array([None, *VALUES[dtype]], dtype)
    codec = RowCodec([pa.int64(), dtype, pa.string()])
    for column in (array, array.slice(1)):
        rows = len(column)
        numbers, names = pa.array(range(rows)), pa.array([f"row {row}" for row in range(rows)])
        data, offsets = codec.encode([numbers, column, names], rows)
        assert codec.decode(data, offsets[:-1].copy()) == [numbers, column, names]
        backwards = np.arange(rows)[::-1]
        assert codec.decode(data, offsets[:-1][backwards])[1] == column.take(pa.array(backwards))


def test_rows_without_columns():
    codec = RowCodec([])
    data, offsets = codec.encode([], 3)
    assert (len(data), offsets.tolist(), codec.decode(data, offsets[:-1].copy())) == (0, [0, 0, 0, 0], [])
