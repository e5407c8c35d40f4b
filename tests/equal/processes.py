"""Processes whose answers are all that they see: states that expire, timers, side outputs, rules."""

import numpy as np
import polars as pl
import pyarrow as pa

import weir

OUT = {"k": int, "n": int, "at_ms": int, "text": str}


def near(time_ms):
    """A time that a timer may have."""
    return min(max(time_ms, -(10**13)), 10**14)


class Sessions(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)
    due = weir.ValueState(pl.Int64)

    def process(self, key, row, context):
        if self.due.value is not None:
            context.timers.delete(self.due.value)
        self.n.value += 1
        self.due.value = near(context.event_time_ms + 1_500)
        context.timers.register(self.due.value)
        yield {"k": key[0], "n": self.n.value, "at_ms": context.timers.watermark_ms, "text": "row"}

    def on_timer(self, key, time_ms, context):
        yield {
            "k": key[0],
            "n": self.n.value,
            "at_ms": time_ms,
            "text": f"timer {context.timers.watermark_ms if not context.timers.at_end else 'end'}",
        }
        self.n.clear()
        self.due.clear()


class Chained(weir.KeyedProcess):
    """Timers that register timers, earlier and later ones."""

    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        if row["v"] % 4 == 0:
            context.timers.register(near(context.event_time_ms + row["v"] % 3 * 1_000))
        return ()

    def on_timer(self, key, time_ms, context):
        self.n.value += 1
        yield {"k": key[0], "n": self.n.value, "at_ms": time_ms, "text": str(context.event_time_ms)}
        if self.n.value % 3:
            context.timers.register(time_ms + 700)
        elif self.n.value % 2:
            context.timers.register(time_ms - 500)


class Batches(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        context.timers.register(np.clip(batch["_event_time_ms"].to_numpy() + 1_000, -(10**13), 10**14), keys)
        yield self._counted(batch, keys, 1, batch["v"], "row")

    def on_timers(self, batch, context):
        yield self._counted(batch, context.keys(batch), 100, batch["_event_time_ms"], "timer")

    def _counted(self, batch, keys, step, at_ms, text):
        counts, told = self.n.get(keys.distinct).to_list(), []
        for position in keys.inverse:
            counts[position] += step
            told.append(counts[position])
        self.n.put(keys.distinct, counts)
        columns = {"n": pa.array(told, pa.int64()), "at_ms": at_ms, "text": pa.array([text] * len(told))}
        return pa.record_batch({"k": batch["k"], **columns})


class Counting(weir.KeyedProcess):
    """A count that is forgotten."""

    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("3s"))

    def process(self, key, row, context):
        self.n.value += 1
        yield {"k": key[0], "n": self.n.value, "at_ms": row["v"], "text": ""}


class Expiring(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("3s"))
    read = weir.ValueState(str, default="", ttl=weir.Ttl("2s", refreshed_by="access"))
    lately = weir.ListState(pl.Int64, ttl=weir.Ttl("4s"))
    items = weir.MapState(str, pl.Int64, ttl=weir.Ttl("4s"))
    most = weir.ReducingState(pl.Int64, max, ttl=weir.Ttl("3s"))
    mean = weir.AggregatingState(
        pl.List(pl.Int64),
        start=[0, 0],
        add=lambda kept, v: [kept[0] + v, kept[1] + 1],
        result=lambda kept: kept[0] * 1000 + kept[1],
        ttl=weir.Ttl("3s"),
    )

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] % 3 == 0:
            self.read.value = (self.read.value or "") + str(row["v"] % 10)
        self.lately.append(row["v"])
        if row["v"] % 7 == 0:
            self.lately.appendleft(-row["v"])
        self.items[str(row["v"] % 4)] = row["v"]
        self.most.add(row["v"])
        self.mean.add(row["v"])
        context.timers.register(near(context.event_time_ms + 2_500))
        yield self._told(key, row["v"])

    def _told(self, key, at_ms):
        items = sorted(self.items.items())
        text = f"{self.read.value} {list(self.lately)} {items} {self.most.value} {self.mean.result()}"
        return {"k": key[0], "n": self.n.value, "at_ms": at_ms, "text": text}

    def on_timer(self, key, time_ms, context):
        yield self._told(key, time_ms)


class Histories(weir.KeyedProcess):
    versions = weir.VersionedState(pl.Int64, retention="5s")
    windows = weir.WindowState(pl.Int64, retention="5s", size="1s")
    many = weir.WindowState(pl.Int64, retention="3s", duplicates=True)
    visits = weir.SessionState(pl.Int64, retention="5s")

    def process(self, key, row, context):
        at, told = context.event_time_ms, []
        told.append(self.versions.get(at))
        told.append(self.versions.put(None if row["v"] % 6 == 5 else row["v"], row["to"]))
        told.append(self.versions.get(at - 1_000))
        told.append(
            [(v.value, v.valid_from_ms, v.valid_to_ms) for v in self.versions.fetch(at - 4_000, at + 4_000)]
        )
        start = at - at % 1_000
        told.append(self.windows.put(self.windows.get(start, 0) + 1, start))
        told.append(list(self.windows.fetch(start - 4_000, start)))
        self.many.put(row["v"], start)
        told.append(list(self.many.fetch(None, None, reverse=True)))
        first, last, rows = at, at, 1
        for visit in list(self.visits.find(at - 1_000, at + 1_000)):
            first, last, rows = min(first, visit.start_ms), max(last, visit.end_ms), rows + visit.value
            self.visits.delete(visit.start_ms, visit.end_ms)
        told.append(self.visits.put(rows, first, last))
        told.append([(x.start_ms, x.end_ms, x.value) for x in self.visits.find(None, None)])
        if row["v"] % 5 == 0:
            context.timers.register(near(at + 3_000))
        yield {"k": key[0], "n": rows, "at_ms": at, "text": str(told)}

    def on_timer(self, key, time_ms, context):
        told = [
            self.versions.get(),
            self.versions.get(time_ms - 2_000),
            list(self.windows.fetch(None, None)),
            [(x.start_ms, x.value) for x in self.visits.find(None, None)],
        ]
        yield {"k": key[0], "n": -1, "at_ms": time_ms, "text": str(told)}


class Sides(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] % 2:
            yield weir.side("odd", {"k": key[0], "n": self.n.value})
        context.timers.register(context.event_time_ms + 1_000)
        yield {"k": key[0], "n": self.n.value, "at_ms": row["v"], "text": row["t"] or "-"}

    def on_timer(self, key, time_ms, context):
        yield weir.side("odd", {"k": key[0], "n": -self.n.value})


class Timed(weir.KeyedProcess):
    """How many rows came before a timer is open, which of them are before its time is not."""

    n = weir.MapState(pl.Int64, pl.Int64)

    def process(self, key, row, context):
        end_ms = context.event_time_ms // 3_000 * 3_000 + 3_000
        context.timers.register(end_ms)
        self.n[end_ms] = self.n.get(end_ms, 0) + 1
        return ()

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0], "n": self.n.pop(time_ms), "at_ms": time_ms, "text": ""}


class Limits(weir.BroadcastProcess):
    total = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("10s"))

    def on_broadcast(self, row, rules):
        rules[str(row["limit"])] = row["limit"]

    def process(self, row, rules, context):
        self.total.value += 1
        # A late row makes a timer that is not over, too: of one that is over it is open whether it tells late.
        context.timers.register(context.event_time_ms + 20_000)
        if row["v"] % 10 in rules.values():
            yield {"k": context.key[0], "n": self.total.value, "at_ms": row["v"], "text": "row"}

    def on_timer(self, key, time_ms, context):
        # Not how many rows had come: that is open as long as the rules, which timers wait for as well, may be behind.
        yield {"k": key[0], "n": 0, "at_ms": time_ms, "text": f"timer {sorted(context.rules)}"}
