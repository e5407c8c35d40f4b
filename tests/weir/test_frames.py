"""Frames of parts of batches, with columns that Polars takes only whole."""

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.rows.frames import frame_of

PAIRS = [[1, 2], None, [3, 4], None, [5, 6]]


@pytest.mark.parametrize(("start", "count"), [(0, 5), (1, 3), (2, 1), (4, 1), (5, 0)])
def test_a_part_of_rows_with_lists_of_a_fixed_size(start, count):
    whole = pa.record_batch(
        {
            "pair": pa.array(PAIRS, pa.list_(pa.int16(), 2)),
            "within": pa.array(
                [{"pair": pair} for pair in PAIRS], pa.struct({"pair": pa.list_(pa.int16(), 2)})
            ),
        }
    )
    part = frame_of(whole.slice(start, count))
    assert part["pair"].to_list() == PAIRS[start : start + count]
    assert part["within"].to_list() == [{"pair": pair} for pair in PAIRS[start : start + count]]
    assert part["pair"].dtype == pl.Array(pl.Int16, 2)


class Same(weir.KeyedProcess):
    def process(self, key, row, context):
        yield row


def test_lists_of_a_fixed_size_pass_through_steps_that_get_parts_of_batches():
    flow = weir.Dataflow("job")
    schema = {"k": str, "at": int, "pair": weir.Nullable(pl.Array(pl.Int16, 2))}
    rows = flow.source("rows", weir.ArrowIpc("none", schema=schema), event_time="at")
    same = rows.key_by("k").process("same", Same, schema).with_columns("low", low=pl.col("pair").arr.min())
    same.sink("out", weir.Collect())
    given = [{"k": "ab"[at % 2], "at": at, "pair": PAIRS[at % 5]} for at in range(40)]
    with testing.start(flow) as job:
        job.push("rows", given[:3])
        job.push("rows", given[3:])
        found = job.finish()["out"].to_dicts()
    assert sorted((row["at"], row["pair"], row["low"]) for row in found) == [
        (row["at"], row["pair"], row["pair"] and row["pair"][0]) for row in given
    ]
