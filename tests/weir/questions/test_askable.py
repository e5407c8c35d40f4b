"""What is listed as askable is what can be asked, of every kind of step; and what cannot be is told with it."""

import polars as pl
import pytest

import weir
from weir.operators.queries.answering import asked_state
from weir.protocol.queries import QueryError, Question
from weir.questions.askable import askable, asked_pairs, refused_step
from weir.specs.keyed import KeyedSpec


class Timed(weir.KeyedProcess):
    total = weir.ValueState(int, default=0)
    known = weir.MapState(str, int)

    def process(self, key, row, context):
        return ()

    def on_timers(self, batch, context):
        return ()


class Rules(weir.BroadcastProcess):
    total = weir.ValueState(int, default=0)

    def on_broadcast(self, row, rules):
        pass

    def process(self, row, rules):
        return ()


class Sums(weir.Aggregator):
    accumulator = int

    def create(self):
        return 0

    def add(self, accumulator, rows):
        return accumulator + rows["v"].sum()

    def merge(self, one, other):
        return one + other

    def result(self, accumulator):
        return {"sum": accumulator}


def rows_of(key, window, rows):
    return pl.DataFrame({"n": [len(rows)]})


def build():
    flow = weir.Dataflow("asked", max_parallelism=4)
    rows = flow.source("rows", weir.JsonLines("none", schema={"k": str, "v": int, "t": int}, event_time="t"))
    other = flow.source(
        "other", weir.JsonLines("none", schema={"k": str, "w": int, "t": int}, event_time="t")
    )
    keyed, tumbling = rows.key_by("k"), weir.tumbling("1s")
    steps = [
        keyed.count("count"),
        keyed.aggregate("sums", n=weir.count(), kinds=weir.count_distinct("v")),
        keyed.process("timed", Timed, {"k": str}),
        keyed.window(tumbling)
        .aggregate("windows", n=weir.count(), kinds=weir.count_distinct("v"))
        .window_top("best", by="n"),
        keyed.window(tumbling).process("kept", rows_of, {"n": int}),
        keyed.window(weir.session("1s")).aggregate_with("folded", Sums, {"sum": int}),
        keyed.count_window(3, 2).aggregate("lasts", n=weir.count()),
        rows.window_all(tumbling).aggregate("all", n=weir.count()),
        keyed.join("paired", other.key_by("k"), within=("-1s", "1s")),
        keyed.connect_broadcast("ruled", other, Rules, {"k": str}),
        keyed.deduplicate("once"),
        keyed.top("newest", by="v", rows=2).key_by("k").count("changes"),
        flow.sql(
            "SELECT k, SUM(v) OVER (PARTITION BY k ORDER BY t) AS s FROM rows", rows=rows, step="so_far"
        ),
    ]
    for number, step in enumerate(steps):
        step.sink(f"out_{number}", weir.Blackhole())
    return flow.build()


@pytest.fixture(scope="module")
def graph():
    return build()


def test_all_that_is_listed_can_be_asked_and_steps_with_keys_are_listed(graph):
    known = askable(graph)
    for step, state in asked_pairs(known):
        assert asked_state(graph, Question(step, state)).job_name
    assert {node.name for node in graph.nodes if node.is_keyed} == {step for step in known if known[step]}
    assert known["timed"] == ["known", "total"]
    assert known["sums"] == ["n", "kinds"]
    assert (known["paired"], known["ruled"], known["rows"]) == (["rows"], ["broadcast", "total"], [])
    # Timers and what a step keeps for itself are in no message, nor guessed when no state is named.
    assert not any(state.startswith("_") for _, state in asked_pairs(known))


def test_steps_without_state_and_names_of_none_are_told_with_what_there_is(graph):
    for step, words in {"rows": "step 'rows' keeps nothing by key", "cuont": "has no step 'cuont'"}.items():
        with pytest.raises(
            QueryError, match=f"{words}; what can be asked, as STEP/STATE: .*count/count"
        ) as told:
            asked_state(graph, Question(step, "count"))
        assert told.value.status == 404
    assert str(refused_step("a", {"a": []})).endswith("STEP/STATE: nothing")


def kinds_below(spec):
    """All classes below one but bases of others."""
    below = {found for kind in spec.__subclasses__() for found in (kind, *kinds_below(kind))}
    return {found for found in below if found.kind != spec.kind}


def test_no_kind_of_keyed_step_is_forgotten(graph):
    asked = [type(node.spec) for node in graph.nodes if node.spec.asked_names]
    # A kind counts with those above it: joins of all sorts have the rows of a join.
    assert [
        kind for kind in kinds_below(KeyedSpec) if not any(issubclass(kind, each) for each in asked)
    ] == []
