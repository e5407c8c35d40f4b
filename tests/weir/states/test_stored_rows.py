"""Whole rows of a key as one value: golden bytes, and what is written is read."""

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import StateError
from weir.state.handles.stored_rows import encoded_rows, read_rows, write_rows

#: Two rows, ("ab", 1.5) of order 7 and (null, -2.0) of order -1, as version 1 writes them.
GOLDEN = bytes.fromhex(
    "01" "02000000"
    "0700000000000000" "10000000" "ffffffffffffffff" "0a000000"
    "02" "02000000" "6162" "01" "bff8000000000000"
    "00" "01" "4000000000000000"
)  # fmt: skip
COLUMNS = [pa.array(["ab", None]), pa.array([1.5, -2.0])]
TYPES = [pa.string(), pa.float64()]


def written(columns, counts, orders):
    encoded = encoded_rows(columns)
    return write_rows(
        np.array(counts), np.array(orders), encoded.offsets[:-1], np.diff(encoded.offsets), encoded.data
    )


def test_the_bytes_are_a_promise():
    assert written(COLUMNS, [2], [7, -1]) == [GOLDEN]


def test_what_is_written_is_read():
    columns = [pa.array(["a", "b", None, "", "é" * 300]), pa.array([1.5, -0.0, None, float("inf"), 5.0])]
    values = written(columns, [2, 1, 2], [5, 4, 3, 2, 1])
    stored = read_rows([None, values[0], None, values[1], values[2], None])
    assert stored.counts.tolist() == [0, 2, 0, 1, 2, 0]
    assert (stored.orders.tolist(), stored.keys.tolist()) == ([5, 4, 3, 2, 1], [1, 1, 3, 4, 4])
    assert stored.decoded(np.array([4, 0, 2]), TYPES) == [
        column.take(pa.array([4, 0, 2])) for column in columns
    ]
    assert read_rows([None, None]).counts.tolist() == [0, 0]
    assert read_rows([]).orders.tolist() == []


def test_rows_of_another_version_are_refused():
    with pytest.raises(StateError, match="not of version 1"):
        read_rows([b"\x02" + GOLDEN[1:]])


def test_no_keys_have_no_values():
    none = np.empty(0, dtype=np.int64)
    assert write_rows(none, none, none, none, np.empty(0, dtype=np.uint8)) == []
