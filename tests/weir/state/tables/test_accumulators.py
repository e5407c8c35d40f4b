import numpy as np
import pytest

from weir.errors import StateError
from weir.state.tables.accumulators import decode_values, encode_values, presence_bytes, value_bytes


def test_golden_bytes() -> None:
    cells = np.array([[1, -2], [0, 0]], dtype=np.int64)
    cells.view(np.float64)[1, 1] = 1.5
    presence = np.array([[3], [2]], dtype=np.uint8)
    encoded = encode_values(cells, presence)
    assert encoded.hex() == "01030100000000000000feffffffffffffff" + "01020000000000000000000000000000f83f"
    decoded_cells, decoded_presence = decode_values([encoded[:18], encoded[18:]], 2)
    np.testing.assert_array_equal(decoded_cells, cells)
    np.testing.assert_array_equal(decoded_presence, presence)


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
