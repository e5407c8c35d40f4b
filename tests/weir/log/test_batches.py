"""Bodies of batches: what is no record is refused where it is sent, and where it is read."""

import numpy as np
import pyarrow as pa
import pytest

from weir.log.batches import body_of, records_of
from weir.protocol.log.entries import (
    DamagedEntryError,
    checksum,
    entries_in,
    envelope_bytes,
    header_bytes,
)


def entry_of(body, **changes):
    header = body.header(7, 1, 0, 0)._replace(**changes)
    batch = header_bytes(header) + body.content
    buffer = envelope_bytes(len(batch), 1, 40, 1000, checksum(batch)) + batch
    (entry,) = entries_in(buffer)
    return buffer, entry


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_records_are_read_as_they_were_packed(compression):
    body = body_of([3, -1], [b"entry" * 50, b""], compression)
    assert [tuple(record) for record in records_of(*entry_of(body)).records()] == [
        (40, 3, b"entry" * 50),
        (41, -1, b""),
    ]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize(
    "changes",
    [
        {"raw_bytes": (4 << 30) - 1},
        {"raw_bytes": 8 << 20},
        {"raw_bytes": 100},
        {"record_count": 1},
        {"record_count": 3},
        {"record_count": (4 << 30) - 1},
        {"body_bytes": 5},
    ],
)
def test_a_header_that_promises_something_else_is_damage_and_costs_no_room(compression, changes):
    body = body_of([3, -1], [b"entry" * 50, b""], compression)
    with pytest.raises(DamagedEntryError):
        records_of(*entry_of(body, **changes))


@pytest.mark.parametrize("flags", [1, 2])
def test_bytes_that_cannot_be_decompressed_are_damage(flags):
    body = body_of([3, -1], [b"entry" * 50, b""], "none")
    with pytest.raises(DamagedEntryError, match=r"the batch at offset 40 cannot be decompressed|other bytes"):
        records_of(*entry_of(body, flags=flags))


@pytest.mark.parametrize(
    "buffers", [[np.arange(3)], [pa.py_buffer(b"x"), memoryview(np.arange(2))], ["text"]]
)
def test_what_is_not_bytes_is_refused(buffers):
    with pytest.raises(TypeError):
        body_of(range(len(buffers)), buffers, "none")
