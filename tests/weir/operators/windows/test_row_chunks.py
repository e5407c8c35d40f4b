"""Chunks of rows that windows keep: golden bytes of every version, many at once, and of mixed versions."""

import random
from itertools import pairwise

import pyarrow as pa
import pytest

from weir.errors import StateMismatchError
from weir.operators.windows.rows.row_chunks import (
    chunk_of_rows,
    chunks_of_rows,
    rows_of_chunk,
    rows_of_chunks,
)

ROWS = pa.RecordBatch.from_pylist(
    [{"at": 7, "t": "a\N{EURO SIGN}"}, {"at": None, "t": None}, {"at": -1, "t": ""}],
    schema=pa.schema([("at", pa.int64()), ("t", pa.string())]),
)
#: Of version 2 after the schema: two rows, and one.
GOLDEN = [
    "0200000011000000" + "0d000000" + "00" + "0700000000000000" + "04000000" + "61e282ac"
    "03" + "00" * 12,
    "01000000" + "0d000000" + "00" + "ff" * 8 + "00000000",
]  # fmt: skip


def test_golden_bytes():
    schema = ROWS.schema.serialize().to_pybytes()
    head = b"\x02" + len(schema).to_bytes(4, "little") + schema
    expected = [head + bytes.fromhex(rest) for rest in GOLDEN]
    assert list(chunks_of_rows(ROWS, [2, 3])) == expected
    assert [rows_of_chunk(data) for data in expected] == [ROWS.slice(0, 2), ROWS.slice(2)]
    # Version 1 is an Arrow IPC stream, which says its own version.
    assert chunk_of_rows(ROWS)[0] == 0xFF
    with pytest.raises(StateMismatchError, match="version 3, this program reads up to 2"):
        rows_of_chunk(b"\x03" + expected[0][1:])


def test_many_chunks_of_all_versions_and_schemas():
    rng = random.Random(1)
    rows = [{"at": rng.randrange(9), "t": rng.choice([None, "", "x" * 50]), "l": [1] * n} for n in range(60)]
    plain = pa.RecordBatch.from_pylist(rows, schema=pa.schema([*ROWS.schema, ("l", pa.list_(pa.int8()))]))
    # The same columns, but other bytes of the schema.
    other = plain.cast(plain.schema.with_metadata({"made": "elsewhere"}))
    stops = [*sorted(rng.sample(range(1, 60), 20)), 60]
    chunks = []
    for (start, stop), data in zip(pairwise([0, *stops]), chunks_of_rows(plain, stops), strict=True):
        piece = plain.slice(start, stop - start)
        form = rng.randrange(3)
        chunks.append(
            [
                data,
                chunk_of_rows(piece),
                next(chunks_of_rows(other.slice(start, stop - start), [stop - start])),
            ][form]
        )
    found, counts = rows_of_chunks(chunks)
    assert found.to_pylist() == rows
    assert counts.tolist() == [stop - start for start, stop in pairwise([0, *stops])]
