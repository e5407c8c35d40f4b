import pytest

from weir.errors import StateError
from weir.state.cassandra.entries import (
    bucket_of,
    checkpoint_of,
    covered,
    cut,
    decode,
    deletion,
    partitions_of,
    reads_of,
    value_header,
)


def test_a_change_has_a_value_or_deletes_and_knows_its_checkpoint() -> None:
    assert decode(value_header(7) + b"v") == b"v"
    assert decode(value_header(7) + b"") == b""
    assert decode(deletion(7)) is None
    assert checkpoint_of(value_header(2**40) + b"v") == checkpoint_of(deletion(2**40)) == 2**40


def test_the_form_of_a_change_stays() -> None:
    assert value_header(258) + b"value" == bytes.fromhex("010000000000000102") + b"value"
    assert deletion(258) == bytes.fromhex("000000000000000102")


@pytest.mark.parametrize("stored", [b"", b"\1short", b"\2" + bytes(8)])
def test_what_is_no_change_is_refused(stored: bytes) -> None:
    with pytest.raises(StateError, match="no change of state"):
        decode(stored)


def test_a_checkpoint_covers_changes_up_to_its_number() -> None:
    entries = [(b"a", value_header(4) + b"1"), (b"b", deletion(5)), (b"c", value_header(6) + b"1")]
    assert list(covered(entries, 5)) == entries[:2]
    assert list(covered(entries, None)) == entries


def test_keys_of_one_partition_go_together_and_buckets_bound_a_partition() -> None:
    keys = [b"\0\1\0\2a", b"\0\1\0\2b", b"\0\2\0\2a", b"\0\1\0\2c"]
    parts = partitions_of(keys, {b"\0\2": 1})
    assert [(part.prefix, part.bucket, part.positions) for part in parts] == [
        (b"\0\1\0\2", 0, [0, 1, 3]),
        (b"\0\2\0\2", 0, [2]),
    ]
    spread = {part.bucket for part in partitions_of([b"\0\1\0\2%d" % n for n in range(50)], {b"\0\2": 4})}
    assert spread == {0, 1, 2, 3}


def test_what_is_the_same_in_many_key_groups_is_read_together() -> None:
    keys = [b"\0%c\0\2clock" % group for group in range(5)] + [b"\0\7\0\2x", b"\0\7\0\2y", b"\0\7\0\2z"]
    reads = [(read.groups, read.row_keys) for read in reads_of(keys, {b"\0\2": 1}, 2)]
    groups = [b"\0%c" % group for group in range(5)]
    assert reads == [
        (groups[:2], (b"clock",)),
        (groups[2:4], (b"clock",)),
        (groups[4:], (b"clock",)),
        ([b"\0\7"], (b"x", b"y")),
        ([b"\0\7"], (b"z",)),
    ]


def test_a_row_stays_in_its_bucket() -> None:
    # A persisted format: another function would find nothing.
    assert [bucket_of(key, 16) for key in (b"", b"a", b"belgium")] == [0, 3, 4]
    assert bucket_of(b"belgium", 1) == 0


def test_requests_are_cut_by_rows_and_bytes() -> None:
    assert list(cut([1] * 5, 2, 10_000)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(cut([100, 100, 5000, 100], 10, 300)) == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert list(cut([], 10, 100)) == []
