"""``connect_broadcast`` with state by key and timers."""

import functools

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.local.broadcast_jobs import (
    EVENTS,
    RESULT,
    RULES,
    Spaced,
    Sums,
    event,
    events_batch,
    job,
    opened,
    rule,
    rules_batch,
    told,
)
from weir import testing


class SumBatches(Sums):
    def process_batch(self, batch, rules, context):
        keys = context.keys(batch)
        added = pl.Series(batch.column("n")) * rules.get("all", 0)
        told, totals = [], dict(enumerate(self.total.get(keys.distinct)))
        for position, value in zip(keys.inverse.tolist(), added, strict=True):
            totals[position] += value
            told.append(f"{totals[position]}")
        self.total.put(keys.distinct, list(totals.values()))
        yield batch.append_column("told", pa.array(told))

    on_timer = weir.BroadcastProcess.on_timer


def test_state_by_key_and_timers_go_on_after_restarts_and_with_other_parallelism():
    with testing.start(job()) as running:
        running.push("rules", [rule(2)])
        running.push("events", [event("a", 1, 0), event("b", 10, 0), event("a", 2, 100)])
        running.checkpoint()
        running.restart()
        running.push("events", [event("a", 2, 200)])
        assert told(running, "a") == ["2 1 1", "6 2 2", "10 3 2"]
        savepoint = running.savepoint()
    with testing.start(job(parallelism=3), from_savepoint=savepoint) as running:
        running.push("rules", [rule(5)])
        running.advance_watermark("rules", 1_150)
        running.advance_watermark("events", 1_150)
        assert (told(running, "a"), told(running, "b")) == ([], ["quiet 20 by 5"])
        running.push("events", [event("a", 1, 1_160)])
        assert told(running, "a") == ["15 4 2"]
        running.advance_watermark("rules", 9_000)
        running.advance_watermark("events", 9_000)
        assert told(running, "a") == ["15 4 2", "quiet 15 by 5"]


@pytest.mark.parametrize("cut", [1, 2, 100])
@pytest.mark.parametrize("hold_until", [None, "first"])
def test_timers_fire_between_rows(cut, hold_until):
    flow = weir.Dataflow("job")
    timed = {"user": str, "n": int, "at_ms": int}
    events = flow.source("events", weir.JsonLines("none", schema=timed, event_time="at_ms"))
    rules = flow.source("rules", weir.JsonLines("none", schema=RULES))
    keyed = events.key_by("user").connect_broadcast(
        "sums", rules, functools.partial(Spaced), RESULT, hold_until=hold_until
    )
    keyed.sink("out", weir.Collect())
    # An hour between rows of a key: each is told of before the next.
    rows = [{"user": user, "n": 1, "at_ms": hour * 3_600_000} for hour in range(20) for user in "ab"]
    with testing.start(flow, watermarks="follow_rows", out_of_order_grace_period_ms=0) as running:
        known = [rule(1) | {"_event_time_ms": 10**12}]
        if hold_until is None:
            running.push("rules", known)
        for first in range(0, len(rows), cut):
            running.push("events", rows[first : first + cut])
        if hold_until is not None:
            # Rows that waited are as of what is known when the rules have come.
            running.push("rules", known)
        found = told(running, "a")
    assert found == [text for hour in range(19) for text in (str(hour), f"quiet {hour + 1}")] + ["19"]


class Clocked(Spaced):
    def process(self, row, rules, context):
        context.timers.register_processing(context.timers.now_ms + 1_000)
        yield from ()


def test_timers_by_the_clock_and_side_outputs():
    class Sided(Clocked):
        def on_timer(self, key, time_ms, context):
            yield weir.side("late", {"user": f"{key[0]} {context.rules['all']}"})

    flow = job(Sided, side_outputs={"late": {"user": str}})
    with testing.start(flow) as running:
        running.push("rules", [rule(7)])
        running.push("events", [event("a", 1, 0)])
        running.advance_time(999)
        assert running.rows("sums") == []
        running.advance_time(1)
    assert [row for row in running.rows("sums")] == []


def test_batches_have_state_too():
    with testing.start(job(SumBatches)) as running:
        running.push("rules", [rule(3)])
        running.push("events", [event("a", 1, 0), event("b", 1, 0), event("a", 2, 0)])
        running.checkpoint()
        running.restart()
        running.push("events", [event("a", 1, 0)])
        assert told(running, "a") == ["3", "9", "12"]


class Resets(Sums):
    names = weir.MapState(pl.String, pl.Int64)
    last = weir.ReducingState(pl.Int64, max)

    def process(self, row, rules, context):
        self.last.add(row["n"])
        self.names[row["user"]] = row["n"]
        yield from super().process(row, rules, context)

    def on_broadcast(self, row, rules, context):
        rules["all"] = rules.get("all", 0) + row["factor"]
        found = []
        for key in context.each_key(*(() if row["name"] == "any" else (self.seen, self.names))):
            assert context.key == key
            assert key[0] in self.names
            found.append(key[0])
            self.total.value = len(self.seen)
            self.seen.clear()
            context.timers.register(5_000)
        for _ in context.each_key(self.total):
            self.total.value += 100
        rules["found"] = found
        if row["name"] == "bad":
            raise ValueError("bad")


def test_a_rule_changes_the_state_of_every_key():
    users = [f"u{number}" for number in range(30)]
    with testing.start(job(Resets, parallelism=3)) as running:
        running.push("rules", [rule(2)])
        running.push("events", [event(user, 5, 0) for user in users for _ in range(2)])
        running.checkpoint()
        running.restart()
        running.push("rules", [rule(0)])
        running.push("events", [event(user, 1, 0) for user in users])
        assert {row["told"] for row in list(running.rows("sums"))[-30:]} == {"104 1 2"}
        savepoint = running.savepoint()
    with testing.start(job(Resets, parallelism=2), from_savepoint=savepoint) as running:
        running.push("rules", [rule(0, "any")])
        running.advance_watermark("rules", 5_000)
        running.advance_watermark("events", 5_000)
        quiet = [row["user"] for row in running.rows("sums") if row["told"] == "quiet 101 by 2"]
        assert sorted(quiet) == sorted(2 * users), "of the row's timer, and of the rule's"


class Asked(Sums):
    def on_broadcast(self, row, rules, context):
        rules["all"] = row["factor"]
        for (user,) in context.each_key(self.seen):
            yield {"user": user, "n": context.event_time_ms, "told": f"{row['name']} {len(self.seen)}"}
            if row["name"] == "side":
                yield weir.side("too", {"user": user})
            if row["name"] == "bad":
                yield {"user": user}


def test_a_rule_may_be_answered_for_every_key():
    flow = weir.Dataflow("job")
    events = flow.source("events", weir.JsonLines("none", schema=EVENTS))
    rules = flow.source("rules", weir.JsonLines("none", schema=RULES))
    too = {"too": {"user": str}}
    made = events.key_by("user").connect_broadcast(
        "sums", rules, Asked, RESULT, side_outputs=too, parallelism=3
    )
    made.side_output("too").sink("out", weir.Collect())
    with testing.start(flow) as running:
        running.push("events", [event(user, 1, 0) for user in "abcab"])
        asked = [rule(0, name) | {"_event_time_ms": 7} for name in ("one", "side")]
        running.push("rules", asked)
        found = sorted(row["told"] for row in running.rows("sums") if row["n"] == 7)
        assert found == ["one 1", "one 2", "one 2", "side 1", "side 2", "side 2"]
        assert sorted(row["user"] for row in running.rows("out")) == ["a", "b", "c"]


def test_what_a_rule_yields_is_checked_before_it_changes_anything():
    operator = opened(Asked)
    list(operator.process_input(0, events_batch(("a", 1))))
    with pytest.raises(weir.WeirError, match="another row than declared: missing"):
        list(operator.process_input(1, rules_batch(("bad", 1))))
    assert operator.table.items == {}
    operator = opened(type("Returns", (Nested,), {"on_broadcast": lambda self, row, rules: 5}))
    with pytest.raises(weir.WeirError, match="on_broadcast returned int; it yields dicts, or nothing"):
        list(operator.process_input(1, rules_batch(("a", 1))))


def test_a_rule_that_raises_leaves_the_state_of_every_key_as_it_was():
    operator = opened(Resets)
    list(operator.process_input(1, rules_batch(("all", 1))))
    list(operator.process_input(0, events_batch(("a", 1), ("b", 2))))
    with pytest.raises(weir.WeirError, match="on_broadcast raised ValueError: bad"):
        list(operator.process_input(1, rules_batch(("all", 1), ("bad", 1))))
    assert operator.table.items == {"all": 1, "found": []}
    list(operator.process_input(1, rules_batch(("all", 0))))
    assert sorted(operator.table.items["found"]) == ["a", "b"]
    (made,) = operator.process_input(0, events_batch(("a", 1)))
    assert made.column("told").to_pylist() == ["102 1 1"]


class Wrong(Resets):
    def process(self, row, rules, context):
        yield from ({} for _ in context.each_key())


class WrongType(Resets):
    def on_broadcast(self, row, rules, context):
        rules["all"] = 3
        for _ in context.each_key():
            self.by_n[1] = 2**70


def test_mistakes_with_the_state_of_every_key_are_told():
    operator = opened(Wrong)
    with pytest.raises(weir.WeirError, match="each_key goes through all keys in on_broadcast"):
        list(operator.process_input(0, events_batch(("a", 1))))
    operator = opened(WrongType)
    list(operator.process_input(0, events_batch(("a", 1))))
    with pytest.raises(weir.WeirError, match=r"step 'sums': .* raised (OverflowError|ValueError|TypeError)"):
        list(operator.process_input(1, rules_batch(("all", 1))))
    assert operator.table.items == {}


class Nested(weir.BroadcastProcess):
    count = weir.ValueState(pl.Int64, default=0)

    def on_broadcast(self, row, rules, context):
        rules.setdefault("names", []).append(row["name"])
        rules[row["name"]] = row["factor"]
        if row["name"] == "key":
            raise LookupError(str(context.key))
        if row["factor"] < 0:
            raise ValueError("below 0")

    def process(self, row, rules, context):
        self.count.value += 1
        context.timers.register_processing(0)
        if row["n"] < 0:
            raise ValueError("below 0")
        yield row | {"told": str(self.count.value)}

    def on_timer(self, key, time_ms, context):
        return None


def test_a_rule_that_raises_leaves_the_dict_as_it_was():
    operator = opened(Nested)
    list(operator.process_input(1, rules_batch(("a", 1))))
    for name, row in (("b", -1), ("key", 1)):
        with pytest.raises(weir.WeirError, match=r"below 0|no current key"):
            list(operator.process_input(1, rules_batch(("c", 3), (name, row))))
        assert operator.table.items == {"names": ["a"], "a": 1}
    list(operator.process_input(1, rules_batch(("c", 3))))
    assert operator.table.items == {"names": ["a", "c"], "a": 1, "c": 3}


def test_a_row_that_raises_leaves_state_and_timers_as_they_were():
    operator = opened(Nested)
    list(operator.process_input(0, events_batch(("a", 1))))
    list(operator.on_time())
    with pytest.raises(weir.WeirError, match="process raised ValueError: below 0"):
        list(operator.process_input(0, events_batch(("a", 2), ("b", -1))))
    assert operator.due_us() > 0
    (made,) = operator.process_input(0, events_batch(("a", 3), ("b", 3)))
    assert made.column("told").to_pylist() == ["2", "1"]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: job(hold_until="second"), "step 'sums': hold_until is 'second'; it is 'first'"),
        (lambda: job(hold_until=True), "step 'sums': hold_until is True; it is 'first'"),
        (
            lambda: job(type("Bad", (Sums,), {"broadcast": weir.ValueState(pl.Int64)})),
            "the name of the rules",
        ),
        (lambda: job(type("Bad", (Sums,), {"process": lambda self, row: ()})), "Bad has <lambda> with other"),
        (lambda: job(type("Bad", (Sums,), {"on_timer": lambda self: ()})), "Bad: on_timer is called with"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(mistake, message):
    with pytest.raises(weir.GraphError, match=message):
        mistake()
