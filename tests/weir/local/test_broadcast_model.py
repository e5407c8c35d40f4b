"""Broadcast steps against plain Python: random rows in random pieces, rules between, restarts, other parallelism."""

import random

import polars as pl
import pytest

import weir
from tests.effort import cases
from weir import testing

TTL_MS, QUIET_MS, END_MS = 3_000, 1_500, 10**12


class Scored(weir.BroadcastProcess):
    total = weir.ValueState(pl.Int64, default=0)
    recent = weir.ListState(pl.Int64, ttl=weir.Ttl("3s"))
    due = weir.ValueState(pl.Int64)

    def on_broadcast(self, row, rules, context):
        if row["rule"] == "halve":
            for _ in context.each_key(self.total):
                self.total.value //= 2
        elif row["factor"]:
            rules[row["rule"]] = row["factor"]
        else:
            rules.pop(row["rule"], None)

    def process(self, row, rules, context):
        self.total.value += row["n"] * sum(rules.values())
        self.recent.append(row["n"])
        if self.due.value is not None:
            context.timers.delete(self.due.value)
        self.due.value = row["at_ms"] + QUIET_MS
        context.timers.register(self.due.value)
        yield {"key": row["key"], "told": f"{row['n']}: {self.total.value}, {list(self.recent)}"}

    def on_timer(self, key, time_ms, context):
        self.due.clear()
        yield {"key": context.key[0], "told": f"at {time_ms}: {self.total.value}, {sorted(context.rules)}"}


class Plain:
    """The same in plain Python: each row as soon as there is a rule."""

    def __init__(self):
        self.rules, self.waiting, self.told = {}, [], []
        self.totals, self.recent, self.due = {}, {}, {}
        self.highest_ms = 0
        self.goes = False

    def change(self, rules):
        for row in rules:
            if row["rule"] == "halve":
                self.totals = {key: total // 2 for key, total in self.totals.items()}
            elif row["factor"]:
                self.rules[row["rule"]] = row["factor"]
            else:
                self.rules.pop(row["rule"], None)
        if self.rules and not self.goes:
            self.goes = True
            for row, as_of_ms in self.waiting:
                self.process(row, as_of_ms)
            self.fire(self.highest_ms)

    def take(self, rows):
        for row in rows:
            self.highest_ms = max(self.highest_ms, row["at_ms"])
            if self.goes:
                self.process(row, self.highest_ms)
            else:
                self.waiting.append((row, self.highest_ms))
        if self.goes:
            self.fire(self.highest_ms)

    def process(self, row, as_of_ms):
        key, n = row["key"], row["n"]
        self.fire(as_of_ms, key)
        self.totals[key] = self.totals.get(key, 0) + n * sum(self.rules.values())
        kept = [(at, m) for at, m in self.recent.get(key, []) if at + TTL_MS > as_of_ms]
        self.recent[key] = [*kept, (as_of_ms, n)]
        self.due[key] = row["at_ms"] + QUIET_MS
        self.told.append((key, f"{n}: {self.totals[key]}, {[m for _, m in self.recent[key]]}"))

    def fire(self, until_ms, key=None):
        for name, at in list(self.due.items()):
            if at <= until_ms and key in (None, name):
                self.told.append((name, f"at {at}: {self.totals[name]}, {sorted(self.rules)}"))
                del self.due[name]


def job(parallelism):
    flow = weir.Dataflow("job")
    events = {"key": str, "n": int, "at_ms": int}
    rows = flow.source("rows", weir.JsonLines("none", schema=events, event_time="at_ms"))
    rules = flow.source("rules", weir.JsonLines("none", schema={"rule": str, "factor": int}))
    told = rows.key_by("key").connect_broadcast(
        "told", rules, Scored, {"key": str, "told": str}, hold_until="first", parallelism=parallelism
    )
    told.sink("out", weir.Collect())
    return flow


def begin(rng, parallelism, savepoint=None):
    return testing.start(
        job(parallelism),
        from_savepoint=savepoint,
        watermarks="follow_rows",
        out_of_order_grace_period_ms=0,
        seed=rng.randrange(2**16),
    )


def rule(name, factor):
    return {"rule": name, "factor": factor, "_event_time_ms": END_MS}


def random_rows(rng, from_ms):
    count, at_ms, rows = rng.randint(1, 40), from_ms, []
    for _ in range(count):
        at_ms += rng.choice([0, 1, 100, 900, 2_000])
        late_ms = rng.choice([0, 0, 0, 500])
        rows.append({"key": rng.choice("abcdefgh"), "n": rng.randint(1, 9), "at_ms": max(at_ms - late_ms, 0)})
    return rows


@pytest.mark.parametrize("seed", range(cases(3)))
def test_what_is_told_does_not_depend_on_pieces_restarts_and_parallelism(seed):
    rng, plain, found = random.Random(seed), Plain(), []
    running = begin(rng, rng.randint(1, 4))
    running.advance_watermark("rules", END_MS)
    for number in range(8):
        rows = random_rows(rng, plain.highest_ms)
        plain.take(rows)
        while rows:
            piece = rng.randint(1, len(rows))
            running.push("rows", rows[:piece])
            rows = rows[piece:]
            if rng.random() < 0.15:
                running.checkpoint()
                running.restart()
        if number >= rng.randint(0, 5):
            rules = [
                rule(rng.choice(["x", "y", "z", "halve"]), rng.randint(0, 3))
                for _ in range(rng.randint(0, 3))
            ]
            # At last there is one.
            rules += [rule("x", 1)] if number == 7 else []
            plain.change(rules)
            if rules:
                running.push("rules", rules)
        if rng.random() < 0.2:
            savepoint = running.savepoint()
            found += running.rows("told")
            running.stop()
            running = begin(rng, rng.randint(1, 4), savepoint)
    found += running.rows("told")
    running.stop()
    assert sorted((row["key"], row["told"]) for row in found) == sorted(plain.told)
    assert len(plain.told) > 20
