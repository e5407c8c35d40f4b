"""Rules see states, and fire timers, as of the watermark of both streams as of each rule, whatever the cut."""

import pytest

import weir
from weir import testing

SCHEMA = {"k": int, "v": int, "at": int}
RESULT = {"k": int, "kind": str, "x": int}
RULES = [{"k": 0, "v": number, "at": 4_000 * number} for number in range(6)]


class Kept(weir.BroadcastProcess):
    """Rules look at all keys; the second one writes, and the fourth one registers timers."""

    total = weir.ValueState(int, default=0, ttl=weir.Ttl("5s"))
    name = weir.ValueState(str, default="", ttl=weir.Ttl("5s", refreshed_by="access"))
    values = weir.ListState(int, ttl=weir.Ttl("5s"))
    by_value = weir.MapState(int, int)

    def on_broadcast(self, row, rules, context):
        yield {"k": -1, "kind": "rule", "x": row["v"]}
        for state in ("total", "name", "values", "by_value"):
            for (key,) in context.each_key(getattr(self, state)):
                yield {"k": key, "kind": state, "x": row["v"]}
                if row["v"] == 1 and state == "by_value":
                    self.total.value = 7
                    self.values.append(1)
                if row["v"] == 3 and state == "by_value":
                    context.timers.register(context.event_time_ms + 1_000)
                    self.by_value.clear()

    def process(self, row, rules, context):
        self.total.value += 1
        self.name.value = "x"
        self.values.append(row["v"])
        self.by_value[row["v"]] = 1
        context.timers.register(row["at"] + 8_000)

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0], "kind": f"timer {time_ms}", "x": 10 * self.total.value + len(self.values)}


class Picky(weir.BroadcastProcess):
    """Each rule registers a timer that is due before the next one; the fourth one raises."""

    def on_broadcast(self, row, rules, context):
        if row["v"] == 3:
            raise ValueError("no")
        for _ in context.each_key():
            context.timers.register(context.event_time_ms + 1)
        return ()

    seen = weir.ValueState(int, default=0)

    def process(self, row, rules, context):
        self.seen.value += 1

    def on_timer(self, key, time_ms, context):
        return ()


def test_an_error_names_the_rule_that_raised_it():
    flow = weir.Dataflow("rules")
    rows, rules = (
        flow.source(name, weir.JsonLines("unused", schema=SCHEMA), event_time="at")
        for name in ("rows", "rules")
    )
    rows.key_by("k").connect_broadcast("picky", rules, Picky, RESULT).sink("out", weir.Collect())
    with testing.start(flow, watermarks="follow_rows", out_of_order_grace_period_ms=0) as job:
        job.push("rows", [{"k": 1, "v": 5, "at": 1_000}])
        job.mark_idle("rows")
        with pytest.raises(weir.WeirError, match=r'step .picky.*no[\s\S]*row: \{"k":0,"v":3,') as raised:
            job.push("rules", RULES)
    assert "ValueError" in str(raised.value)


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
@pytest.mark.parametrize("cut", [1, 2, 5, 6])
def test_rules_see_what_has_not_expired_by_the_watermark_as_of_each(cut, state):
    flow = weir.Dataflow("rules", max_parallelism=8)
    bound = weir.bounded_out_of_orderness("0s")
    rows, rules = (
        flow.source(name, weir.JsonLines("unused", schema=SCHEMA), event_time="at", watermark=bound)
        for name in ("rows", "rules")
    )
    kept = rows.key_by("k").connect_broadcast("kept", rules, Kept, RESULT, in_time_order=False)
    kept.sink("out", weir.Collect())
    with testing.start(flow, watermarks="follow_rows", state=state) as job:
        job.push("rows", [{"k": 1, "v": 5, "at": 1_000}, {"k": 2, "v": 6, "at": 2_000}])
        job.mark_idle("rows")
        for first in range(0, len(RULES), cut):
            job.push("rules", RULES[first : first + cut])
        job.finish()
        told = [tuple(row.values()) for row in job.rows("out")]
    every = ("total", "name", "values", "by_value")
    assert told == [
        *((-1, "rule", 0), *((key, state, 0) for state in every for key in (1, 2))),
        *((-1, "rule", 1), *((key, state, 1) for state in every for key in (1, 2))),
        # What rows of 1 and 2 s have written is gone, but not what the rule of 4 s has.
        *((-1, "rule", 2), *((key, state, 2) for state in ("total", "values", "by_value") for key in (1, 2))),
        *((1, "timer 9000", 71), (2, "timer 10000", 0)),
        *((-1, "rule", 3), (1, "by_value", 3), (2, "by_value", 3)),
        *((1, "timer 13000", 0), (2, "timer 13000", 0)),
        *((-1, "rule", 4), (-1, "rule", 5)),
    ]
