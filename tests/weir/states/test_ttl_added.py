"""A TTL that is added to lists and maps, with rows that come before the job has a watermark."""

import polars as pl
import pytest

import weir
from weir import testing

SCHEMA = {"k": str, "v": int, "at": int}
ROWS = [{"k": "a", "v": number, "at": 1_000 * number} for number in range(6)]


def kept(ttl):
    class Kept(weir.KeyedProcess):
        values = weir.ListState(int, ttl=ttl)
        by_value = weir.MapState(int, int, ttl=ttl)

        def process(self, key, row, context):
            self.values.append(row["v"])
            self.by_value[row["v"]] = row["v"]
            yield {
                "k": key[0],
                "values": list(self.values),
                "items": list(self.by_value),
                "n": len(self.by_value),
            }

    flow = weir.Dataflow("kept")
    source = weir.JsonLines("unused", schema=SCHEMA, event_time="at")
    result = {"k": str, "values": pl.List(pl.Int64), "items": pl.List(pl.Int64), "n": int}
    rows = flow.source("rows", source).key_by("k").process("kept", Kept, result)
    rows.sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_elements_expire_that_come_before_it_is_known_how_old_the_others_are(cut):
    with testing.start(kept(None)) as job:
        job.push("rows", ROWS[:2])
        savepoint = job.savepoint()
    with testing.start(kept(weir.Ttl("2s")), from_savepoint=savepoint) as job:
        for first in range(2, len(ROWS), cut):
            job.push("rows", ROWS[first : first + cut])
        told = job.rows("out").to_dicts()
        # From here on it is known that those of before the change are of now.
        job.advance_watermark("rows", 6_000)
        job.push("rows", [{"k": "a", "v": 7, "at": 7_000}, {"k": "a", "v": 8, "at": 8_000}])
        told += job.rows("out").to_dicts()[-2:]
    expected = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 4, 5], [0, 1, 7], [7, 8]]
    assert [row["values"] for row in told] == [row["items"] for row in told] == expected
    assert [row["n"] for row in told] == [len(values) for values in expected]
