"""Random dataflows with branches, ``forward()`` and several exchanges by one key: their state survives restarts."""

import random
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError
from weir.graph import Exchange, Input, physical_graph

ROWS = [{"k": number * 7 % 11, "j": number % 3, "v": number} for number in range(60)]


class Last(weir.KeyedProcess):
    """Sees how many rows of a key there were, and the sum of their values."""

    seen = weir.ValueState(pl.Int64, default=0)
    total = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.seen.value += 1
        self.total.value += row["v"]
        yield {
            "k": row["k"],
            "j": row["j"],
            "v": row["v"],
            "seen": self.seen.value,
            "total": self.total.value,
        }


SCHEMA = {"k": int, "j": int, "v": int, "seen": int, "total": int}


def grown(seed):
    """A dataflow, and the names of its keyed steps with the column that each has as its key."""
    rng = random.Random(seed)
    flow = weir.Dataflow("branches")
    source = flow.source("events", weir.UserSource(lambda: None, schema={"k": int, "j": int, "v": int}))
    streams, keyed = [source], {}
    for number in range(rng.randint(3, 7)):
        stream = rng.choice(streams)
        name = f"step{number}"
        parallelism = rng.choice([1, 1, 2, 3])
        kind = rng.choice(["keyed", "keyed", "keyed", "filter", "forward"])
        if kind == "keyed":
            column = rng.choice(["k", "k", "j"])
            keyed[name] = column
            stream = stream.key_by(column).process(name, Last, SCHEMA, parallelism=parallelism)
        elif kind == "forward":
            stream = stream.forward().filter(name, pl.col("v") >= 0)
        else:
            stream = stream.filter(name, pl.col("v") >= 0)
        streams.append(stream)
        if not rng.randrange(4):
            # A second reader.
            streams.append(stream.filter(f"{name}_too", pl.col("v") >= 0))
    return flow, keyed


@pytest.mark.parametrize("seed", range(24))
def test_state_of_branches_survives_restarts(seed):
    _, keyed = grown(seed)
    totals = {name: Counter() for name in keyed}
    counts = {name: Counter() for name in keyed}
    savepoint = None
    for part in (ROWS[:20], ROWS[20:45], ROWS[45:]):
        with testing.start(grown(seed)[0], {"events": []}, from_savepoint=savepoint) as job:
            job.push("events", part)
            for name, column in keyed.items():
                for row in job.rows(name):
                    counts[name][row[column]] += 1
                    totals[name][row[column]] = max(totals[name][row[column]], row["seen"])
            savepoint = job.savepoint()
    for name, column in keyed.items():
        assert counts[name] == Counter(row[column] for row in ROWS), name
        # Each row was counted once, over all restarts.
        assert totals[name] == counts[name], name


def test_a_second_reader_does_not_take_the_exchange_of_a_keyed_step_away():
    flow = weir.Dataflow("counts")
    source = flow.source("events", weir.UserSource(lambda: None, schema={"k": int, "j": int, "v": int}))
    counted = source.key_by("k").process("first", Last, SCHEMA)
    counted.filter("other", pl.col("v") >= 0)
    counted.filter("between", pl.col("v") >= 0).key_by("k").process("second", Last, SCHEMA)
    stages = physical_graph(flow.build_local()).stages
    assert all(stage.has_groups for stage in stages if stage.is_keyed)


def test_a_keyed_step_whose_rows_do_not_come_by_key_is_refused():
    flow = weir.Dataflow("counts")
    source = flow.source("events", weir.UserSource(lambda: None, schema={"k": int, "j": int, "v": int}))
    source.key_by("k").process("first", Last, SCHEMA)
    graph = flow.build_local()
    nodes = [
        replace(node, inputs=(Input("events", Exchange.ROUND_ROBIN),)) if node.name == "first" else node
        for node in graph.nodes
    ]
    with pytest.raises(GraphError, match="step 'first' keeps state by key, but its rows do not come by key"):
        physical_graph(replace(graph, nodes=tuple(nodes)))
