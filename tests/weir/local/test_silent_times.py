"""Steps that assign event times and get no rows do not hold others back, in one process as on task managers."""

import polars as pl
import pytest

import weir

SCHEMA = {"k": int, "at": int}


class Endless(weir.Source):
    """A row for each second, without an end."""

    def splits(self):
        return [0]

    def read(self, split, position):
        at = position or 0
        while True:
            yield [{"k": 0, "at": 1_000 * at}], at + 1
            at += 1


@pytest.mark.parametrize("own_stage", [False, True])
def test_windows_of_two_streams_leave_although_one_has_no_rows(own_stage):
    flow = weir.Dataflow("silent")
    soon = weir.bounded_out_of_orderness("0s", idle_timeout="50ms")
    rows = flow.source(
        "rows", weir.UserSource(Endless, schema=SCHEMA, rate=1_000), event_time="at", watermark=soon
    )
    none = rows.filter("none", pl.col("k") == 1)
    quiet = (none.rebalance() if own_stage else none).assign_event_time("quiet", "at", watermark=soon)
    both = rows.union("both", quiet)
    counts = both.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    counts.sink("out", weir.Collect())
    seen = []

    def have_left(result):
        seen[:] = [row["n"] for row in result["out"]]
        return len(seen) >= 3

    weir.run(flow, for_s=20, until=have_left)
    assert seen[:3] == [5, 5, 5]
