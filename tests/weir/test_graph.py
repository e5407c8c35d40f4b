import json
import subprocess
import sys

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.examples import nexmark
from weir.plan.checks import checked_graph
from weir.plan.graph import Exchange, Input, Node
from weir.plan.stages import physical_graph
from weir.specs import (
    Aggregate,
    BlackholeSpec,
    FilterSpec,
    JsonLinesSpec,
    KeyedAggregateSpec,
    PassThroughSpec,
    UnionSpec,
)
from weir.types import ChannelId, SubtaskId

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
)

FINGERPRINT_JOB = """
import polars as pl
import weir

def double(row):
    return {"x": row["id"] * 2}

def build(rate="None", threshold="3"):
    flow = weir.Dataflow("job")
    rate = None if rate == "None" else float(rate)
    events = flow.source("events", weir.JsonLines("in", schema={"id": int, "name": str}, rate=rate))
    events = events.filter("keep", pl.col("id").is_in([1, 2, 3]) & (pl.col("id") < int(threshold)))
    events.map("double", double, {"x": int}).key_by("x").count("n").sink("out", weir.Print())
    return flow
"""


def source(name="events", parallelism=1):
    return Node(name, JsonLinesSpec(schema=SCHEMA, path="in"), (), parallelism, SCHEMA)


def step(name, *inputs, parallelism=1, spec=None, schema=SCHEMA):
    links = tuple(item if isinstance(item, Input) else Input(item) for item in inputs)
    return Node(name, spec or PassThroughSpec(), links, parallelism, schema)


def sink(name, *inputs, parallelism=1):
    return step(name, *inputs, parallelism=parallelism, spec=BlackholeSpec())


def counted(name, item, parallelism=1):
    spec = KeyedAggregateSpec(("name",), (Aggregate("n", "count"),))
    return step(
        name, item, parallelism=parallelism, spec=spec, schema=SCHEMA.append(pa.field("n", pa.int64()))
    )


def test_hand_made_nodes_are_ordered():
    nodes = [sink("out", "b"), step("b", "a"), step("a", "events"), source()]
    assert [node.name for node in checked_graph("job", nodes).nodes] == ["events", "a", "b", "out"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [source(), step("a", "b"), step("b", "c"), step("c", "a"), sink("out", "events")],
            "step 'a': its output flows back into it: a -> c -> b -> a; remove the cycle",
        ),
        ([source(), step("a", "a"), sink("out", "events")], "step 'a': .* a -> a; remove"),
        (
            [source(), step("u", "events", "b", spec=UnionSpec()), step("b", "u"), sink("out", "u")],
            "step 'u': its output flows back into it: u -> b -> u",
        ),
        ([source(), source(), sink("out", "events")], "step 'events': two steps have this name"),
        (
            [source(), sink("out", "evnts")],
            "step 'out': its input 'evnts' does not exist; did you mean 'events'",
        ),
        ([source()], "step 'events': nothing reads its output"),
        ([source(), sink("out", "events"), sink("more", "out")], "step 'more': its input 'out' is a sink"),
        ([source(), sink("out")], "step 'out': it has no input"),
        ([source("a"), source("b"), sink("out", "a", "b")], "step 'out': only union takes several inputs"),
        ([], "job 'job': it has no source"),
        ([source(), sink("out", Input("events", key_columns=("id",)))], "step 'out': key columns .* HASH"),
        (
            [source(), sink("out", Input("events", Exchange.HASH))],
            "step 'out': key_by needs at least one column",
        ),
        (
            [source(), sink("out", Input("events", Exchange.HASH, ("nam",)))],
            "no key column 'nam'; did you mean",
        ),
        ([source(), sink("out", "events", parallelism=2)], "step 'out': parallelism 2 differs from 1"),
        (
            [source(), counted("n", "events"), sink("out", "n")],
            r"step 'n': its rows are not partitioned by \['name'\]",
        ),
        (
            [source(), counted("n", Input("events", Exchange.HASH, ("id",))), sink("out", "n")],
            "step 'n': its rows are not partitioned",
        ),
        (
            [source(), step("f", "events", spec=FilterSpec(pl.col("id"))), sink("out", "f")],
            "step 'f': the predicate gives Int64",
        ),
        (
            [source(), step("f", "events", schema=pa.schema([("id", pa.int64())])), sink("out", "f")],
            "step 'f': the node's schema is not what the step gives: column 'name'",
        ),
    ],
)
def test_invalid_hand_made_nodes(nodes, message):
    with pytest.raises(weir.GraphError, match=message):
        checked_graph("job", nodes)


def test_keyed_step_may_follow_another_one_of_the_same_keys():
    nodes = [
        source(parallelism=2),
        counted("n", Input("events", Exchange.HASH, ("name",)), 2),
        sink("out", "n", parallelism=2),
    ]
    assert len(checked_graph("job", nodes).nodes) == 3


def chain(*parallelism):
    nodes = [source(parallelism=parallelism[0])]
    for index, number in enumerate(parallelism[1:], start=1):
        exchange = Exchange.FORWARD if number == parallelism[index - 1] else Exchange.ROUND_ROBIN
        nodes.append(step(f"s{index}", Input(nodes[-1].name, exchange), parallelism=number))
    nodes.append(sink("out", nodes[-1].name, parallelism=parallelism[-1]))
    return physical_graph(checked_graph("job", nodes))


def test_forward_steps_of_one_parallelism_form_a_stage():
    physical = chain(2, 2, 3)
    assert [(stage.index, stage.name, stage.parallelism) for stage in physical.stages] == [
        (0, "events -> s1", 2),
        (1, "s2 -> out", 3),
    ]
    assert [edge.exchange for edge in physical.stages[1].inputs] == [Exchange.ROUND_ROBIN]
    assert physical.subtasks() == [
        SubtaskId(0, 0),
        SubtaskId(0, 1),
        SubtaskId(1, 0),
        SubtaskId(1, 1),
        SubtaskId(1, 2),
    ]


def test_a_stream_with_two_readers_is_not_chained():
    nodes = [source(), step("a", "events"), sink("x", "a"), sink("y", "a")]
    physical = physical_graph(checked_graph("job", nodes))
    assert [stage.name for stage in physical.stages] == ["events -> a", "x", "y"]
    assert [edge.consumer_stage for edge in physical.output_edges(0)] == [1, 2]


def test_channels_of_an_exchange_are_complete_and_agree_from_both_ends():
    physical = chain(2, 3)
    (edge,) = physical.output_edges(0)
    outgoing = {c for i in range(2) for c in physical.output_channels(SubtaskId(0, i), edge)}
    incoming = {c for i in range(3) for c in physical.input_channels(SubtaskId(1, i))}
    assert outgoing == incoming
    assert len(outgoing) == 6


def test_channels_of_forward_are_one_to_one():
    nodes = [
        source(parallelism=2),
        sink("out", Input("events", stage_boundary=True), parallelism=2),
    ]
    physical = physical_graph(checked_graph("job", nodes))
    assert physical.input_channels(SubtaskId(1, 1)) == [ChannelId(SubtaskId(0, 1), SubtaskId(1, 1), 0)]


def test_union_counts_its_input_edges():
    nodes = [
        source("a", parallelism=2),
        source("b"),
        step("u", Input("a", Exchange.ROUND_ROBIN), "b", spec=UnionSpec()),
        sink("out", "u"),
    ]
    physical = physical_graph(checked_graph("job", nodes))
    assert [stage.name for stage in physical.stages] == ["a", "b", "u -> out"]
    assert [str(channel) for channel in physical.input_channels(SubtaskId(2, 0))] == [
        "0/0->2/0#0",
        "0/1->2/0#0",
        "1/0->2/0#1",
    ]


def test_unknown_stage_names_the_known_ones():
    with pytest.raises(weir.GraphError, match=r"no stage 7; there are 0 \(events\), 1 \(s1 -> out\)"):
        chain(1, 2).stage(7)


def fingerprints_in_new_process(tmp_path, seed, *settings):
    """Of jobs with these settings, in this order."""
    (tmp_path / "fp_job.py").write_text(FINGERPRINT_JOB)
    code = (
        "import sys, json; sys.path.insert(0, '.'); import fp_job; from weir.plan.fingerprints import fingerprint_of;"
        "[print(fingerprint_of(fp_job.build(**each).build())) for each in json.loads(sys.argv[1])]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(settings)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    return done.stdout.split()


def test_fingerprint_is_the_same_in_every_process_and_tells_jobs_apart(tmp_path):
    first, *others = fingerprints_in_new_process(tmp_path, "1", {}, {"rate": "10"}, {"threshold": "4"})
    assert first.startswith("2:")
    assert len(first) == 34
    assert fingerprints_in_new_process(tmp_path, "2", {}) == [first]
    assert len({first, *others}) == 3


def test_a_job_waits_for_event_time_if_a_step_does():
    def waits(make):
        flow = weir.Dataflow("job")
        rows = flow.source("rows", weir.JsonLines("in", schema={"k": int, "at": int}, event_time="at"))
        make(rows.key_by("k")).sink("out", weir.Blackhole())
        return physical_graph(flow.build()).waits_for_event_time

    assert not waits(lambda rows: rows.count("n"))
    assert not waits(lambda rows: rows.top("best", by="at", rows=1))
    assert waits(lambda rows: rows.deduplicate("first", within="1m"))
    assert waits(lambda rows: rows.window(weir.tumbling("1m")).aggregate("w", n=weir.count()))
    assert waits(lambda rows: rows.apply("own", weir.Operator))


@pytest.mark.parametrize(("query", "keeps"), [("q4", True), ("q8", True), ("q3", False), ("q7", False)])
def test_a_join_within_bounds_keeps_rows_until_all_inputs_have_passed_them(query, keeps):
    # q3 joins without bounds: its rows stay whatever the watermark.
    assert physical_graph(nexmark.build(query).build()).keeps_rows_of_inputs == keeps
