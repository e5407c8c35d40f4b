"""Rows that wait for their key groups, against a dictionary of lists."""

import numpy as np
import pyarrow as pa

from task_manager.ownership.parking import ParkedRows
from weir.rows.records import InputRows

GROUPS = 16


def parked(park, model, rng, number):
    groups = rng.integers(0, GROUPS, rng.integers(1, 40)).astype(np.uint16)
    values = [number * 1000 + row for row in range(len(groups))]
    park.add(InputRows(0, pa.RecordBatch.from_pydict({"value": values})), groups)
    for group, value in zip(groups.tolist(), values, strict=True):
        model.setdefault(group, []).append(value)


def test_each_group_gives_its_rows_once_and_in_order_of_arrival():
    rng = np.random.default_rng(3)
    for _ in range(50):
        park, model = ParkedRows(GROUPS), {}
        for number in range(30):
            if rng.random() < 0.6:
                parked(park, model, rng, number)
            else:
                groups = rng.permutation(GROUPS)[: rng.integers(1, 5)].tolist()
                taken = park.take(groups)
                expected = [value for group in groups for value in model.pop(group, [])]
                assert [n for item in taken for n in item.batch.column("value").to_pylist()] == expected
            left = sum(map(len, model.values()))
            assert bool(park) == bool(left)
            assert park.size_bytes == 8 * left
        assert sum(item.batch.num_rows for item in park.take(range(GROUPS))) == left
        assert not park
        assert park.take(range(GROUPS)) == []


def test_asking_for_each_group_alone_costs_each_row_once():
    """Half a million rows and 128 groups: seconds if each request looked at all rows."""
    park = ParkedRows(128)
    rng = np.random.default_rng(4)
    for number in range(1000):
        groups = rng.integers(0, 128, 500).astype(np.uint16)
        park.add(InputRows(0, pa.RecordBatch.from_pydict({"value": np.full(500, number)})), groups)
    copied = 0
    for group in range(128):
        park.add(InputRows(0, pa.RecordBatch.from_pydict({"value": [0]})), np.array([127], dtype=np.uint16))
        [item] = park.take([group])
        rows = item.batch
        copied += rows.num_rows
        assert np.all(np.diff(rows.column("value").to_numpy()[:3000]) >= 0)
    assert copied == 500_128
    assert not park
