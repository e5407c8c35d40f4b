"""A table whose rows have no time of their own gets one for all: its pairs then have the times of the other side."""

import json

import polars as pl
import pytest

import weir


def source(flow, directory, name, rows, schema, **timing):
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return flow.source(name, weir.JsonLines(str(path), schema=schema), **timing)


@pytest.mark.parametrize(
    "constant", [pl.lit(0), pl.lit(-5) * 1_000, pl.lit(7, pl.UInt8).alias("at")], ids=str
)
def test_windows_after_a_join_with_such_a_table_go_by_the_times_of_the_rows(tmp_path, constant):
    flow = weir.Dataflow("sales")
    given = [{"who": who, "at": at} for at in (1_000, 59_000, 61_000) for who in ("ann", "bob")]
    orders = source(flow, tmp_path, "orders", given, {"who": str, "at": int}, event_time="at")
    people = [{"name": "ann", "country": "be"}, {"name": "bob", "country": "nl"}]
    table = source(flow, tmp_path, "people", people, {"name": str, "country": str}, event_time=constant)
    joined = orders.key_by("who").join("joined", table.key_by("name"))
    counts = joined.key_by("country").window(weir.tumbling("1m")).aggregate("counts", n=weir.count())
    found = [(row["country"], row["window_start"], row["n"]) for row in weir.run(counts)["counts"]]
    assert sorted(found) == [("be", 0, 2), ("be", 60_000, 1), ("nl", 0, 2), ("nl", 60_000, 1)]
