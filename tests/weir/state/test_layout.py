import numpy as np
import pytest

from tests.weir.state.group_ranges import group_range
from weir.state.layout import (
    StateKey,
    decode_key,
    encode_key,
    encode_keys,
    key_prefix,
    state_prefix,
)


@pytest.mark.parametrize(
    ("fields", "golden"),
    [
        ((0, 0, b"", b""), "0000000000"),
        ((1, 2, b"server-7", b""), "00010002007365727665722d37"),
        ((0x0FFF, 0x0102, b"k", b"\x00\xff"), "0fff01020200ff6b"),
        ((0xFFFF, 0xFFFF, b"\xff", b""), "ffffffff00ff"),
    ],
)
def test_golden_bytes(fields: tuple[int, int, bytes, bytes], golden: str) -> None:
    group, state_id, user_key, namespace = fields
    encoded = encode_key(group, state_id, user_key, namespace)
    assert encoded.hex() == golden
    assert decode_key(encoded) == StateKey(group, state_id, namespace, user_key)


def test_a_namespace_and_a_key_never_run_into_each_other() -> None:
    assert encode_key(1, 1, b"bc", b"a") != encode_key(1, 1, b"c", b"ab")


def test_many_keys_at_once_equal_single_ones() -> None:
    keys = [b"a", b"", b"server-1", b"\xff\x00"]
    groups = np.array([3, 0, 3, 4095], dtype=np.uint16)
    assert encode_keys(groups, 9, keys) == [
        encode_key(int(g), 9, k) for g, k in zip(groups, keys, strict=True)
    ]


def test_a_group_is_one_contiguous_range() -> None:
    keys = sorted(
        encode_key(group, state, b"k", space)
        for group in range(3)
        for state in (0, 65535)
        for space in (b"", b"\xff")
    )
    start, stop = group_range(1, 2)
    assert [decode_key(key).key_group for key in keys if start <= key < stop] == [1] * 4


def test_prefixes_start_the_keys() -> None:
    key = encode_key(7, 8, b"k", b"window")
    assert key.startswith(state_prefix(7, 8))
    assert key.startswith(key_prefix(7, 8, b"window"))
    assert not key.startswith(key_prefix(7, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, b""), "key group -1"),
        ((65536, 0, b""), "key group 65536"),
        ((0, 65536, b""), "state id 65536"),
        ((0, 0, b"", b"x" * 256), "256 bytes"),
    ],
)
def test_fields_that_do_not_fit_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_key(*arguments)


@pytest.mark.parametrize("key", [b"", b"\0\0\0\0", b"\0\0\0\0\x02a"])
def test_bytes_that_end_in_the_header_are_no_key(key: bytes) -> None:
    with pytest.raises(ValueError, match="not a state key"):
        decode_key(key)
