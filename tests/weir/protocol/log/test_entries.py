"""Bytes of batches and entries are a promise: golden ones, and every flipped bit is noticed."""

import pytest

from weir.protocol.log.entries import (
    CONTROL,
    HEADER_BYTES,
    DamagedEntryError,
    Header,
    checksum,
    control_batch,
    entries_in,
    envelope_bytes,
    header_bytes,
    read_header,
)

BODY = b"0123456789"
HEADER = Header(0x20, 3, -5, 7, 11, 13, 17, len(BODY), len(BODY))
BATCH = header_bytes(HEADER) + BODY
ENTRY = envelope_bytes(len(BATCH), 2, 100, 1_700_000_000_000, checksum(BATCH)) + BATCH


def test_the_bytes_of_an_entry_are_those_of_version_1():
    assert ENTRY.hex() == (
        "3e0000000200000064000000000000000068e5cf8b010000"
        + checksum(BATCH).to_bytes(4, "little").hex()
        + checksum(ENTRY[:28]).to_bytes(4, "little").hex()
        + "574c012003000000fbffffffffffffff07000000000000000b000000000000000d000000"
        + "11000000000000000a0000000a000000"
        + BODY.hex()
    )


def test_what_is_read_is_what_was_written():
    (entry, control) = entries_in(ENTRY + _control())
    assert (entry.envelope.offset, entry.envelope.epoch, entry.end_offset) == (100, 2, 103)
    assert entry.header == HEADER
    assert control.header.flags == CONTROL
    assert control.position == entry.end_position == len(ENTRY)


def _control():
    batch = control_batch(0, 0)
    return envelope_bytes(len(batch), 2, 103, 0, checksum(batch)) + batch


@pytest.mark.parametrize("byte", range(len(ENTRY)))
def test_a_flipped_bit_anywhere_is_noticed(byte):
    broken = bytearray(ENTRY)
    broken[byte] ^= 0x10
    with pytest.raises(DamagedEntryError):
        list(entries_in(bytes(broken)))


@pytest.mark.parametrize("size", [1, 31, 83, 84, len(ENTRY) - 1])
def test_entries_before_one_that_is_cut_short_are_read(size):
    found = entries_in(ENTRY + ENTRY[:size])
    assert next(found).envelope.offset == 100
    with pytest.raises(DamagedEntryError, match="cut short"):
        next(found)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"", "has 52 bytes at least"),
        (b"\0" * HEADER_BYTES, "no batch"),
        (BATCH[:2] + b"\x09" + BATCH[3:], "version 9"),
        (header_bytes(HEADER._replace(record_count=0)), "0 records"),
        (header_bytes(HEADER._replace(flags=7)), "flags 0x7"),
    ],
)
def test_bytes_that_are_no_batch_are_refused(batch, message):
    with pytest.raises(DamagedEntryError, match=message):
        read_header(batch)
