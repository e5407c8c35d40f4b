"""First rows of groups that NumPy finds are those that sorting them by Polars finds, in the same order."""

import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.effort import cases
from weir.operators.windows.rows.exact_places import exact_places
from weir.operators.windows.rows.window_top import first_rows
from weir.rows.frames import frame_of
from weir.rows.records import UNNAMED_COLUMN
from weir.specs.row_order import OrderColumn

_COLUMNS = {
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "int16": (pa.int16(), list(range(-200, 200))),
    "bool": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [0, 1, 20_000]),
    "timestamp": (pa.timestamp("us"), list(range(-500, 500))),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(cases(60)))
def test_first_rows_are_those_of_a_sort(seed, ties):
    chance = random.Random(f"{seed} {ties}")
    count = chance.choice([0, 1, 5, 60, 500])
    names = chance.sample(list(_COLUMNS), chance.choice([1, 1, 2, 3]))
    columns = {
        name: pa.array([chance.choice(_COLUMNS[name][1]) for _ in range(count)], _COLUMNS[name][0])
        for name in names
    }
    rows = pa.record_batch(columns | {"other": pa.array(range(count), pa.int64())})
    order = [OrderColumn(name, chance.random() < 0.5, chance.random() < 0.5) for name in names]
    groups = np.array([chance.randrange(chance.choice([1, 3, 40])) for _ in range(count)], dtype=np.int64)
    wanted = chance.choice([1, 2, 5, 70])
    placed = exact_places(rows, groups, order, wanted, ties=ties)
    frame = frame_of(rows).with_columns(pl.Series("group", groups))
    expected = first_rows(frame, ["group"], tuple(order), wanted, ties=ties)
    if placed is None:
        # Where equal rows go by the other columns, NumPy leaves it to the sort.
        assert not ties
        assert frame.select("group", *names).is_duplicated().any()
        return
    assert placed[0].tolist() == expected[UNNAMED_COLUMN].to_list()
    assert placed[1].tolist() == expected["\1place"].to_list()


@pytest.mark.parametrize(
    "column",
    [pa.array([1, None]), pa.array([1.0, 0.0]), pa.array(["a", "b"]), pa.array([1, 2], pa.decimal128(5, 2))],
    ids=lambda column: str(column.type),
)
def test_values_of_other_orders_are_sorted_by_polars(column):
    rows = pa.record_batch({"v": column})
    groups = np.zeros(2, dtype=np.int64)
    assert exact_places(rows, groups, [OrderColumn("v")], 1, ties=True) is None
