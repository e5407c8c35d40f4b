"""Windows without a key are told early, again, and in changes as those of one key that all rows have."""

from functools import partial

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings

import weir
from tests.effort import cases
from tests.weir.operators.windows.pushed_rows import pushed
from tests.weir.operators.windows.pushed_rows import source as of_schema
from weir import testing
from weir.plan.fingerprints import difference_of_fingerprint
from weir.plan.stages import physical_graph

SCHEMA = {"k": str, "at": int, "v": weir.Nullable(int), "x": float}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from("ab"),
            "at": st.integers(0, 60),
            "v": st.none() | st.integers(-9, 9),
            "x": st.just(0.5),
        }
    ),
    max_size=50,
)
AGGREGATES = {
    "n": weir.count(),
    "odd": weir.count().where(pl.col("v") % 2 == 1),
    "total": weir.sum("v"),
    "low": weir.min("v"),
    "mean": weir.mean("v"),
    "last": weir.last("v"),
}
BY_20 = weir.tumbling(20)
BY_TIME, BY_ROWS = weir.every("7ms", time="event"), weir.every(rows=3)
ON_FIVE = weir.every(where=pl.col("v") == 5)
WAYS = [
    (weir.tumbling(20), {"allowed_lateness": 10}),
    (weir.tumbling(20), {"allowed_lateness": 10, "results": "discarding"}),
    (weir.tumbling(20), {"allowed_lateness": 10, "results": "changelog", "early": BY_TIME}),
    (weir.tumbling(20), {"early": BY_TIME, "results": "discarding"}),
    (weir.tumbling(20), {"early": BY_ROWS}),
    (weir.tumbling(20), {"early": ON_FIVE, "results": "discarding"}),
    (weir.sliding(30, 10), {"early": BY_TIME, "allowed_lateness": 10}),
    (weir.cumulative(20, 5), {"allowed_lateness": 15}),
    (weir.session(5), {"allowed_lateness": 12}),
    (weir.session(5), {"allowed_lateness": 12, "results": "changelog"}),
    (weir.session(5), {"early": BY_TIME}),
    (weir.session(5), {"early": BY_TIME, "results": "discarding"}),
    (weir.global_window(), {"early": BY_ROWS, "results": "discarding"}),
    (weir.global_window(), {"early": BY_TIME, "results": "changelog"}),
    (weir.global_window(), {"early": ON_FIVE}),
]


source = partial(of_schema, schema=SCHEMA)


def told(flow, rows):
    """What leaves."""
    result = pushed(flow, rows)
    return {name: result[name].to_dicts() for name in ("out", "late") if name in result.steps}


@settings(max_examples=cases(5), deadline=None)
@given(way=st.sampled_from(WAYS), rows=ROWS, reads_late=st.booleans())
def test_they_are_told_as_those_of_one_key(way, rows, reads_late):
    window, updates = way
    reads_late = reads_late and window.kind != "global"
    flow, keyed = weir.Dataflow("all"), weir.Dataflow("keyed")
    every = source(flow).window_all(window, **updates).aggregate("w", **AGGREGATES)
    one = source(keyed).with_columns("one", one=pl.lit(0)).key_by("one").window(window, **updates)
    of_one = one.aggregate("w", pre_aggregate=False, **AGGREGATES)
    for made in (every, of_one):
        made.sink("out", weir.Collect())
        if reads_late:
            made.side_output("late").sink("late", weir.Collect())
    wanted, found = told(keyed, rows), told(flow, rows)
    wanted = {
        name: [{column: row[column] for column in row if column != "one"} for row in wanted[name]]
        for name in wanted
    }
    # A batch that was added up comes before rows that were not: the order within one watermark may differ.
    assert {name: sorted(found[name], key=str) for name in found} == {
        name: sorted(wanted[name], key=str) for name in wanted
    }


def test_late_rows_leave_with_all_columns_as_they_came():
    flow = weir.Dataflow("late")
    counted = source(flow).window_all(weir.tumbling(10)).aggregate("w", n=weir.count())
    counted.sink("out", weir.Collect())
    late = counted.side_output("late")
    assert late.schema == source(weir.Dataflow("other")).schema
    late.sink("late", weir.Collect())
    rows = [{"k": "a", "at": at, "v": at, "x": 0.5} for at in (1, 12, 30, 2)]
    with testing.start(flow, {"rows": []}) as job:
        job.push("rows", rows[:3])
        job.advance_watermark("rows", 25)
        job.push("rows", rows[3:])
        found = job.finish()
    assert found["late"].to_dicts() == [rows[3]]
    assert [row["n"] for row in found["out"]] == [1, 1, 1]


def middle(window, rows):
    """Rows of a window, and the value in their midst."""
    return pl.DataFrame({"rows": [rows.height], "middle": [rows["v"][rows.height // 2]]})


class Longest(weir.Aggregator):
    accumulator = str

    def create(self):
        return ""

    def add(self, accumulator, rows):
        return max([accumulator, *rows["k"]], key=len)

    def merge(self, left, right):
        return max(left, right, key=len)

    def result(self, accumulator):
        return {"longest": accumulator}


@pytest.mark.parametrize("window", [weir.tumbling(20), weir.sliding(20, 10), weir.session(9)])
def test_code_gets_all_rows_of_a_window(window):
    flow = weir.Dataflow("code")
    windows = source(flow).window_all(window)
    made = windows.process("middle", middle, {"rows": int, "middle": int})
    made.sink("out", weir.Collect())
    made.side_output("late").sink("late", weir.Collect())
    windows.aggregate_with("names", Longest, {"longest": str}).sink("names_out", weir.Collect())
    windows.aggregate("texts", low=weir.min("k"), n=weir.count()).sink("texts_out", weir.Collect())
    rows = [{"k": "k" * (1 + at % 3), "at": at, "v": at, "x": 0.5} for at in (11, 3, 25, 21, 8, 27)]
    with testing.start(flow) as job:
        job.push("rows", rows[::2], subtask=0)
        job.push("rows", rows[1::2], subtask=1)
        job.checkpoint()
        job.restart()
        found = job.finish()
    bounds = {
        "tumbling": [(0, 20), (20, 40)],
        "sliding": [(-10, 10), (0, 20), (10, 30), (20, 40)],
        "session": [(3, 20), (21, 36)],
    }[window.kind]
    in_order = sorted(rows, key=lambda row: row["at"])
    within = [[row for row in in_order if start <= row["at"] < end] for start, end in bounds]
    starts = [start for start, _ in bounds]

    def column(step, name):
        return [row[name] for row in sorted(found[step], key=lambda row: row["window_start"])]

    assert column("out", "window_start") == starts
    assert column("out", "rows") == [len(part) for part in within]
    assert column("out", "middle") == [part[len(part) // 2]["v"] for part in within]
    assert column("names_out", "longest") == [max((row["k"] for row in part), key=len) for part in within]
    assert column("texts_out", "low") == [min(row["k"] for row in part) for part in within]
    assert column("texts_out", "n") == [len(part) for part in within]
    assert not len(found["late"])


def test_the_error_of_a_function_names_the_step_and_the_window():
    def wrong(window, rows):
        raise ValueError("no such thing")

    flow = weir.Dataflow("wrong")
    source(flow).window_all(weir.tumbling(20)).process("w", wrong, {"n": int}).sink("out", weir.Collect())
    rows = [{"k": "a", "at": 1, "v": 1, "x": 0.5}]
    with pytest.raises(weir.WeirError, match=r"step 'w': function .*wrong raised ValueError: no such thing"):
        testing.run(flow, {"rows": rows})


def plan(build):
    flow = weir.Dataflow("plan")
    build(source(flow)).sink("out", weir.Collect())
    nodes = [node for stage in physical_graph(flow.build()).stages for node in stage.nodes]
    return {node.name: node.spec.time_words for node in nodes}


def read_late(windows):
    made = windows.aggregate("w", n=weir.count())
    made.sink("results", weir.Collect())
    return made.side_output("late")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda rows: rows.window_all(weir.tumbling(20)).aggregate("w", n=weir.count()), "adds up"),
        (
            lambda rows: rows.window_all(weir.tumbling(20), early=BY_TIME).aggregate("w", n=weir.count()),
            "adds up",
        ),
        (
            lambda rows: rows.window_all(weir.tumbling(20), early=BY_ROWS).aggregate("w", n=weir.count()),
            "one subtask",
        ),
        (lambda rows: rows.window_all(weir.tumbling(20)).process("w", middle, {"rows": int}), "one subtask"),
        (lambda rows: read_late(rows.window_all(weir.tumbling(20))), "one subtask"),
    ],
)
def test_the_plan_says_whether_rows_are_added_up_or_all_go_to_one_subtask(build, text):
    told_of = {
        "adds up": "tumbling 20ms, adds up the rows of each batch",
        "one subtask": "tumbling 20ms, sends every row on as it is, to one subtask",
    }
    assert plan(build)["w.part"] == told_of[text]


def test_a_job_of_before_keeps_its_fingerprint():
    flow = weir.Dataflow("before")
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at"))
    rows.window_all(weir.tumbling(20)).aggregate("w", n=weir.count()).sink("out", weir.Collect())
    assert difference_of_fingerprint("33127ac76b190af56853bf6de481bf36", flow.build(), "") == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda rows: rows.window_all(weir.tumbling(20), results="discarding"),
            r"step 'rows': results='discarding' goes only with early",
        ),
        (
            lambda rows: rows.window(BY_20),
            r"step 'rows': window goes by key, and .* key_by\(\"column\"\).window\(...\), or window_all\(...\)",
        ),
        (lambda rows: rows.count("n"), r"step 'rows': count goes by key, and .* key_by\(\"column\"\).count"),
        (
            lambda rows: rows.window_all(weir.global_window()),
            r"step 'rows': a global window never ends",
        ),
        (
            lambda rows: rows.window_all(weir.tumbling(20), early="5s"),
            r"step 'rows': early takes weir.every\(...\), got str",
        ),
        (
            lambda rows: rows.window_all(weir.tumbling(20), early=BY_TIME).process(
                "w", middle, {"rows": int}
            ),
            r"step 'w': code of your own gets each window when it is complete",
        ),
        (
            lambda rows: (
                rows.key_by("k").top("t", by="v", rows=1).window_all(BY_20).aggregate("w", n=weir.count())
            ),
            r"step 'w': its input is a changelog .*, and window_all takes only rows",
        ),
        (
            lambda rows: (
                rows.key_by("k")
                .top("t", by="v", rows=1)
                .window_all(BY_20)
                .process("w", middle, {"rows": int})
            ),
            r"step 'w': its input is a changelog .*, and window_all takes only rows",
        ),
        (
            lambda rows: rows.window_all(BY_20).process("w", lambda key, window, rows: None, {"rows": int}),
            r"step 'w': .*<lambda> is called as function\(window, rows\), and takes other arguments: missing a",
        ),
        (
            lambda rows: rows.key_by("k").window(BY_20).process("w", middle, {"rows": int}),
            r"step 'w': middle is called as function\(key, window, rows\), and takes other arguments: too many",
        ),
        (
            lambda rows: rows.window_all(weir.tumbling(20)).process("w", 3, {"rows": int}),
            r"step 'w': .*int",
        ),
        (
            lambda rows: rows.window_all(weir.tumbling(20)).process("w", middle, {"window_end": int}),
            r"step 'w': every result has column 'window_end'",
        ),
    ],
)
def test_what_does_not_go_is_told_when_the_job_is_built(call, message):
    with pytest.raises(weir.GraphError, match=message):
        call(source(weir.Dataflow("refused")))
