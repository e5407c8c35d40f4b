"""The rows with the largest values of each window: found in one pass, the same as by a plain sort."""

import datetime as dt
import decimal
import math
import random

import pyarrow as pa
import pytest

from weir.operators.windows.rows.window_top import WindowTopPartOperator, first_rows, largest_rows
from weir.rows.frames import frame_of
from weir.rows.records import UNNAMED_COLUMN
from weir.specs.row_order import OrderColumn
from weir.specs.window_top import WindowTopPartSpec

_DAY = dt.datetime(2024, 1, 1)
_VALUES = {
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "bool": (pa.bool_(), [False, True]),
    "double": (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 1e-300, 2.5, math.inf, math.nan]),
    "float": (pa.float32(), [-1.5, 0.0, 2.5, math.nan]),
    "timestamp": (pa.timestamp("us"), [_DAY + dt.timedelta(microseconds=each) for each in (0, 1, 10**6)]),
    "text": (pa.string(), ["", "a", "b", "é"]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal(each) for each in ("-1.00", "0.50", "2.25")]),
}


def _expected(batch: pa.RecordBatch, rows: int, *, ties: bool) -> list[int]:
    windows: dict[tuple[int, int], list[int]] = {}
    columns = batch.to_pydict()
    for row, value in enumerate(columns["v"]):
        if value is not None and value == value:
            windows.setdefault((columns["window_start"][row], columns["window_end"][row]), []).append(row)
    found = []
    for members in windows.values():
        # Stable: by the other column first, then by the value.
        ordered = sorted(members, key=lambda row: columns["o"][row])
        ordered.sort(key=lambda row: columns["v"][row], reverse=True)
        last = columns["v"][ordered[:rows][-1]]
        found += [row for row in members if columns["v"][row] >= last] if ties else ordered[:rows]
    return sorted(found)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", _VALUES)
def test_the_rows_are_those_of_a_plain_sort(name, ties):
    dtype, values = _VALUES[name]
    chance = random.Random(f"{name} {ties}")
    for _ in range(60):
        count = chance.choice([0, 1, 2, 7, 60, 300])
        starts = [10 * chance.randrange(chance.choice([1, 2, 30])) for _ in range(count)]
        nulls = chance.choice([0, 0, 0.3, 1])
        batch = pa.record_batch(
            {
                "v": pa.array(
                    [None if chance.random() < nulls else chance.choice(values) for _ in starts], dtype
                ),
                "o": pa.array(chance.sample(range(1000), count), pa.int64()),
                "window_start": pa.array(starts, pa.int64()),
                "window_end": pa.array([start + 10 for start in starts], pa.int64()),
            }
        )
        rows = chance.choice([1, 1, 2, 5, 70])
        assert largest_rows(batch, "v", rows, ties=ties).tolist() == _expected(batch, rows, ties=ties)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", _VALUES)
def test_what_is_passed_on_in_an_order_is_what_sorting_all_rows_finds(name, ties):
    dtype, values = _VALUES[name]
    chance = random.Random(f"order {name} {ties}")
    for _ in range(40):
        count = chance.choice([1, 7, 60, 2_000])
        starts = [10 * chance.randrange(chance.choice([1, 2, 30])) for _ in range(count)]
        batch = pa.record_batch(
            {
                "v": pa.array([chance.choice([*values, None]) for _ in starts], dtype),
                "o": pa.array([chance.randrange(50) for _ in starts], pa.int64()),
                "k": pa.array([chance.choice("ab") for _ in starts]),
                "window_start": pa.array(starts, pa.int64()),
                "window_end": pa.array([start + 10 for start in starts], pa.int64()),
                "row": pa.array(range(count), pa.int64()),
            }
        )
        first = OrderColumn("v", ascending=chance.random() < 0.5, nulls_first=chance.random() < 0.5)
        order, rows, key = (first, OrderColumn("o", ascending=True)), chance.choice([1, 2, 5, 70]), ("k",)
        (found,) = WindowTopPartOperator(WindowTopPartSpec("v", rows, ties, order, key)).process(batch)
        groups = ["window_start", "window_end", "k"]
        wanted = first_rows(frame_of(batch), groups, order, rows, ties=ties)[UNNAMED_COLUMN].sort()
        assert found["row"].equals(batch["row"].take(wanted.to_arrow()))
