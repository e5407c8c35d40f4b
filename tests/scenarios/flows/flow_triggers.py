"""A trigger as code, and early sessions of its results as changes, in one stage."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
#: Rows of a key after which its window tells and is emptied; it does so too when it has had a row for so long.
ROWS, WAIT_MS = 5, 400
GAP_MS = 430


class RowsOrWait(weir.WindowTrigger):
    """Its timer says which of the windows of a key it is of: one that comes after its window was told does nothing."""

    seen = weir.ValueState(pl.Int64, default=0)
    deadline = weir.ValueState(pl.Int64, default=0)

    def on_rows(self, batch, context):
        keys, found = context.keys(batch), []
        seen = self.seen.get(keys.distinct).to_list()
        deadlines = self.deadline.get(keys.distinct).to_list()
        began = {}
        for at, key in zip(batch["_event_time_ms"].to_pylist(), keys.inverse, strict=True):
            seen[key] += 1
            if seen[key] == 1:
                began.setdefault(key, []).append(at + WAIT_MS)
                deadlines[key] = at + WAIT_MS
            is_full = seen[key] == ROWS
            if is_full:
                seen[key] = 0
            found.append(self.FIRE_AND_PURGE if is_full else self.CONTINUE)
        for index in context.visit(keys):
            for time_ms in began.get(index, ()):
                context.timers.register(time_ms)
        self.seen.put(keys.distinct, seen)
        self.deadline.put(keys.distinct, deadlines)
        return found

    def on_event_time(self, batch, context):
        keys = context.keys(batch)
        seen = self.seen.get(keys.distinct).to_list()
        deadlines = self.deadline.get(keys.distinct).to_list()
        found = []
        for time_ms, key in zip(batch["_event_time_ms"].to_pylist(), keys.inverse, strict=True):
            is_due = seen[key] > 0 and deadlines[key] == time_ms
            if is_due:
                seen[key] = 0
            found.append(self.FIRE_AND_PURGE if is_due else self.CONTINUE)
        self.seen.put(keys.distinct, seen)
        return found


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("triggers")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release)
    )
    told = events.key_by("server").triggered_window(RowsOrWait)
    parts = told.aggregate("parts", n=weir.count(), total=weir.sum("id"), last=weir.max("id"))
    visits = parts.key_by("server").window(
        weir.session(GAP_MS), early=weir.every("100ms", time="event"), results="changelog"
    )
    sessions = visits.aggregate(
        "visits", parts=weir.count(), n=weir.sum("n"), total=weir.sum("total"), last=weir.max("last")
    )
    sessions.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
