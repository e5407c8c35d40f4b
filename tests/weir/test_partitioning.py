"""Exchanges that would move no row are left out, and those that move some are not."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.plan.graph import Exchange, Input
from weir.plan.stages import physical_graph

SCHEMA = {"a": int, "b": str, "t": int}


def rows(path="in"):
    flow = weir.Dataflow("job", max_parallelism=8)
    source = weir.JsonLines(path, schema=SCHEMA, event_time="t")
    return flow, flow.source("events", source, parallelism=2)


def exchanges(flow):
    """How rows come to each step that does not begin with a source; FORWARD if it is chained."""
    return {
        node.name: [item.exchange for item in node.inputs] for node in flow.build_local().nodes if node.inputs
    }


def window(stream):
    return stream.window(weir.tumbling("10s")).aggregate("windows", n=weir.count())


KEPT = {
    "the same key twice": lambda s: s.key_by("a").count("n"),
    "after filter and computed columns": lambda s: (
        s.key_by("a").filter("f", pl.col("t") > 1).with_columns("w", c=pl.col("t") + 1)
    ),
    "after select": lambda s: s.key_by("a").count("n").select("some", "n", "a"),
    "after drop": lambda s: s.key_by("a").drop("some", "b"),
    "after windows": lambda s: window(s.key_by("a")),
    "after windows and renames": lambda s: (
        window(s.key_by("a")).select("s", "a", "n").rename("r", {"a": "x"}).rename("q", {"x": "a"})
    ),
    "after a copy": lambda s: window(s.key_by("b")).select("s", "n", pl.col("b").alias("a")),
    "after a column that is computed from another one": lambda s: (
        s.key_by("a").with_columns("w", old=pl.col("a")).count("n").select("s", "n", a=pl.col("old"))
    ),
    "after deduplicate": lambda s: s.key_by("a").deduplicate("d"),
    "after top": lambda s: s.key_by("a").top("best", by="t", rows=2),
    "after a join": lambda s: s.key_by("a").join("j", s.select("o", "a").key_by("a")),
    "after a join with other names": lambda s: s.key_by("a").join("j", s.select("o", "t").key_by("t")),
    "after another event time": lambda s: s.key_by("a").assign_event_time("e", "t"),
}
MOVED = {
    "another key": lambda s: s.key_by("b").count("n"),
    "more columns": lambda s: s.key_by("a", "b").count("n"),
    "no key before": lambda s: s.filter("f", pl.col("t") > 1),
    "another value under the same name": lambda s: (
        s.key_by("a").count("n").select("s", "n", "b", a=pl.col("t") + 1)
    ),
    "another type under the same name": lambda s: s.key_by("a").select(
        "s", "b", a=pl.col("a").cast(pl.Int32)
    ),
    "a function": lambda s: s.key_by("a").map_batches("f", lambda batch: batch),
    "a union": lambda s: s.key_by("a").union("u", s.rebalance()),
    "swapped names": lambda s: s.key_by("a").count("n").select("s", "n", a=pl.col("t"), t=pl.col("a")),
}


@pytest.mark.parametrize("what", KEPT)
def test_rows_that_are_there_already_are_not_sent_again(what):
    flow, events = rows()
    KEPT[what](events).key_by("a").process("last", Count).sink("out", weir.Blackhole())
    assert exchanges(flow)["last"] == [Exchange.FORWARD]
    graph = physical_graph(flow.build())
    last = next(stage for stage in graph.stages if any(node.name == "last" for node in stage.nodes))
    assert last.has_groups
    assert len(last.nodes) > 1


@pytest.mark.parametrize("what", MOVED)
def test_rows_that_are_elsewhere_are_sent(what):
    flow, events = rows()
    MOVED[what](events).key_by("a").process("last", Count).sink("out", weir.Blackhole())
    assert exchanges(flow)["last"] == [Exchange.HASH]


def test_an_exchange_stays_for_another_parallelism_for_two_readers_and_where_it_is_asked_for():
    flow, events = rows()
    counted = events.key_by("a").count("n")
    counted.key_by("a").process("one", Count).sink("out", weir.Blackhole())
    counted.filter("two", pl.col("n") > 1).sink("out2", weir.Blackhole())
    assert exchanges(flow)["one"] == [Exchange.HASH]
    flow, events = rows()
    events.key_by("a").count("n").key_by("a").process("one", Count, parallelism=3).sink(
        "out", weir.Blackhole()
    )
    assert exchanges(flow)["one"] == [Exchange.HASH]
    flow, events = rows()
    counted = events.key_by("a").count("n").key_by("a", own_stage=True)
    counted.process("one", Count).sink("out", weir.Blackhole())
    assert exchanges(flow)["one"] == [Exchange.HASH]
    assert len(physical_graph(flow.build()).stages) == 3


STEPS_BEHIND_A_STAGE = {
    "a second reader": lambda counted: (
        counted.sink("too", weir.Blackhole()),
        counted.with_columns("w", c=pl.col("n")),
    )[1],
    "forward": lambda counted: counted.forward().with_columns("w", c=pl.col("n")),
    "steps after forward": lambda counted: (
        counted.forward().with_columns("w", c=pl.col("n")).filter("f", pl.col("c") > 0)
    ),
}


@pytest.mark.parametrize("what", STEPS_BEHIND_A_STAGE)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_stage_that_rows_reach_without_a_key_does_not_count_as_spread(what, parallelism):
    """The keyed step after it would be in a stage without key groups, its state in no checkpoint."""
    flow, events = rows()
    counted = events.key_by("a").count("n", parallelism=parallelism)
    again = STEPS_BEHIND_A_STAGE[what](counted).key_by("a").process("last", Count)
    again.sink("out", weir.Blackhole())
    assert exchanges(flow)["last"] == [Exchange.HASH]
    stages = physical_graph(flow.build()).stages
    assert all(stage.has_groups for stage in stages if stage.is_keyed)


@pytest.mark.parametrize("exchange", [Exchange.FORWARD, Exchange.ROUND_ROBIN])
def test_a_keyed_step_in_a_stage_without_key_groups_is_refused(exchange):
    flow, events = rows()
    events.forward().with_columns("w", c=pl.col("a")).key_by("a").count("n").sink("out", weir.Blackhole())
    graph = flow.build()
    nodes = tuple(
        replace(node, inputs=(Input(node.inputs[0].producer, exchange),)) if node.name == "n" else node
        for node in graph.nodes
    )
    with pytest.raises(
        weir.GraphError, match=r"step 'n' keeps state by key, but .* call key_by right before"
    ):
        physical_graph(replace(graph, nodes=nodes))


class Count(weir.KeyedProcess):
    """Adds how many rows of the key there were."""

    n = weir.ValueState(int, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        yield {**row, "times": self.n.value}


@pytest.mark.parametrize("what", [*KEPT, *MOVED])
def test_results_are_those_with_an_exchange(tmp_path, what):
    chance = random.Random(what)
    lines = (
        json.dumps({"a": chance.randrange(9), "b": str(chance.randrange(9)), "t": at * 500})
        for at in range(200)
    )
    (tmp_path / "in").write_text("".join(line + "\n" for line in lines))
    found = []
    for own_stage in (False, True):
        flow, events = rows(str(tmp_path / "in"))
        stream = (KEPT | MOVED)[what](events)
        schema = pa.schema([*stream.schema, pa.field("times", pa.int64(), nullable=False)])
        last = stream.key_by("a", own_stage=own_stage).process("last", Count, schema)
        last.sink("out", weir.Collect())
        found.append(sorted(map(repr, weir.run(flow)["out"].to_polars().rows())))
    assert found[0] == found[1]
    assert found[0]
