"""Values of before aggregates were added, read with those of after."""

import numpy as np
import pytest

from weir.errors import StateMismatchError
from weir.state.packed import pack_values
from weir.state.tables.cells import accumulators


@pytest.mark.parametrize("cells", [2, 9, 17])
def test_values_of_several_lengths_are_padded_as_each_alone(cells):
    chosen = np.random.default_rng(cells)
    values = [None]
    for _ in range(200):
        count = int(chosen.integers(1, cells + 1))
        presence = chosen.integers(0, 255, (1, accumulators.presence_bytes(count)), dtype=np.uint8)
        values.append(accumulators.encode_values(chosen.integers(-9, 9, (1, count)), presence))
    wanted = pack_values(
        [None if value is None else accumulators.padded(value, cells) for value in values],
        accumulators.value_bytes(cells),
    )
    found = accumulators.pack_padded(values, cells)
    assert (found[0] == wanted[0]).all()
    assert (found[1] == wanted[1]).all()


@pytest.mark.parametrize("wrong", [b"", b"12345", bytes(40)])
def test_values_of_no_length_are_refused(wrong):
    with pytest.raises(StateMismatchError):
        accumulators.pack_padded([wrong], 3)
