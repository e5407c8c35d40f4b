"""Triggers as code, against plain Python."""

import random

import numpy as np
import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError

SCHEMA = {"user": str, "at": int, "price": int}


class AtTwenty(weir.WindowTrigger):
    """Tells each row that is a multiple of three, and tells and empties when prices come to twenty."""

    total = weir.ValueState(pl.Int64, default=0)

    def on_rows(self, batch, context):
        keys, found = context.keys(batch), []
        totals = self.total.get(keys.distinct).to_list()
        for key, price in zip(keys.inverse, batch["price"].to_pylist(), strict=True):
            totals[key] += price
            code = self.FIRE if price % 3 == 0 else self.CONTINUE
            if totals[key] >= 20:
                code, totals[key] = self.FIRE_AND_PURGE, 0
            elif price == 7:
                code, totals[key] = self.PURGE, 0
            found.append(code)
        self.total.put(keys.distinct, totals)
        return found


class AfterFifty(weir.WindowTrigger):
    """Tells and empties 50 ms after a key's first row, by event time or by the clock."""

    is_waiting = weir.ValueState(pl.Boolean, default=False)
    by_clock = False

    def on_rows(self, batch, context):
        keys = context.keys(batch)
        waits = self.is_waiting.get(keys.distinct).to_numpy()
        firsts = np.unique(keys.inverse, return_index=True)[1]
        times = batch["_event_time_ms"].to_numpy()[firsts] + 50
        rows = np.flatnonzero(~waits)
        for row in context.visit(keys):
            if row in rows and self.by_clock:
                context.timers.register_processing(context.timers.now_ms + 50)
            elif row in rows:
                context.timers.register(int(times[row]))
        self.is_waiting.put(keys.distinct, [True] * len(firsts))

    def on_event_time(self, batch, context):
        self.is_waiting.put(context.keys(batch).distinct, [False] * len(context.keys(batch).distinct))
        return np.full(batch.num_rows, self.FIRE_AND_PURGE)

    on_processing_time = on_event_time


class AfterFiftyByClock(AfterFifty):
    by_clock = True


def flow_of(trigger, **aggregates):
    flow = weir.Dataflow("shop")
    source = flow.source("orders", weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at"))
    windows = source.key_by("user").triggered_window(trigger)
    made = windows.aggregate(
        "told", parallelism=2, **(aggregates or {"n": weir.count(), "sum": weir.sum("price")})
    )
    made.sink("out", weir.Collect())
    return flow


def order(user, at, price=1):
    return {"user": user, "at": at, "price": price}


def told_by(rows):
    kept, told = [], []
    for row in rows:
        kept.append(row)
        total = sum(each["price"] for each in kept)
        if total >= 20 or (row["price"] % 3 == 0 and row["price"] != 7):
            times = [each["at"] for each in kept]
            told.append((min(times), max(times) + 1, len(kept), total))
        if total >= 20 or row["price"] == 7:
            kept = []
    return told


def test_a_trigger_on_rows_equals_plain_python_also_after_a_restart():
    made = random.Random(3)
    given = [order(made.choice("abc"), made.randrange(100), made.randrange(10)) for _ in range(200)]
    with testing.start(flow_of(AtTwenty), {"orders": []}) as job:
        for start in range(0, 120, 8):
            job.push("orders", given[start : start + 8])
        job.checkpoint()
        job.restart()
        job.push("orders", given[120:])
        result = job.finish()["out"]
    for user in "abc":
        found = [tuple(row.values())[1:] for row in result if row["user"] == user]
        assert found == told_by([row for row in given if row["user"] == user])


def test_a_trigger_by_event_time():
    with testing.start(flow_of(AfterFifty), {"orders": []}) as job:
        job.push("orders", [order("ann", 0), order("ann", 20, 4), order("bob", 30)])
        job.checkpoint()
        job.restart()
        job.advance_watermark("orders", 49)
        assert job.rows("out") == []
        job.advance_watermark("orders", 60)
        job.push("orders", [order("ann", 70)])
        rows = [tuple(row.values()) for row in job.finish()["out"]]
    assert sorted(rows) == [("ann", 0, 21, 2, 5), ("ann", 70, 71, 1, 1), ("bob", 30, 31, 1, 1)]


def test_a_trigger_by_the_clock():
    with testing.start(flow_of(AfterFiftyByClock), {"orders": []}) as job:
        job.push("orders", [order("ann", 0), order("ann", 20)])
        job.advance_time(49)
        assert job.rows("out") == []
        job.advance_time(1)
        assert [row["n"] for row in job.rows("out")] == [2]


class Wrong(weir.WindowTrigger):
    def on_rows(self, batch, context):
        return [5] * batch.num_rows


def test_a_trigger_that_says_nonsense_is_told_with_its_step():
    with pytest.raises(weir.WeirError, match="on_rows returned"):
        testing.run(flow_of(Wrong), {"orders": [order("ann", 0)]})


class Overriding(weir.WindowTrigger):
    def process_batch(self, batch, context):
        return ()


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (3, "takes a class that is a weir.WindowTrigger, got int"),
        (weir.KeyedProcess, "takes a class that is a weir.WindowTrigger, got KeyedProcess"),
        (Overriding, "Overriding overrides what makes windows"),
        (weir.WindowTrigger, r"WindowTrigger has no on_rows\(self, batch, context\)"),
    ],
)
def test_what_is_no_trigger_is_refused_when_the_graph_is_built(trigger, message):
    with pytest.raises(GraphError, match=message):
        flow_of(trigger)


def test_a_trigger_without_aggregates_is_refused():
    flow = weir.Dataflow("shop")
    source = flow.source("orders", weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at"))
    with pytest.raises(GraphError, match="give at least one aggregate"):
        source.key_by("user").triggered_window(AtTwenty).aggregate("told")
