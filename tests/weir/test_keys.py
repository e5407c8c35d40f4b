"""Canonical key bytes, hashes, groups and the counting sort. Golden values are promises to stored state."""

import datetime
import io
import struct

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import GraphError, InputError, StateError
from weir.keys.hashing import (
    KeyColumn,
    check_key_type,
    decode_keys,
    hash_key,
    hash_keys,
    key_bytes,
    key_groups,
    partition_hashes,
)

INTEGER_TYPES = [getattr(pa, sign + str(width))() for sign in ("int", "uint") for width in (8, 16, 32, 64)]
STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def batch_of(*arrays):
    return pa.RecordBatch.from_arrays(list(arrays), names=[f"k{i}" for i in range(len(arrays))])


def keys_of(*arrays):
    return key_bytes(batch_of(*arrays), tuple(f"k{i}" for i in range(len(arrays))))


def integer_bytes(value):
    return struct.pack(">Q", (value % 2**64) ^ (1 << 63))


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_hash_equals_the_reference(values):
    keys = keys_of(pa.array(values, pa.binary()))
    assert hash_keys(keys).tolist() == [xxhash.xxh64_intdigest(value) for value in values]


def test_hash_equals_the_reference_at_every_length():
    values = [bytes((7 * i + length) % 256 for i in range(length)) for length in range(301)]
    keys = keys_of(pa.array(values, pa.large_binary()))
    expected = [xxhash.xxh64_intdigest(value) for value in values]
    assert hash_keys(keys).tolist() == expected
    assert [int(hash_key(value)) for value in values] == expected


def test_golden_hashes_and_groups():
    names = ["", "a", "server-1", "server-100000", "0123456789abcdef0123456789abcdef!"]
    hashes = hash_keys(keys_of(pa.array(names)))
    assert [f"{value:016x}" for value in hashes.tolist()] == [
        "ef46db3751d8e999",
        "d24ec4f1a98c6e5b",
        "740d93affc863234",
        "3075c57fef102f88",
        "8afff4daac4e677e",
    ]
    assert key_groups(hashes, 128).tolist() == [119, 105, 58, 24, 69]
    numbers = hash_keys(keys_of(pa.array([0, 1, -1, 2**63 - 1])))
    assert [f"{value:016x}" for value in numbers.tolist()] == [
        "a7299a58d03a1d0c",
        "2dba37a4e405904f",
        "043de1bbaf341994",
        "85d136adb773c6c9",
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integer_hash_without_bytes_equals_the_hash_of_the_bytes(values):
    keys = keys_of(pa.array(values, pa.int64()))
    assert keys.integers is not None
    hashes = hash_keys(keys)
    assert keys.to_list() == [integer_bytes(value) for value in values]
    assert hashes.tolist() == [xxhash.xxh64_intdigest(integer_bytes(value)) for value in values]
    assert [value for _, value in sorted(zip(keys.to_list(), values, strict=True))] == sorted(values)


@pytest.mark.parametrize("data_type", INTEGER_TYPES, ids=str)
def test_every_integer_width_has_the_same_key(data_type):
    values = [0, 1, 100, 127]
    assert keys_of(pa.array(values, data_type)).to_list() == [integer_bytes(value) for value in values]


def test_integer_likes_are_keyed_by_their_integer():
    epoch_day = datetime.date(1970, 1, 3)
    for array, value in [
        (pa.array([True]), 1),
        (pa.array([epoch_day], pa.date32()), 2),
        (pa.array([epoch_day], pa.date64()), 2 * 86_400_000),
        (pa.array([5], pa.timestamp("ms")), 5),
        (pa.array([-5], pa.timestamp("us", tz="UTC")), -5),
        (pa.array([6], pa.time32("s")), 6),
        (pa.array([7], pa.duration("ns")), 7),
        (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    ]:
        assert keys_of(array).to_list() == [integer_bytes(value)], array.type
        assert decode_keys(keys_of(array), [array.type]) == [array]


@pytest.mark.parametrize("data_type", STRING_TYPES, ids=str)
def test_string_keys_are_their_own_bytes(data_type):
    values = ["server-1", "", "größe", "server-1"]
    array = pa.array(values, pa.string()).cast(data_type)
    keys = keys_of(array)
    assert keys.to_list() == [value.encode() for value in values]
    assert decode_keys(keys, [data_type])[0].to_pylist() == values


@pytest.mark.parametrize("data_type", [pa.string(), pa.large_string()], ids=str)
def test_string_keys_are_views_and_respect_slices(data_type):
    array = pa.array([f"key-{i}" for i in range(100)], data_type)
    keys = keys_of(array[40:43])
    assert keys.to_list() == [b"key-40", b"key-41", b"key-42"]
    assert keys.to_list(np.array([2, 0])) == [b"key-42", b"key-40"]
    assert keys.key(1) == b"key-41"
    buffer = array.buffers()[2]
    assert keys.data.__array_interface__["data"][0] == buffer.address
    assert hash_keys(keys).tolist() == [xxhash.xxh64_intdigest(key) for key in keys.to_list()]
    del array
    assert keys.to_list() == [b"key-40", b"key-41", b"key-42"]


def test_unaligned_buffers_hash_alike():
    raw = pa.py_buffer(b"x" + np.array([0, 3, 6], np.int32).tobytes() + b"abcdef")
    array = pa.Array.from_buffers(pa.string(), 2, [None, raw.slice(1, 12), raw.slice(13)])
    assert hash_keys(keys_of(array)).tolist() == [xxhash.xxh64_intdigest(key) for key in (b"abc", b"def")]


@pytest.mark.parametrize("data_type", [*STRING_TYPES, *BINARY_TYPES, pa.int64(), pa.bool_()], ids=str)
def test_no_rows(data_type):
    keys = keys_of(pa.array([], data_type))
    assert len(keys) == 0
    assert keys.to_list() == []
    assert hash_keys(keys).tolist() == []
    assert decode_keys(keys, [data_type])[0].to_pylist() == []


def test_null_is_a_key_of_its_own():
    for array in (pa.array(["a", None, ""]), pa.array([0, None, -1]), pa.array([True, None, False])):
        keys = keys_of(array)
        assert keys.key(1) == b"\xff"
        assert len(set(keys.to_list())) == 3
        assert decode_keys(keys, [array.type]) == [array]
        assert hash_keys(keys).tolist() == [xxhash.xxh64_intdigest(key) for key in keys.to_list()]


def test_a_null_among_texts_leaves_no_byte_that_is_not_utf_8():
    texts = pa.array(["a", None, "é", None])
    (decoded,) = decode_keys(keys_of(texts), [pa.string()])
    assert decoded == texts
    assert decoded.buffers()[2].to_pybytes() == "aé".encode()
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, pa.schema([("k", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([decoded], names=["k"]))
    # Polars looks at all of them.
    assert pl.read_ipc_stream(io.BytesIO(stream.getvalue()))["k"].to_list() == ["a", None, "é", None]


def test_null_in_a_lone_binary_column_is_refused():
    with pytest.raises(InputError, match="'k0' is binary and holds null"):
        keys_of(pa.array([b"a", None]))


@pytest.mark.parametrize("data_type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_float_keys_are_refused(data_type):
    with pytest.raises(GraphError, match=r"'k0' has type .*floating-point"):
        keys_of(pa.array([None], data_type))


def test_other_types_and_absent_columns_are_refused():
    with pytest.raises(GraphError, match="'names' has type list"):
        check_key_type("names", pa.list_(pa.string()))
    with pytest.raises(GraphError, match=r"'zone' is not in the batch.*columns are: k0"):
        key_bytes(batch_of(pa.array([1])), ("zone",))
    check_key_type("names", pa.string())


def test_composite_keys_are_unambiguous():
    left = pa.array(["a", "ab", None, "", "a"])
    right = pa.array(["bc", "c", "x", None, "bc"])
    keys = keys_of(left, right).to_list()
    assert keys[0] == b"\x02\x01\x00\x00\x00a\x02\x02\x00\x00\x00bc"
    assert keys[0] == keys[4]
    assert len(set(keys)) == 4
    mixed = keys_of(pa.array([-2, None], pa.int16()), pa.array(["z", ""])[0:2]).to_list()
    assert mixed == [
        b"\x01" + integer_bytes(-2) + b"\x02\x01\x00\x00\x00z",
        b"\x00\x02\x00\x00\x00\x00",
    ]


ROWS = st.lists(
    st.tuples(
        st.none() | st.text(max_size=8),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.binary(max_size=8),
        st.none() | st.booleans(),
    ),
    max_size=12,
)


@given(ROWS, st.integers(0, 3))
def test_composite_keys_round_trip(rows, skip):
    types = [pa.string(), pa.int32(), pa.large_binary(), pa.bool_()]
    arrays = [pa.array([row[i] for row in rows], data_type)[skip:] for i, data_type in enumerate(types)]
    keys = keys_of(*arrays)
    assert decode_keys(keys, types) == arrays
    assert decode_keys(KeyColumn.from_list(keys.to_list()), types) == arrays
    assert len(set(keys.to_list())) == len(set(rows[skip:]))


def test_damaged_keys_are_found():
    good = keys_of(pa.array(["a"]), pa.array([1])).key(0)
    types = [pa.string(), pa.int64()]
    for bad in (b"", good[:-1], good[:4], good + b"\x00", b"\x01" + good[1:], b"\x07"):
        with pytest.raises(StateError, match="component"):
            decode_keys(KeyColumn.from_list([good, bad]), types)
    with pytest.raises(StateError, match="not a key of type int64"):
        decode_keys(KeyColumn.from_list([b"123"]), [pa.int64()])
    with pytest.raises(StateError, match="type int8"):
        decode_keys(keys_of(pa.array([1000])), [pa.int8()])
    with pytest.raises(StateError, match="type string"):
        decode_keys(KeyColumn.from_list([b"\xfe\xfe"]), [pa.string()])


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.sampled_from([1, 2, 7, 128, 1000, 4096]))
def test_groups_scale_the_upper_half_of_the_hash(values, max_parallelism):
    groups = key_groups(np.array(values, dtype=np.uint64), max_parallelism)
    assert groups.dtype == np.uint16
    assert groups.tolist() == [((value >> 32) * max_parallelism) >> 32 for value in values]


@pytest.mark.parametrize("max_parallelism", [0, -1, 4097])
def test_max_parallelism_is_bounded(max_parallelism):
    with pytest.raises(ValueError, match=r"1\.\.4096"):
        key_groups(np.zeros(1, np.uint64), max_parallelism)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=80), st.integers(1, 9), st.integers(1, 40), st.randoms())
def test_partition_is_a_stable_sort(values, subtask_count, max_parallelism, random):
    table = np.array([random.randrange(subtask_count) for _ in range(max_parallelism)], dtype=np.int32)
    table.flags.writeable = False
    hashes = np.array(values, dtype=np.uint64)
    groups = key_groups(hashes, max_parallelism)
    order, offsets = partition_hashes(hashes, table, subtask_count)
    destinations = table[groups]
    assert order.dtype == np.uint32
    assert order.tolist() == np.argsort(destinations, kind="stable").tolist()
    assert np.diff(offsets).tolist() == np.bincount(destinations, minlength=subtask_count).tolist()


@pytest.mark.parametrize("destinations", [[0], [1], [0, 1], [1, 0, 0, 0]])
def test_two_destinations_have_their_rows_in_order(destinations):
    """Also where one of them has none, and of numbers of rows that are even and odd."""
    table = np.array(destinations, dtype=np.int32)
    rng = np.random.default_rng(len(destinations))
    for rows in (*range(40), 10_001):
        hashes = rng.integers(0, 2**64, rows, dtype=np.uint64)
        of_rows = table[key_groups(hashes, len(table))]
        order, offsets = partition_hashes(hashes, table, 2)
        assert order.tolist() == np.argsort(of_rows, kind="stable").tolist()
        assert offsets.tolist() == [0, rows - int(of_rows.sum()), rows]


def test_partition_refuses_what_is_out_of_range():
    hashes = np.array([2**64 - 1], np.uint64)
    for table in (np.array([0, 0, 0, 2], np.int32), np.array([0, 0, 0, -1], np.int32)):
        with pytest.raises(ValueError, match="there are 2 subtasks"):
            partition_hashes(hashes, table, 2)
    with pytest.raises(ValueError, match="subtask_count is 0"):
        partition_hashes(hashes, np.zeros(4, np.int32), 0)
