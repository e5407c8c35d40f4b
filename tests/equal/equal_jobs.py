"""Jobs of which each says the same in ``weir.run``, in ``weir.testing`` and on real processes."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from tests.equal.equal_rows import BOUND_MS

SCHEMA = {"k": int, "at": weir.Nullable(int), "v": int, "to": int, "t": weir.Nullable(str)}
RULES = {"at": int, "limit": int}
BOUND = weir.bounded_out_of_orderness(f"{BOUND_MS}ms", idle_timeout="1000h")
ODD_BOUND = weir.bounded_out_of_orderness(f"{BOUND_MS}ms", idle_timeout="1000h", future_max=None)


@dataclass(frozen=True)
class Streams:
    """What jobs are made of; each job gets keyed streams of its own."""

    left: object
    right: object
    third: object
    odd: object
    rules: object
    parallelism: int


@dataclass(frozen=True)
class Job:
    """``add(streams, name)`` returns streams by output."""

    add: object
    #: "rows": as they are; "folded": what a changelog comes to; "last": of each key and window the last one.
    compare: str = "rows"
    sources: tuple = field(default=("left",))


JOBS = {}


def job(name, compare="rows"):
    def note(add):
        JOBS[name] = Job(add, compare)
        return add

    return note


def by_key(stream, s, name):
    """Of a key, with the parallelism of the run."""
    return stream.key_by("k")


# --- windows ---

AGGREGATES = {
    "n": weir.count(),
    "texts": weir.count("t"),
    "total": weir.sum("v"),
    "least": weir.min("v"),
    "even": weir.count().where(pl.col("v") % 2 == 0),
    "first": weir.first("v"),
    "last": weir.last("v"),
    "two": weir.largest("v", 2),
    "values": weir.count_distinct("to"),
}
FEW = {"n": weir.count(), "total": weir.sum("v")}


def windowed(name, window, aggregates=FEW, late=True, of="left", compare="rows", **settings):
    def add(s, name):
        stream = getattr(s, of).key_by("k").window(window, **settings)
        out = stream.aggregate(name, parallelism=s.parallelism, **aggregates)
        return {name: out} | ({f"{name}_missed": out.side_output("late")} if late else {})

    JOBS[name] = Job(add, compare)


windowed("tumbling", weir.tumbling("5s"), AGGREGATES)
windowed("tumbling_offset", weir.tumbling("5s", offset="1s"), late=False)
windowed(
    "tumbling_texts",
    weir.tumbling("5s"),
    {"first": weir.first("t"), "most": weir.max("t"), "two": weir.largest("t", 2)},
)
windowed("sliding", weir.sliding("6s", "2s"), AGGREGATES)
windowed("sliding_few", weir.sliding("6s", "2s"), late=False)
windowed("cumulative", weir.cumulative("6s", "2s"))
windowed("session", weir.session("1500ms"), AGGREGATES)
windowed("session_pre", weir.session("1500ms"), late=False)
windowed("lateness", weir.tumbling("5s"), allowed_lateness="4s")
windowed(
    "lateness_changes", weir.tumbling("5s"), allowed_lateness="4s", results="changelog", compare="changes"
)
windowed("lateness_sliding", weir.sliding("6s", "2s"), allowed_lateness="4s")
windowed("lateness_session", weir.session("1500ms"), allowed_lateness="4s")
windowed("lateness_session_changes", weir.session("1500ms"), allowed_lateness="4s", results="changelog")
windowed("early", weir.tumbling("20s"), early=weir.every("3s", time="event"))
windowed("early_discarding", weir.tumbling("20s"), early=weir.every("3s", time="event"), results="discarding")
windowed("early_changes", weir.tumbling("20s"), early=weir.every("3s", time="event"), results="changelog")
windowed("early_sliding", weir.sliding("20s", "10s"), early=weir.every("3s", time="event"))
windowed("early_rows", weir.tumbling("20s"), early=weir.every(rows=3))
windowed(
    "early_where", weir.tumbling("20s"), early=weir.every(where=pl.col("v") % 7 == 0), results="changelog"
)
windowed("early_late", weir.tumbling("10s"), early=weir.every("3s", time="event"), allowed_lateness="5s")
windowed("early_session", weir.session("1500ms"), early=weir.every("1s", time="event"), results="changelog")
windowed(
    "early_session_all", weir.session("1500ms"), early=weir.every("1s", time="event"), allowed_lateness="4s"
)
windowed("global_rows", weir.global_window(), late=False, early=weir.every(rows=3), results="discarding")
windowed("odd_tumbling", weir.tumbling("5s"), AGGREGATES, of="odd")
windowed("odd_sliding", weir.sliding("6s", "2s"), of="odd")
windowed("odd_session", weir.session("1500ms"), of="odd")
windowed("odd_lateness", weir.tumbling("5s"), of="odd", allowed_lateness="1d")


@job("window_process")
def _(s, name):
    def middle(key, window, rows):
        return pl.DataFrame(
            {"n": [rows.height], "vs": [str(rows["v"].to_list())], "span": [window.end_ms - window.start_ms]}
        )

    window = s.left.key_by("k").window(weir.tumbling("5s"), allowed_lateness="3s")
    out = window.process(name, middle, {"n": int, "vs": str, "span": int}, parallelism=s.parallelism)
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("session_process")
def _(s, name):
    def middle(key, window, rows):
        return pl.DataFrame({"n": [rows.height], "vs": [str(rows["v"].to_list())]})

    window = s.left.key_by("k").window(weir.session("1500ms"))
    return {name: window.process(name, middle, {"n": int, "vs": str}, parallelism=s.parallelism)}


class Texts(weir.Aggregator):
    accumulator = str

    def create(self):
        return ""

    def add(self, accumulator, rows):
        return "".join(sorted(accumulator + "".join(str(v % 10) for v in rows["v"])))

    def merge(self, left, right):
        return "".join(sorted(left + right))

    def result(self, accumulator):
        return {"text": accumulator}


for _kind, _window in {
    "tumbling": weir.tumbling("5s"),
    "sliding": weir.sliding("6s", "2s"),
    "session": weir.session("1500ms"),
}.items():

    @job(f"aggregator_{_kind}")
    def _(s, name, window=_window):
        window = s.left.key_by("k").window(window, allowed_lateness="2s")
        return {name: window.aggregate_with(name, Texts, {"text": str}, parallelism=s.parallelism)}


@job("window_all")
def _(s, name):
    out = s.left.window_all(weir.tumbling("5s"), allowed_lateness="3s").aggregate(
        name, n=weir.count(), total=weir.sum("v")
    )
    return {name: out}


@job("window_all_late")
def _(s, name):
    out = s.left.window_all(weir.sliding("6s", "2s")).aggregate(name, n=weir.count(), most=weir.max("v"))
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("window_all_early")
def _(s, name):
    window = s.left.window_all(
        weir.tumbling("20s"), early=weir.every("3s", time="event"), results="changelog"
    )
    return {name: window.aggregate(name, n=weir.count(), most=weir.max("v"))}


@job("window_top")
def _(s, name):
    counted = (
        s.left.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(f"{name}_in", n=weir.count(), parallelism=s.parallelism)
    )
    return {name: counted.window_top(name, by="n", rows=2, ties=True)}


@job("count_window")
def _(s, name):
    return {
        name: s.left.key_by("k")
        .count_window(4, 2)
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), most=weir.max("t"), last=weir.last("v"))
    }


@job("windows_of_windows")
def _(s, name):
    counted = (
        s.left.key_by("k")
        .window(weir.tumbling("2s"))
        .aggregate(f"{name}_in", n=weir.count(), parallelism=s.parallelism)
    )
    wide = (
        counted.key_by("n")
        .window(weir.tumbling("10s"))
        .aggregate(name, parallelism=s.parallelism, m=weir.count(), total=weir.sum("k"))
    )
    return {name: wide, f"{name}_missed": wide.side_output("late")}


class Baskets(weir.WindowTrigger):
    deadline = weir.ValueState(pl.Int64, default=0)

    def on_rows(self, batch, context):
        keys = context.keys(batch)
        deadlines = self.deadline.get(keys.distinct).to_numpy().copy()
        times = batch["_event_time_ms"].to_numpy()
        for index in context.visit(keys):
            if not deadlines[index]:
                deadlines[index] = times[np.argmax(keys.inverse == index)] + 3_000
                context.timers.register(int(deadlines[index]))
        self.deadline.put(keys.distinct, deadlines)
        return np.where(batch["v"].to_numpy() % 11 == 0, self.FIRE_AND_PURGE, self.CONTINUE)

    def on_event_time(self, batch, context):
        keys = context.keys(batch).distinct
        self.deadline.put(keys, [0] * len(keys))
        return [self.FIRE_AND_PURGE] * batch.num_rows


@job("triggered")
def _(s, name):
    return {
        name: s.left.key_by("k")
        .triggered_window(Baskets)
        .aggregate(name, n=weir.count(), total=weir.sum("v"), parallelism=s.parallelism)
    }


# --- joins ---

WITHIN = {"within": ("-3s", "2s")}
BOUNDS = {
    "within": WITHIN,
    "later": {"within": ("1s", "3s")},
    "between": {"between": ("at", "to")},
    "window": {"window": weir.tumbling("5s")},
    "ttl": {"ttl": "2500ms"},
}


def _timed(stream, name):
    """Both bounds of an interval have to be there."""
    return stream


for _bounds, _settings in BOUNDS.items():
    for _how in ("inner", "left", "right", "full", "semi", "anti"):

        @job(f"join_{_bounds}_{_how}")
        def _(s, name, settings=_settings, how=_how):
            out = s.left.key_by("k").join(
                name, s.right.key_by("k"), how=how, parallelism=s.parallelism, **settings
            )
            return {
                name: out,
                f"{name}_ll": out.side_output("late_left"),
                f"{name}_lr": out.side_output("late_right"),
            }


@job("join_sliding")
def _(s, name):
    return {
        name: s.left.key_by("k").join(
            name, s.right.key_by("k"), window=weir.sliding("4s", "2s"), parallelism=s.parallelism
        )
    }


for _how in ("left", "inner"):

    @job(f"as_of_{_how}")
    def _(s, name, how=_how):
        out = s.left.key_by("k").join_as_of(name, s.right.key_by("k"), how=how, parallelism=s.parallelism)
        return {name: out, f"{name}_ll": out.side_output("late_left")}


for _how, _compare in {
    "inner": "unordered",
    "semi": "folded",
    "left": "folded",
    "right": "folded",
    "full": "folded",
    "anti": "folded",
}.items():

    @job(f"join_tables_{_how}", "rows" if _how == "inner" else "folded")
    def _(s, name, how=_how):
        left, right = (
            s.left.filter(f"{name}_l", pl.col("v") % 3 == 0),
            s.right.filter(f"{name}_r", pl.col("v") % 5 == 0),
        )
        return {name: left.key_by("k").join(name, right.key_by("k"), how=how, parallelism=s.parallelism)}


@job("join_all_within")
def _(s, name):
    out = s.left.key_by("k").join_all(
        name, s.right.key_by("k"), s.third.key_by("k"), within="1s", parallelism=s.parallelism
    )
    return {
        name: out,
        f"{name}_l1": out.side_output("late_1"),
        f"{name}_l2": out.side_output("late_2"),
        f"{name}_l3": out.side_output("late_3"),
    }


for _how in ("inner", "left"):

    @job(f"join_all_window_{_how}")
    def _(s, name, how=_how):
        return {
            name: s.left.key_by("k").join_all(
                name,
                s.right.key_by("k"),
                s.third.key_by("k"),
                window=weir.tumbling("3s"),
                how=how,
                parallelism=s.parallelism,
            )
        }


@job("join_all_tables", "folded")
def _(s, name):
    left, right, third = (
        x.filter(f"{name}_{i}", pl.col("v") % 20 == 0) for i, x in enumerate((s.left, s.right, s.third))
    )
    return {
        name: left.key_by("k").join_all(
            name, right.key_by("k"), third.key_by("k"), how="left", parallelism=s.parallelism
        )
    }


@job("join_of_windows")
def _(s, name):
    counts = [
        x.key_by("k")
        .window(weir.tumbling("4s"))
        .aggregate(f"{name}_{i}", n=weir.count(), parallelism=s.parallelism)
        for i, x in enumerate((s.left, s.right))
    ]
    return {
        name: counts[0]
        .key_by("k")
        .join(name, counts[1].key_by("k"), window=weir.tumbling("4s"), how="full", parallelism=s.parallelism)
    }


@job("join_then_windows")
def _(s, name):
    joined = s.left.key_by("k").join(
        f"{name}_in", s.right.key_by("k"), how="left", parallelism=s.parallelism, **WITHIN
    )
    out = (
        joined.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), m=weir.count("v_right"))
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("join_then_others")
def _(s, name):
    joined = s.left.key_by("k").join(
        f"{name}_in", s.right.key_by("k"), how="full", parallelism=s.parallelism, **WITHIN
    )
    named = joined.select(f"{name}_s", "k", m=pl.col("v_right").fill_null(-1) % 3, w=pl.col("v_right"))
    out = (
        named.key_by("m")
        .window(weir.tumbling("5s"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("w"))
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("join_then_sessions")
def _(s, name):
    joined = s.left.key_by("k").join(
        f"{name}_in", s.right.key_by("k"), how="full", parallelism=s.parallelism, **WITHIN
    )
    named = joined.select(f"{name}_s", "k", m=pl.col("v_right").fill_null(-1) % 3, w=pl.col("v_right"))
    out = (
        named.key_by("m")
        .window(weir.session("500ms"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("w"))
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("join_all_then_windows")
def _(s, name):
    joined = s.left.key_by("k").join_all(
        f"{name}_in",
        s.right.key_by("k"),
        s.third.key_by("k"),
        window=weir.tumbling("3s"),
        how="left",
        parallelism=s.parallelism,
    )
    named = joined.select(f"{name}_s", m=pl.col("v") % 3, w=pl.col("v_3"))
    out = (
        named.key_by("m")
        .window(weir.tumbling("1s"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("w"))
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("as_of_then_windows")
def _(s, name):
    joined = s.left.key_by("k").join_as_of(f"{name}_in", s.right.key_by("k"), parallelism=s.parallelism)
    named = joined.select(f"{name}_s", m=pl.col("v") % 3, w=pl.col("v_right"))
    out = (
        named.key_by("m")
        .window(weir.tumbling("1s"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("w"))
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


for _kind in ("left", "full", "as_of"):

    @job(f"null_keys_{_kind}")
    def _(s, name, kind=_kind):
        keyed = s.left.key_by("t"), s.right.key_by("t")
        if kind == "as_of":
            joined = keyed[0].join_as_of(f"{name}_in", keyed[1], parallelism=s.parallelism)
        else:
            joined = keyed[0].join(
                f"{name}_in", keyed[1], how=kind, within=("-1s", "1s"), parallelism=s.parallelism
            )
        named = joined.select(f"{name}_s", m=pl.col("k") % 2, w=pl.col("v_right"))
        out = (
            named.key_by("m")
            .window(weir.tumbling("1s"))
            .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("w"))
        )
        return {name: out, f"{name}_missed": out.side_output("late")}


@job("join_self")
def _(s, name):
    return {
        name: s.left.key_by("k").join(
            name, s.left.key_by("k"), within=("1ms", "1s"), parallelism=s.parallelism
        )
    }


@job("odd_join")
def _(s, name):
    return {
        name: s.odd.key_by("k").join(
            name, s.odd.key_by("k"), within=("-10s", "10s"), how="full", parallelism=s.parallelism
        )
    }


@job("odd_as_of")
def _(s, name):
    return {name: s.odd.key_by("k").join_as_of(name, s.odd.key_by("k"), parallelism=s.parallelism)}


# --- keyed processes ---

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
        counts = self.n.get(keys.distinct).to_list()
        told = []
        for position in keys.inverse:
            counts[position] += 1
            told.append(counts[position])
        self.n.put(keys.distinct, counts)
        context.timers.register(np.clip(batch["_event_time_ms"].to_numpy() + 1_000, -(10**13), 10**14), keys)
        yield pa.record_batch(
            {
                "k": batch["k"],
                "n": pa.array(told, pa.int64()),
                "at_ms": batch["v"],
                "text": pa.array(["row"] * len(told)),
            }
        )

    def on_timers(self, batch, context):
        keys = context.keys(batch)
        counts = self.n.get(keys.distinct).to_list()
        told = []
        for position in keys.inverse:
            counts[position] += 100
            told.append(counts[position])
        self.n.put(keys.distinct, counts)
        yield pa.record_batch(
            {
                "k": batch["k"],
                "n": pa.array(told, pa.int64()),
                "at_ms": batch["_event_time_ms"],
                "text": pa.array(["timer"] * len(told)),
            }
        )


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


for _name, _made in {
    "sessions": Sessions,
    "chained": Chained,
    "batches": Batches,
    "expiring": Expiring,
    "histories": Histories,
}.items():
    for _of in ("left", "odd"):

        @job(f"process_{_name}" if _of == "left" else f"odd_{_name}")
        def _(s, name, made=_made, of=_of):
            return {name: getattr(s, of).key_by("k").process(name, made, OUT, parallelism=s.parallelism)}


@job("process_sides")
def _(s, name):
    out = s.left.key_by("k").process(
        name, Sides, OUT, side_outputs={"odd": {"k": int, "n": int}}, parallelism=s.parallelism
    )
    side = out.side_output("odd")
    counted = (
        side.key_by("k")
        .window(weir.tumbling("3s"))
        .aggregate(f"{name}_w", n=weir.count(), total=weir.sum("n"), parallelism=s.parallelism)
    )
    return {
        name: out,
        f"{name}_odd": side,
        f"{name}_counted": counted,
        f"{name}_counted_missed": counted.side_output("late"),
    }


@job("process_then_windows")
def _(s, name):
    told = s.left.key_by("k").process(f"{name}_in", Sessions, OUT, parallelism=s.parallelism)
    out = (
        told.key_by("k")
        .window(weir.session("1s"))
        .aggregate(name, n=weir.count(), total=weir.sum("n"), parallelism=s.parallelism)
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("process_of_join")
def _(s, name):
    joined = s.left.key_by("k").join(
        f"{name}_in", s.right.key_by("k"), how="full", parallelism=s.parallelism, **WITHIN
    )
    named = joined.select(
        f"{name}_s", "k", v=pl.col("v").fill_null(-1), t=pl.col("t"), w=pl.col("v_right").fill_null(-1)
    )

    class Timed(weir.KeyedProcess):
        # How many rows came before a timer is open, which of them are before its time is not.
        n = weir.MapState(pl.Int64, pl.Int64)

        def process(self, key, row, context):
            end_ms = context.event_time_ms // 3_000 * 3_000 + 3_000
            context.timers.register(end_ms)
            self.n[end_ms] = self.n.get(end_ms, 0) + 1
            return ()

        def on_timer(self, key, time_ms, context):
            yield {"k": key[0], "n": self.n.pop(time_ms), "at_ms": time_ms, "text": ""}

    return {name: named.key_by("k").process(name, Timed, OUT, parallelism=s.parallelism)}


class Limits(weir.BroadcastProcess):
    total = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("10s"))

    def on_broadcast(self, row, rules):
        rules[str(row["limit"])] = row["limit"]

    def process(self, row, rules, context):
        self.total.value += 1
        context.timers.register(context.event_time_ms + 1_000)
        if row["v"] % 10 in rules.values():
            yield {"k": context.key[0], "n": self.total.value, "at_ms": row["v"], "text": "row"}

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0], "n": self.total.value, "at_ms": time_ms, "text": f"timer {sorted(context.rules)}"}


@job("broadcast")
def _(s, name):
    out = s.left.key_by("k").connect_broadcast(
        name, s.rules, Limits, OUT, hold_until=lambda rules: len(rules) >= 3, parallelism=s.parallelism
    )
    wide = (
        out.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(f"{name}_w", n=weir.count(), parallelism=s.parallelism)
    )
    return {name: out, f"{name}_w": wide, f"{name}_missed": wide.side_output("late")}


# --- changelogs ---


@job("top", "folded")
def _(s, name):
    return {name: s.left.key_by("k").top(name, by="to", rows=3, parallelism=s.parallelism)}


@job("top_ranked", "folded")
def _(s, name):
    return {
        name: s.left.key_by("k").top(
            name, by="to", rows=2, rank="place", ascending=True, parallelism=s.parallelism
        )
    }


@job("deduplicate_first")
def _(s, name):
    return {name: s.left.key_by("k", "to").deduplicate(name, parallelism=s.parallelism)}


@job("deduplicate_within")
def _(s, name):
    return {name: s.left.key_by("k").deduplicate(name, within="2s", parallelism=s.parallelism)}


@job("odd_within")
def _(s, name):
    return {name: s.odd.key_by("k").deduplicate(name, within="2s", parallelism=s.parallelism)}


@job("deduplicate_last", "folded")
def _(s, name):
    return {name: s.left.key_by("k").deduplicate(name, keep="last", parallelism=s.parallelism)}


@job("deduplicate_by", "folded")
def _(s, name):
    return {name: s.left.key_by("k").deduplicate(name, keep="first", by="to", parallelism=s.parallelism)}


@job("running")
def _(s, name):
    return {
        name: s.left.key_by("k").aggregate(
            name, parallelism=s.parallelism, **{k: v for k, v in AGGREGATES.items()}
        )
    }


@job("running_changes", "folded")
def _(s, name):
    top = s.left.key_by("k").top(f"{name}_in", by="to", rows=3, parallelism=s.parallelism)
    return {
        name: top.key_by("k").aggregate(
            name, parallelism=s.parallelism, n=weir.count(), least=weir.min("v"), total=weir.sum("to")
        )
    }


@job("dearest_of_latest", "folded")
def _(s, name):
    latest = s.left.key_by("to").deduplicate(f"{name}_in", keep="last", parallelism=s.parallelism)
    return {name: latest.key_by("k").top(name, by="to", rows=2, parallelism=s.parallelism)}


@job("windows_of_changes")
def _(s, name):
    leads = s.left.key_by("k").top(f"{name}_in", by="to", rows=1, parallelism=s.parallelism)
    timed = leads.assign_event_time(
        f"{name}_t", "to", watermark=weir.bounded_out_of_orderness("1000h", idle_timeout="1000h")
    )
    return {
        name: timed.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(name, parallelism=s.parallelism, n=weir.count(), total=weir.sum("v"))
    }


@job("as_of_changes")
def _(s, name):
    # Changes as they come from a source, each with its time.
    kind = (
        pl.when(pl.col("v") % 4 == 3)
        .then(pl.lit("delete"))
        .when(pl.col("v") % 4 == 2)
        .then(pl.lit("update_before"))
    )
    table = s.right.with_columns(f"{name}_c", _change=kind.otherwise(pl.lit("insert")))
    return {name: s.left.key_by("k").join_as_of(name, table.key_by("k"), parallelism=s.parallelism)}


@job("join_changes", "folded")
def _(s, name):
    tables = [
        x.key_by("k", "to")
        .deduplicate(f"{name}_{i}", keep="last", parallelism=s.parallelism)
        .filter(f"{name}_f{i}", pl.col("v") % 4 == i)
        for i, x in enumerate((s.left, s.right))
    ]
    return {
        name: tables[0].key_by("k").join(name, tables[1].key_by("k"), how="full", parallelism=s.parallelism)
    }


# --- rows ---


async def answered(row):
    await asyncio.sleep(0.0001 * (row["v"] % 3))
    return {"k": row["k"], "v": row["v"] * 2, "t": row["t"]}


@job("map_async")
def _(s, name):
    out = s.left.map_async(
        f"{name}_in", answered, {"k": int, "v": int, "t": weir.Nullable(str)}, in_flight_max=4
    )
    wide = (
        out.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(name, n=weir.count(), total=weir.sum("v"), parallelism=s.parallelism)
    )
    return {f"{name}_in": out, name: wide, f"{name}_missed": wide.side_output("late")}


@job("map_async_unordered")
def _(s, name):
    out = s.left.map_async(
        f"{name}_in", answered, {"k": int, "v": int, "t": weir.Nullable(str)}, in_flight_max=4, ordered=False
    )
    wide = (
        out.key_by("k")
        .window(weir.session("1s"))
        .aggregate(name, n=weir.count(), total=weir.sum("v"), parallelism=s.parallelism)
    )
    return {name: wide, f"{name}_missed": wide.side_output("late")}


def several(row):
    for number in range(row["v"] % 3):
        yield {"k": row["k"] + number, "v": row["v"]}


@job("flat_map")
def _(s, name):
    out = (
        s.left.flat_map(f"{name}_in", several, {"k": int, "v": int})
        .key_by("k")
        .process(name, Sessions, OUT, parallelism=s.parallelism)
    )
    return {name: out}


def sliced(batch):
    return batch.filter(pl.Series(batch["v"].to_numpy() % 5 != 0).to_arrow())


@job("map_batches")
def _(s, name):
    out = (
        s.left.map_batches(f"{name}_in", sliced)
        .key_by("k")
        .window(weir.session("1500ms"))
        .aggregate(name, n=weir.count(), parallelism=s.parallelism)
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("union")
def _(s, name):
    both = s.left.union(f"{name}_in", s.right)
    out = (
        both.key_by("k")
        .window(weir.sliding("6s", "2s"))
        .aggregate(name, n=weir.count(), total=weir.sum("v"), parallelism=s.parallelism)
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("assigned")
def _(s, name):
    timed = s.left.assign_event_time(f"{name}_t", "to", watermark=BOUND)
    out = (
        timed.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(name, n=weir.count(), total=weir.sum("v"), parallelism=s.parallelism)
    )
    return {name: out, f"{name}_missed": out.side_output("late")}


@job("assigned_process")
def _(s, name):
    timed = s.left.assign_event_time(f"{name}_t", "to", watermark=BOUND)
    return {name: timed.key_by("k").process(name, Sessions, OUT, parallelism=s.parallelism)}


@job("exploded")
def _(s, name):
    rows = s.left.with_columns(f"{name}_w", parts=pl.concat_list("v", "to")).explode(f"{name}_e", "parts")
    return {
        name: rows.key_by("k")
        .window(weir.tumbling("5s"))
        .aggregate(name, n=weir.count(), total=weir.sum("parts"), parallelism=s.parallelism)
    }


def add_jobs(flow, sources, parallelism, names, sink):
    """Add the jobs of these names to a flow; ``sink(output)`` makes the end of each."""
    streams = Streams(**sources, parallelism=parallelism)
    compare = {}
    for name in names:
        for output, stream in JOBS[name].add(streams, name).items():
            kind = JOBS[name].compare
            compare[output] = kind
            stream.sink(f"{output}_out", sink(output))
    return compare
