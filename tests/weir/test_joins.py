"""Joins in jobs of one process: what the graph refuses, names of columns, projection, savepoints."""

import re
from pathlib import Path

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError
from weir.plan.stages import physical_graph

AUCTIONS = {"id": int, "at": int, "expires": int, "item": str, "seller": int}
BIDS = {"auction": int, "at": int, "price": int, "note": str}


def streams(right=BIDS):
    flow = weir.Dataflow("auction")
    auctions = flow.source("auctions", weir.JsonLines("/absent", schema=AUCTIONS, event_time="at"))
    bids = flow.source("bids", weir.JsonLines("/absent", schema=right, event_time="at"))
    return flow, auctions, bids


def auction(number, at, expires=100):
    return {"id": number, "at": at, "expires": expires, "item": f"item {number}", "seller": number % 2}


def bid(number, at, price=1):
    return {"auction": number, "at": at, "price": price, "note": "x" * price}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"within": ("0s", "-10s")}, r"from 0 ms to -10000 ms: its lower bound is above its upper"),
        ({"within": ("soon", "0s")}, r"within has 'soon', which is not a duration"),
        ({"within": "10s"}, r"within is '10s'; give two durations"),
        ({"between": ("at", "expire")}, r"no column 'expire'.*expires"),
        ({"between": ("price", "expires")}, r"'price' and 'expires' are columns of different sides"),
        ({"between": ("at", "item")}, r"different sides|column 'item', a bound, is string"),
        ({"how": "outer", "within": ("0s", "1s")}, r"how is 'outer'; it is one of inner, left"),
        ({"window": "10s"}, r"window is \'10s\'; give one such as weir.tumbling"),
        (
            {"window": weir.session("10s")},
            r"of kind session over event time; a join takes tumbling and sliding windows",
        ),
        (
            {"window": weir.sliding("10s", "5s"), "how": "left"},
            r"how='left' goes with tumbling windows; in sliding",
        ),
        ({"ttl": "-1s"}, r"ttl: '-1s' is not a duration"),
        ({"ttl": "1s", "within": (0, 1)}, r"within and ttl are given; give one of them"),
        (
            {"within": (0, 1), "suffix": ""},
            r"column 'at' of the right side would be called 'at', which is there",
        ),
    ],
)
def test_what_is_wrong_is_said_when_the_join_is_written_down(arguments, message):
    _, auctions, bids = streams()
    with pytest.raises(GraphError, match=f"^step 'j': .*{message}") as raised:
        auctions.key_by("id").join("j", bids.key_by("auction"), **arguments)
    assert "\n" not in str(raised.value)


def test_keys_must_fit():
    _, auctions, bids = streams({**BIDS, "auction": str})
    with pytest.raises(GraphError, match=r"step 'j': key column 'id' .* int64, 'auction' .* string; cast"):
        auctions.key_by("id").join("j", bids.key_by("auction"))
    with pytest.raises(GraphError, match=r"step 'j': the left side has 2 key columns .* the right one 1"):
        auctions.key_by("id", "at").join("j", bids.key_by("auction"))
    with pytest.raises(GraphError, match=r"step 'j': join takes a stream of the same Dataflow after key_by"):
        auctions.key_by("id").join("j", bids)
    with pytest.raises(GraphError, match=r"key_by needs at least one column"):
        auctions.key_by().join("j", bids.key_by("auction"))


def test_a_join_needs_equality():
    _, auctions, bids = streams()
    with pytest.raises(GraphError, match=r"step 'auctions': join goes by key, .* key_by\(\"column\"\)\.join"):
        auctions.join("j", bids)
    with pytest.raises(AttributeError, match="a stream has no 'joins'; did you mean 'join'"):
        auctions.joins("j", bids)


def test_bounds_are_told_as_before():
    _, auctions, bids = streams()
    joined = auctions.key_by("id").join("j", bids.key_by("auction"), within=("0s", "1s"))
    assert sorted(joined.node.spec.describe()["bounds"]) == [
        *("lower_column", "lower_ms", "offset_ms", "side", "upper_column", "upper_ms", "window_ms")
    ]


def test_columns_of_the_result():
    flow, auctions, bids = streams()
    joined = auctions.key_by("id").join("j", bids.key_by("auction"), within=("0s", "1m"), how="left")
    assert joined.schema.names == ["id", "at", "expires", "item", "seller", "at_right", "price", "note"]
    assert [field.nullable for field in joined.schema] == [*[False] * 5, *[True] * 3]
    assert joined.key_columns == ("id",)
    counted = joined.count("n")
    counted.sink("out", weir.Collect())
    found = testing.run(
        flow, {"auctions": [auction(1, 10), auction(2, 10)], "bids": [bid(1, 12, 3), bid(1, 13, 4)]}
    )
    assert sorted(found["n"].to_polars().select("id", "price", "n").rows(), key=str) == [
        (1, 3, 1),
        (1, 4, 2),
        (2, None, 1),
    ]


def test_columns_that_nobody_reads_are_neither_sent_nor_kept():
    flow, auctions, bids = streams()
    joined = auctions.key_by("id").join("j", bids.key_by("auction"), between=("at", "expires"))
    joined.select("some", "id", "at_right", "price").sink("out", weir.Collect())
    graph = physical_graph(flow.build())
    stage = next(stage for stage in graph.stages if stage.nodes[0].name == "j")
    assert [edge.columns for edge in stage.inputs] == [("id", "at", "expires"), ("auction", "at", "price")]
    assert stage.nodes[0].schema.names == ["id", "at_right", "price"]
    found = testing.run(flow, {"auctions": [auction(1, 10)], "bids": [bid(1, 12, 3), bid(1, 101, 4)]})
    assert found["some"].to_polars().rows() == [(1, 12, 3)]


def test_a_stream_with_itself():
    flow, _, bids = streams()
    later = bids.key_by("auction").join("j", bids.key_by("auction"), within=("1ms", "5ms"))
    later.select("times", "auction", "at", "at_right").sink("out", weir.Collect())
    found = testing.run(flow, {"auctions": [], "bids": [bid(1, at) for at in (1, 3, 9)]})
    assert found["times"].to_polars().rows() == [(1, 1, 3)]


def test_a_savepoint_goes_on_with_other_subtasks():
    def flow_of(parallelism):
        flow, auctions, bids = streams()
        auctions.key_by("id").join(
            "j", bids.key_by("auction"), within=("-5ms", "5ms"), how="full", parallelism=parallelism
        ).sink("out", weir.Collect())
        return flow

    with testing.start(flow_of(1)) as job:
        job.push("auctions", [auction(number, 10) for number in range(20)])
        job.push("bids", [bid(number, 12) for number in range(10)])
        savepoint = job.savepoint()
        before = job.rows("j").to_polars()
    with testing.start(flow_of(3), from_savepoint=savepoint, state="rocksdb") as job:
        job.push("bids", [bid(number, 13) for number in range(5, 15)])
        job.push("bids", [bid(99, 16)])
        after = job.finish()["j"].to_polars()
    assert sorted(before["id"].to_list()) == list(range(10))
    pairs = after.filter(pl.col("price").is_not_null() & pl.col("item").is_not_null())
    assert sorted(pairs["id"].to_list()) == list(range(5, 15))
    assert sorted(after.filter(pl.col("price").is_null())["id"].to_list()) == list(range(15, 20))
    assert after.filter(pl.col("item").is_null())["id"].to_list() == [99]


def test_a_changed_join_is_refused():
    def flow_of(bounds):
        flow, auctions, bids = streams()
        auctions.key_by("id").join("j", bids.key_by("auction"), within=bounds).sink("out", weir.Collect())
        return flow

    with testing.start(flow_of((0, 5))) as job:
        job.push("auctions", [auction(1, 10)])
        savepoint = job.savepoint()
    with (
        pytest.raises(weir.WeirError, match=r"step 'j': bounds of the join are .* in the checkpoint"),
        testing.start(flow_of((0, 6)), from_savepoint=savepoint),
    ):
        pass


def test_a_version_ends_when_its_row_is_deleted():
    flow, auctions, bids = streams({"auction": int, "at": int, "price": int, "note": str, "_change": str})
    priced = auctions.key_by("id").join_as_of("j", bids.key_by("auction"))
    priced.select("some", "id", "at", "price").sink("out", weir.Collect())
    versions = [
        bid(1, 10, 5) | {"_change": "insert"},
        bid(1, 10, 5) | {"at": 20, "_change": "update_before"},
        bid(1, 20, 6) | {"_change": "update_after"},
        bid(1, 20, 6) | {"at": 30, "_change": "delete"},
        bid(1, 40, 7) | {"_change": "insert"},
    ]
    with testing.start(flow) as job:
        job.push("bids", versions)
        job.push("auctions", [auction(1, at) for at in (5, 15, 20, 29)])
        job.push("auctions", [auction(1, at) for at in (30, 35, 41)])
        rows = job.finish()["some"].to_polars().rows()
    assert rows == [
        (1, 5, None),
        (1, 15, 5),
        (1, 20, 6),
        (1, 29, 6),
        (1, 30, None),
        (1, 35, None),
        (1, 41, 7),
    ]
    with pytest.raises(GraphError, match="step 'k': the left side is a changelog"):
        bids.key_by("auction").join_as_of("k", auctions.key_by("id"))


def test_late_rows_go_to_side_outputs():
    flow, auctions, bids = streams()
    joined = auctions.key_by("id").join("j", bids.key_by("auction"), within=("0s", "1m"))
    joined.select("pairs", "id").sink("out", weir.Collect())
    joined.side_output("late_right").select("late", "auction", "note").sink("rest", weir.Collect())
    with testing.start(flow) as job:
        job.push("auctions", [auction(1, 10)])
        job.advance_watermark("auctions", 15)
        job.advance_watermark("bids", 12)
        job.push("bids", [bid(1, 11, 2), bid(1, 12)])
        result = job.finish()
    assert result["late"].to_polars().rows() == [(1, "xx")]
    assert result["pairs"].to_polars().rows() == [(1,)]


def test_the_example_of_the_page_runs():
    page = Path(__file__).resolve().parents[2] / "docs/joins.md"
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, names)
    rows = {
        "auctions": [{"id": 1, "at": 0, "expires": 9_000, "item": "lamp"}],
        "bids": [{"auction": 1, "at": at, "price": at} for at in (1_000, 8_000, 9_001)],
    }
    assert testing.run(names["valid"], rows)["valid"].to_polars()["price"].to_list() == [1_000, 8_000]
    assert testing.run(names["quick"], rows)["quick"].to_polars()["price"].to_list() == [1_000]
    assert testing.run(names["priced"], rows)["priced"].to_polars()["item"].to_list() == ["lamp"] * 3
    assert (
        testing.run(names["named"], {"bids": rows["bids"]})["named"].to_polars()["category"].to_list()
        == ["light"] * 3
    )
