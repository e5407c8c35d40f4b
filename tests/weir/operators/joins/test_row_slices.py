"""Batches whose rows take long are cut, and whole ones come again when they are quick."""

import pyarrow as pa

from weir.operators.joins.row_slices import RowSlices
from weir.testing.manual_clock import ManualClock


def run(slices, clock, rows, row_us):
    """Rows of each slice of a batch whose rows take so long."""
    batch = pa.RecordBatch.from_pydict({"n": list(range(rows))})
    parts = []
    for part in slices.of(batch):
        clock.advance_ms(part.num_rows * row_us / 1e3)
        parts.append(part)
    assert pa.Table.from_batches([*parts, batch.slice(0, 0)]).column("n").to_pylist() == list(range(rows))
    return [part.num_rows for part in parts]


def test_rows_that_take_long_come_in_slices_of_40_ms():
    clock = ManualClock()
    slices = RowSlices(clock)
    assert run(slices, clock, 10_000, 1) == [10_000]
    assert run(slices, clock, 10_000, 20) == [10_000]
    assert run(slices, clock, 5_000, 20) == [2_000, 2_000, 1_000]
    assert run(slices, clock, 2_000, 1_000) == [2_000]
    assert run(slices, clock, 600, 1_000) == [512, 88]
    assert run(slices, clock, 4_000, 1) == [512, 1_024, 2_048, 416]
    assert run(slices, clock, 0, 1) == []
