import numpy as np
import pytest

from weir.errors import StateError
from weir.state.tables.cells.accumulators import (
    decode_one,
    decode_values,
    encode_one,
    encode_values,
    presence_bytes,
    value_bytes,
)


def test_golden_bytes() -> None:
    cells = np.array([[1, -2], [0, 0]], dtype=np.int64)
    cells.view(np.float64)[1, 1] = 1.5
    presence = np.array([[3], [2]], dtype=np.uint8)
    encoded = encode_values(cells, presence)
    assert encoded.hex() == "01030100000000000000feffffffffffffff" + "01020000000000000000000000000000f83f"
    decoded_cells, decoded_presence = decode_values([encoded[:18], encoded[18:]], 2)
    np.testing.assert_array_equal(decoded_cells, cells)
    np.testing.assert_array_equal(decoded_presence, presence)


def test_one_value_is_as_one_of_several() -> None:
    cells, presence = np.array([[1, -2, 3] * 3], dtype=np.int64), np.array([[3, 1]], dtype=np.uint8)
    encoded = encode_one(cells[0], presence[0])
    assert encoded == encode_values(cells, presence)
    for decoded, given in zip(decode_one(encoded, 9), (cells, presence), strict=True):
        np.testing.assert_array_equal(decoded, given)
        assert decoded.dtype == given.dtype
        # Kernels take no others.
        assert decoded.flags.writeable
        assert decoded.flags.aligned
    for other in (b"\x02" + encoded[1:], encoded[:-1]):
        with pytest.raises(StateError, match=r"format version 2|has 74 bytes, 75 expected"):
            decode_one(other, 9)


def test_sizes() -> None:
    assert [presence_bytes(cells) for cells in (1, 8, 9)] == [1, 1, 2]
    assert value_bytes(9) == 1 + 2 + 72


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"\x02" + bytes(9)], "format version 2"),
        ([b"\x01" + bytes(9), b""], "has 0 bytes, 10 expected"),
        ([b"\x01" + bytes(8), b"\x01" + bytes(10)], "has 9 bytes, 10 expected"),
    ],
)
def test_values_of_another_form_are_refused(values: list[bytes], message: str) -> None:
    with pytest.raises(StateError, match=message):
        decode_values(values, 1)
