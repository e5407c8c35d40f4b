"""``connect_broadcast`` with rows that wait for rules, and jobs that change."""

import polars as pl
import pytest

import weir
from tests.weir.local.broadcast_jobs import EVENTS, RESULT, RULES, Spaced, event, job, opened, rule, told
from weir import testing
from weir.operators.keyed.timer_calls import TimerCalls


class Plain(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        rules[row["name"]] = row["factor"]

    def process(self, row, rules):
        yield row | {"told": str(rules.get("all"))}


class Grown(Plain):
    sums = weir.ValueState(pl.Int64, default=0)

    def process(self, row, rules, context):
        self.sums.value += row["n"] * rules["all"]
        yield row | {"told": str(self.sums.value)}


class Renamed(Grown):
    totals = weir.ValueState(pl.Int64, default=0, renamed_from="sums")

    def process(self, row, rules, context):
        self.totals.value += row["n"] * rules["all"]
        yield row | {"told": str(self.totals.value)}

    sums = None


def test_states_may_be_added_and_renamed_and_rows_wait_from_then_on():
    jobs = [job(Plain), job(Grown, hold_until=lambda rules: "go" in rules), job(Renamed, hold_until="first")]
    rules = [[rule(2)], [rule(1, "go")], []]
    savepoint, found = None, []
    for flow, rows in zip(jobs, rules, strict=True):
        with testing.start(flow, from_savepoint=savepoint) as running:
            running.push("rules", rows[:0] if len(found) == 1 else rows)
            running.push("events", [event("a", 5, 0)])
            if len(found) == 1:
                assert told(running, "a") == []
                running.push("rules", rows)
            found.append(told(running, "a"))
            savepoint = running.savepoint()
    assert found == [["2"], ["10"], ["20"]]


def test_rows_wait_for_the_first_rule_also_over_restarts_and_other_parallelism():
    with testing.start(job(hold_until="first")) as running:
        running.push("events", [event("a", 1, 0), event("b", 2, 0)])
        running.checkpoint()
        running.restart()
        running.push("events", [event("a", 3, 0)])
        assert running.rows("sums") == []
        savepoint = running.savepoint()
    with testing.start(job(parallelism=3, hold_until="first"), from_savepoint=savepoint) as running:
        running.push("events", [event("a", 4, 0)])
        assert running.rows("sums") == []
        running.push("rules", [rule(1)])
        assert told(running, "a") == ["1 1 1", "4 2 2", "8 3 3"]
        assert told(running, "b") == ["2 1 1"]
        running.push("events", [event("a", 5, 0)])
        assert told(running, "a")[-1] == "13 4 4"


class Removes(Spaced):
    def on_broadcast(self, row, rules):
        if row["factor"]:
            rules[row["name"]] = row["factor"]
        else:
            rules.pop(row["name"], None)


def test_rows_that_have_waited_once_wait_no_more_when_the_rules_are_gone():
    def two(rules):
        return len(rules) >= 2

    with testing.start(job(Removes, hold_until=two)) as running:
        running.push("rules", [rule(1)])
        running.push("events", [event("a", 1, 0)])
        assert running.rows("sums") == []
        running.push("rules", [rule(1, "other")])
        assert told(running, "a") == ["0"]
        running.push("rules", [rule(0), rule(0, "other")])
        running.checkpoint()
        running.restart()
        running.push("events", [event("a", 1, 0)])
        assert told(running, "a") == ["0", "1"]


def test_rows_wait_no_more_when_the_rules_have_ended(caplog):
    with caplog.at_level("WARNING"):
        found = testing.run(job(hold_until="first"), {"events": [event("a", 1, 0)], "rules": []})
    assert [row["told"] for row in found["sums"]] == ["0 1 1", "quiet 0 by 0"]
    assert "the rules have ended, and rows wait for others (hold_until)" in caplog.text


def test_rows_that_waited_are_in_time_for_the_steps_after_and_fire_timers():
    flow = weir.Dataflow("job")
    events = flow.source("events", weir.JsonLines("none", schema=EVENTS))
    rules = flow.source("rules", weir.JsonLines("none", schema=RULES))
    told_rows = events.key_by("user").connect_broadcast("sums", rules, Spaced, RESULT, hold_until="first")
    counted = told_rows.key_by("user").window(weir.tumbling("1s")).aggregate("counts", n=weir.count())
    counted.sink("out", weir.Collect())
    with testing.start(flow) as running:
        running.push("events", [event("a", 1, 0), event("a", 1, 500)])
        running.advance_watermark("events", 50_000)
        running.advance_watermark("rules", 50_000)
        running.checkpoint()
        running.restart()
        running.mark_idle("events")
        running.mark_idle("rules")
        assert running.rows("counts") == []
        running.push("rules", [rule(1) | {"_event_time_ms": 60_000}])
        assert told(running, "a") == ["0", "1", "quiet 2", "quiet 2"]
        assert [(row["n"]) for row in running.rows("counts")] == [2, 2]


def test_a_condition_that_raises_is_told():
    with pytest.raises(weir.WeirError, match="hold_until raised KeyError: 'none'"):
        testing.run(job(hold_until=lambda rules: rules and rules["none"]), {"events": [], "rules": [rule(1)]})


def test_the_form_of_snapshots_and_the_one_before_steps_had_state_by_key():
    older = {"kind": "broadcast_process", "version": 1, "codec": {"keys": ["other"]}, "items": {"all": 1}}
    # Nothing was by key, so that the key was free to change.
    operator = opened(Spaced, {0: older}, hold_until="first")
    assert operator.snapshot(1) == {
        "kind": "broadcast_process",
        "version": 1,
        "codec": {
            "keys": ["user"],
            "states": {"total": {"kind": "value", "type": "int64"}},
            "timers": {"version": 1},
            "held": 1,
        },
        "items": {"all": 1},
        "lets_rows_go": True,
    }
    assert opened(Plain, {0: older}).snapshot(1) == older | {"codec": {"keys": ["user"], "states": {}}}
    kept = operator.snapshot(1)
    kept["codec"]["keys"] = ["other"]
    with pytest.raises(
        weir.WeirError, match="the checkpoint's state is by other, the job now keeps it by user"
    ):
        opened(Spaced, {0: kept}, hold_until="first")


class Rung(Plain):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, row, rules, context):
        self.n.value += 1
        for later_ms in (1, 2, 3):
            context.timers.register(context.event_time_ms + later_ms)
        return ()

    def on_timer(self, key, time_ms, context):
        yield {"user": key[0], "n": time_ms, "told": str(self.n.value)}


@pytest.mark.parametrize("pauses", [False, True])
def test_timers_of_rows_that_waited_fire_also_in_parts(pauses, monkeypatch):
    monkeypatch.setattr(TimerCalls, "_is_over", lambda calls: pauses)
    with testing.start(
        job(Rung, hold_until="first"), watermarks="follow_rows", out_of_order_grace_period_ms=0
    ) as running:
        running.push("events", [event("a", 1, at) for at in (1_000, 2_000, 90_000)])
        running.push("rules", [rule(1) | {"_event_time_ms": 10**12}])
        rows = running.finish()["sums"].to_dicts()
    expected = [
        (at + later_ms, str(n)) for n, at in enumerate((1_000, 2_000, 90_000), 1) for later_ms in (1, 2, 3)
    ]
    assert [(row["n"], row["told"]) for row in rows] == expected
