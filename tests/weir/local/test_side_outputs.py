"""Side outputs: declared with a schema, sent to with ``weir.side``, read as streams of their own."""

import re
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from weir import testing
from weir.plan.document import plan_document
from weir.plan.fingerprints import fingerprint_of
from weir.plan.stages import physical_graph

SCHEMA = {"user": str, "amount": int}
ROWS = [{"user": "ab"[n % 2], "amount": n} for n in range(10)]
LARGE = {"user": str, "reason": str}


class Split(weir.Operator):
    """Amounts from 7 on go to one side, odd ones also to another."""

    def process(self, batch):
        is_large = pc.greater_equal(batch.column("amount"), 7)
        yield weir.side(
            "large",
            batch.filter(is_large)
            .rename_columns(["user", "reason", *batch.schema.names[2:]])
            .set_column(1, "reason", pc.cast(batch.column("amount").filter(is_large), pa.string())),
        )
        yield batch.filter(pc.invert(is_large))
        yield weir.side("seen", batch)

    def finish(self):
        yield weir.side("seen", weir.with_times(pa.record_batch({"user": ["end"], "amount": [-1]}), 5, 6))


class Audit(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.total.value += row["amount"]
        if row["amount"] >= 7:
            yield weir.side("large", {"user": key[0], "reason": str(row["amount"])})
        if row["amount"] == 3:
            context.timers.register(100)
        yield {"user": key[0], "amount": self.total.value}

    def on_timer(self, key, time_ms, context):
        yield weir.side("large", {"user": key[0], "reason": "timer"})


class AuditBatches(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch, context):
        yield batch
        yield weir.side("seen", batch)


def source(flow, parallelism=1):
    return flow.source("in", weir.JsonLines("none", schema=SCHEMA), parallelism=parallelism)


def split_job(read=("large", "seen")):
    flow = weir.Dataflow("job")
    split = source(flow).apply("split", Split, side_outputs={"large": LARGE, "seen": None})
    split.sink("small", weir.Collect())
    for name in read:
        split.side_output(name).sink(name, weir.Collect())
    return flow


def test_an_operator_sends_batches_to_its_side_outputs():
    result = testing.run(split_job(), {"in": ROWS})
    assert result["small"] == ROWS[:7]
    assert result["large"] == [{"user": row["user"], "reason": str(row["amount"])} for row in ROWS[7:]]
    assert result["seen"] == [*ROWS, {"user": "end", "amount": -1}]
    assert result["seen"].to_dicts(times=True)[-1]["_event_time_ms"] == 5


def test_what_nobody_reads_is_dropped():
    result = testing.run(split_job(read=("large",)), {"in": ROWS})
    assert (len(result["small"]), len(result["large"])) == (7, 3)


def test_only_a_side_output_may_be_read():
    flow = weir.Dataflow("job")
    split = source(flow).apply("split", Split, side_outputs={"large": LARGE, "seen": None})
    split.side_output("large").sink("large", weir.Collect())
    flow.build()
    assert len(testing.run(flow, {"in": ROWS})["large"]) == 3


def test_a_keyed_process_sends_rows_also_from_timers():
    flow = weir.Dataflow("job")
    keyed = source(flow, 2).key_by("user")
    audit = keyed.process("audit", Audit, side_outputs={"large": LARGE}, parallelism=3)
    audit.filter("keep", pl.col("amount") > 0).sink("totals", weir.Collect())
    audit.side_output("large").key_by("user").count("n", parallelism=2).sink("large", weir.Collect())
    with testing.start(flow, {"in": ROWS}) as job:
        job.checkpoint()
        job.push("in", [{"user": "a", "amount": 8}])
        job.restart()
        job.push("in", [{"user": "a", "amount": 9}])
        job.advance_watermark("in", 200)
        rows = sorted((row["user"], row["n"], row["reason"]) for row in job.rows("large"))
        assert rows == [
            ("a", 1, "8"),
            ("a", 2, "8"),
            ("a", 3, "9"),
            ("b", 1, "7"),
            ("b", 2, "9"),
            ("b", 3, "timer"),
        ]
        assert len(job.rows("audit")) == 12


def test_a_keyed_process_of_batches_sends_batches():
    flow = weir.Dataflow("job")
    audit = source(flow).key_by("user").process("audit", AuditBatches, side_outputs={"seen": None})
    both = audit.union("both", audit.side_output("seen"))
    both.sink("out", weir.Collect())
    assert sorted(row["amount"] for row in testing.run(flow, {"in": ROWS}, seed=3)["out"]) == sorted(
        [*range(10)] * 2
    )


def test_the_plan_shows_which_output_an_edge_carries():
    graph = physical_graph(split_job().build())
    document = plan_document(graph)
    assert [edge["output"] for edge in document["edges"]] == ["split/large", "split/seen"]
    assert document["operators"][1]["side_outputs"]["large"] == {"user": "string", "reason": "string"}
    # What reads a side output begins a stage; the step's own reader is chained to it.
    assert [stage.name for stage in graph.stages] == ["in -> split -> small", "large", "seen"]
    assert graph.sides_read("split") == {"large", "seen"}


def test_only_columns_that_are_read_are_sent():
    flow = weir.Dataflow("job")
    split = source(flow).apply("split", Split, side_outputs={"large": LARGE, "seen": None})
    split.sink("small", weir.Blackhole())
    split.side_output("large").select("pick", "reason").sink("large", weir.Collect())
    [edge] = physical_graph(flow.build()).stages[1].inputs
    assert edge.columns == ("reason",)
    assert testing.run(flow, {"in": ROWS}, collect_sinks=True)["large"] == [
        {"reason": str(n)} for n in (7, 8, 9)
    ]


def test_the_fingerprint_of_a_graph_without_side_outputs_is_as_before():
    def fingerprint(**more):
        flow = weir.Dataflow("job")
        source(flow).apply("split", Split, **more).sink("out", weir.Blackhole())
        return fingerprint_of(flow.build())

    assert fingerprint() == fingerprint(side_outputs={}) != fingerprint(side_outputs={"large": LARGE})


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda s: s.side_output("larg"),
            "step 'split': there is no side output 'larg'.*'large'",
        ),
        (
            lambda s: s.filter("f", pl.col("amount") > 0).side_output("x"),
            "step 'f': there is no side output 'x'; there are none",
        ),
        (
            lambda s: s.apply("o", Split, side_outputs={"a b": None}),
            "step 'o': side output name 'a b' is not allowed",
        ),
        (lambda s: s.apply("o", Split, side_outputs={"a": {"x": "no type"}}), "step 'o': .*no type"),
        (lambda s: s.union("u", s.side_output("large")), "step 'u': input 2 has other columns than input 1"),
        (
            lambda s: s.side_output("large").filter("f", pl.col("amount") > 0),
            "step 'f': there is no column 'amount'",
        ),
        (
            lambda s: weir.run(s.side_output("large")),
            "step 'split': to collect its side output 'large', end it in a step",
        ),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(mistake, message):
    flow = weir.Dataflow("job")
    split = source(flow).apply("split", Split, side_outputs={"large": LARGE})
    with pytest.raises(weir.GraphError, match=message):
        mistake(split)


class Wrong(weir.KeyedProcess):
    def __init__(self, made):
        self.made = made

    def process(self, key, row, context):
        yield self.made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            weir.side("larg", {}),
            "rows were sent to side output 'larg', which the step does not declare.*'large'",
        ),
        (weir.side("large", {"user": "a"}), "another row than declared: missing \\['reason'\\]"),
        (weir.side("large", {"user": "a", "reason": 3}), "a value of another type than declared"),
        (weir.side("large", 3), "returned int, not a dict"),
    ],
)
def test_rows_that_are_not_as_declared_fail_the_step(made, message):
    flow = weir.Dataflow("job")
    audit = source(flow).key_by("user").process("audit", lambda: Wrong(made), side_outputs={"large": LARGE})
    audit.sink("out", weir.Collect())
    audit.side_output("large").sink("large", weir.Collect())
    with pytest.raises(weir.WeirError, match=message) as caught:
        testing.run(flow, {"in": ROWS})
    assert re.search("step 'audit'", str(caught.value))


class WrongBatch(weir.Operator):
    def process(self, batch):
        yield weir.side("large", batch)


def test_batches_that_are_not_as_declared_fail_the_step():
    flow = weir.Dataflow("job")
    wrong = source(flow).apply("wrong", WrongBatch, side_outputs={"large": LARGE})
    wrong.side_output("large").sink("large", weir.Collect())
    with pytest.raises(
        weir.WeirError, match="step 'wrong': process\\(\\) yielded for side output 'large' another schema"
    ):
        testing.run(flow, {"in": ROWS})


class Odd(weir.Operator):
    """Odd numbers leave by a side output."""

    def process(self, batch):
        is_odd = pa.array([value % 2 == 1 for value in batch.column("n").to_pylist()])
        yield weir.side("odd", batch.filter(is_odd))
        yield batch.filter(pc.invert(is_odd))


class NoteTimes(weir.Operator):
    """Remembers watermarks."""

    def __init__(self, told):
        self._told = told

    def process(self, batch):
        yield batch

    def on_watermark(self, time_ms):
        self._told.append(time_ms)
        return ()


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_side_output_has_the_watermarks_of_its_step_where_a_later_step_assigns_event_times(is_keyed):
    flow = weir.Dataflow("early")
    schema = {"n": int, "at": int, "later": int}
    watermark = weir.bounded_out_of_orderness("0s")
    rows = flow.source("rows", weir.JsonLines("in", schema=schema), event_time="at", watermark=watermark)
    divided = (rows.rebalance() if is_keyed else rows).apply("divide", Odd, side_outputs={"odd": None})
    early, late = [], []
    timed = divided.assign_event_time("timed", "later", watermark=watermark)
    timed.rebalance().apply("late", partial(NoteTimes, late)).sink("out", weir.Collect())
    odd = divided.side_output("odd").apply("early", partial(NoteTimes, early))
    odd.sink("odd_out", weir.Collect())
    graph = physical_graph(flow.build())
    assert any([node.name for node in stage.nodes][-2:] == ["divide", "timed"] for stage in graph.stages)
    given = [{"n": n, "at": n * 10, "later": 1_000_000 + n} for n in range(40)]
    result = weir.testing.run(flow, {"rows": given})
    assert (len(result["out"]), len(result["odd_out"])) == (20, 20)
    assert [time_ms for time_ms in early if time_ms < 2**62][-1] == 390
    assert [time_ms for time_ms in late if time_ms < 2**62][-1] == 1_000_038


class Told(weir.KeyedProcess):
    """Sends each amount to a side output, when it is time."""

    def process(self, key, row, context):
        context.timers.register(row["amount"])

    def on_timer(self, key, time_ms, context):
        yield weir.side("told", {"user": key[0], "at": time_ms})


def test_what_more_timers_send_than_fire_at_once_comes_in_the_order_of_time(monkeypatch):
    monkeypatch.setattr("weir.operators.keyed.firing.BLOCK_TIMERS_MAX", 8)
    flow = weir.Dataflow("told", max_parallelism=16)
    orders = flow.source("orders", weir.JsonLines("unused", schema=SCHEMA, event_time="amount"))
    sides = {"told": {"user": str, "at": int}}
    told = orders.key_by("user").process("told", Told, SCHEMA, side_outputs=sides)
    told.side_output("told").sink("out", weir.Collect())
    # Key groups have their timers over the same times, and some of one time are more than fire at once.
    rows = [{"user": f"user-{n % 20}", "amount": n // 13} for n in range(100)]
    times = [row["at"] for row in testing.run(flow, {"orders": rows})["out"]]
    assert times == sorted({(row["user"], row["amount"]): row["amount"] for row in rows}.values())
