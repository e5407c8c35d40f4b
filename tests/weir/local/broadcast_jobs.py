"""Jobs with a broadcast step that keeps state by key, for tests."""

import polars as pl
import pyarrow as pa

import weir
from weir.author.operator import OperatorContext
from weir.local.preparing import local_graph
from weir.operators.keyed.broadcast_operator import BroadcastOperator
from weir.specs.broadcast import BroadcastProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

EVENTS = {"user": str, "n": int}
RULES = {"name": str, "factor": int}
RESULT = {"user": str, "n": int, "told": str}


class Sums(weir.BroadcastProcess):
    """Adds each row times the rule's factor; a second after the last row of a key it tells the sum."""

    total = weir.ValueState(pl.Int64, default=0)
    seen = weir.ListState(pl.Int64)
    by_n = weir.MapState(pl.Int64, pl.Int64)
    due = weir.ValueState(pl.Int64)

    def on_broadcast(self, row, rules):
        rules[row["name"]] = row["factor"]

    def process(self, row, rules, context):
        assert context.key == (row["user"],)
        assert context.rules == rules
        self.total.value += row["n"] * rules.get("all", 0)
        self.seen.append(row["n"])
        self.by_n[row["n"]] = self.by_n.get(row["n"], 0) + 1
        if self.due.value is not None:
            context.timers.delete(self.due.value)
        self.due.value = context.event_time_ms + 1_000
        context.timers.register(self.due.value)
        yield {
            "user": row["user"],
            "n": row["n"],
            "told": f"{self.total.value} {len(self.seen)} {len(self.by_n)}",
        }

    def on_timer(self, key, time_ms, context):
        assert context.key == key
        yield {
            "user": key[0],
            "n": time_ms,
            "told": f"quiet {self.total.value} by {context.rules.get('all', 0)}",
        }
        self.due.clear()


def job(factory=Sums, parallelism=2, schema=None, **settings):
    flow = weir.Dataflow("job")
    events = flow.source("events", weir.JsonLines("none", schema=EVENTS))
    rules = flow.source("rules", weir.JsonLines("none", schema=RULES))
    made = events.key_by("user").connect_broadcast(
        "sums", rules, factory, schema or RESULT, parallelism=parallelism, **settings
    )
    made.sink("out", weir.Collect())
    return flow


def event(user, n, at_ms):
    return {"user": user, "n": n, "_event_time_ms": at_ms}


def rule(factor, name="all"):
    return {"name": name, "factor": factor, "_event_time_ms": 0}


def told(running, user):
    return [row["told"] for row in running.rows("sums") if row["user"] == user]


class Spaced(weir.BroadcastProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def on_broadcast(self, row, rules):
        rules[row["name"]] = row["factor"]

    def process(self, row, rules, context):
        yield {"user": row["user"], "n": 0, "told": str(self.total.value)}
        self.total.value += 1
        context.timers.register(context.event_time_ms + 1_000)

    def on_timer(self, key, time_ms, context):
        yield {"user": key[0], "n": time_ms, "told": f"quiet {self.total.value}"}

    def on_watermark(self, time_ms):
        assert time_ms >= 0, "only one that has come"


def opened(factory, restored=None, **settings):
    """The operator of the only subtask, and what a checkpoint holds of it."""
    flow = job(factory, **settings)
    node = next(node for node in local_graph(flow).nodes if node.name == "sums")
    assert isinstance(node.spec, BroadcastProcessSpec)
    tables = StateTables(MemoryBackend(), 1 << 20, 128)
    ids = {name: number for number, name in enumerate(node.states)}
    operator = BroadcastOperator(node.spec)
    operator.open(
        OperatorContext(
            "job",
            "sums",
            1,
            0,
            1,
            tables=tables.of("sums", ids),
            subtask_indices=(0,),
            restored=restored or {},
        )
    )
    return operator


def batch(schema, rows):
    made = pa.RecordBatch.from_pylist(rows, pa.schema(schema))
    return weir.with_times(made, [0] * len(rows), 0)


def rules_batch(*rows):
    given = [{"name": name, "factor": factor} for name, factor in rows]
    return batch([("name", pa.string()), ("factor", pa.int64())], given)


def events_batch(*rows):
    return batch([("user", pa.string()), ("n", pa.int64())], [{"user": user, "n": n} for user, n in rows])
