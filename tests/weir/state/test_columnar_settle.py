"""What a failed capture of cells did not write is written by the next flush, and by a handover."""

import numpy as np
import pytest

from weir.keys import hashing as weir_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.cell_table import CellTable


@pytest.mark.parametrize("write", ["flush", "flush_groups", "release_groups", "flush_part"])
def test_entries_of_a_failed_capture_are_written(write):
    backend = MemoryBackend()
    table = CellTable(backend, 1, 1, 1 << 20, 4)
    keys = weir_keys.KeyColumn.from_list([b"a", b"b"])
    hashes = weir_keys.hash_keys(keys)
    table.write(
        hashes, keys.data, keys.offsets, np.arange(2), np.full((2, 1), 7), np.ones((2, 1), dtype=np.uint8)
    )
    capture = table.capture()
    assert capture is not None
    capture.abandon()
    getattr(table, write)(*{"flush": (), "flush_part": (1.0,)}.get(write, (range(4),)))
    assert sum(1 for _ in backend.scan()) == 2


def test_reading_makes_nothing_dirty_and_what_is_empty_is_deleted():
    backend = MemoryBackend()
    table = CellTable(backend, 1, 1, 1 << 20, 4, drops_empty=True)
    keys = weir_keys.KeyColumn.from_list([b"a", b"b"])
    hashes = weir_keys.hash_keys(keys)
    cells, presence = table.read(hashes, keys.data, keys.offsets)
    assert not presence.any()
    assert table.capture() is None
    table.write(hashes, keys.data, keys.offsets, np.arange(2), cells + 5, presence | 1)
    table.flush()
    assert sum(1 for _ in backend.scan()) == 2
    table.write(hashes, keys.data, keys.offsets, np.array([1]), cells[:1], presence[:1])
    table.flush()
    assert sum(1 for _ in backend.scan()) == 1
