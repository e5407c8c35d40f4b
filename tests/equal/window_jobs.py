"""Windows of every kind."""

import numpy as np
import polars as pl

import weir
from tests.equal.job_form import AGGREGATES, FEW, Job, windowed

FIVE, TWENTY = weir.tumbling("5s"), weir.tumbling("20s")
SLIDING, SESSION = weir.sliding("6s", "2s"), weir.session("1500ms")
TEXTS = {"first": weir.first("t"), "most": weir.max("t"), "two": weir.largest("t", 2)}
MOST = {"n": weir.count(), "most": weir.max("v")}
EARLY = {"early": weir.every("3s", time="event")}
CHANGES = {"results": "changelog"}
DISCARDING = {"results": "discarding"}


def late(time):
    """The setting of a window that takes rows for so long."""
    return {"allowed_lateness": time}


#: Window, its settings, and what is aggregated.
KEYED = {
    "tumbling": (FIVE, {}, AGGREGATES),
    "tumbling_offset": (weir.tumbling("5s", offset="1s"), {}, FEW),
    "tumbling_texts": (FIVE, {}, TEXTS),
    "sliding": (SLIDING, {}, AGGREGATES),
    "sliding_few": (SLIDING, {}, FEW),
    "cumulative": (weir.cumulative("6s", "2s"), {}, FEW),
    "session": (SESSION, {}, AGGREGATES),
    "session_pre": (SESSION, {}, FEW),
    "lateness": (FIVE, late("4s"), FEW),
    "lateness_changes": (FIVE, late("4s") | CHANGES, FEW),
    "lateness_sliding": (SLIDING, late("4s"), FEW),
    "lateness_session": (SESSION, late("4s"), FEW),
    "lateness_session_changes": (SESSION, late("4s") | CHANGES, FEW),
    "early": (TWENTY, EARLY, FEW),
    "early_discarding": (TWENTY, EARLY | DISCARDING, FEW),
    "early_changes": (TWENTY, EARLY | CHANGES, FEW),
    "early_sliding": (weir.sliding("20s", "10s"), EARLY, FEW),
    "early_rows": (TWENTY, {"early": weir.every(rows=3)}, FEW),
    "early_where": (TWENTY, {"early": weir.every(where=pl.col("v") % 7 == 0)} | CHANGES, FEW),
    "early_late": (weir.tumbling("10s"), EARLY | late("5s"), FEW),
    "early_session": (SESSION, {"early": weir.every("1s", time="event")} | CHANGES, FEW),
    "early_session_all": (SESSION, {"early": weir.every("1s", time="event")} | late("4s"), FEW),
    "odd_tumbling": (FIVE, {}, AGGREGATES),
    "odd_sliding": (SLIDING, {}, FEW),
    "odd_session": (SESSION, {}, FEW),
    "odd_lateness": (FIVE, late("1d"), FEW),
}
#: Those of all rows, in one subtask.
OF_ALL = {
    "window_all": (FIVE, late("3s"), FEW),
    "window_all_late": (SLIDING, {}, MOST),
    "window_all_early": (TWENTY, EARLY | CHANGES, MOST),
}
#: How they are written down: some without looking at late rows, which are counted in any case.
NOT_TOLD = ("tumbling_offset", "sliding_few", "session_pre")


def keyed(name, window, settings, aggregates):
    """A job of ``KEYED``."""
    of = "odd" if name.startswith("odd") else "left"

    def last_step(s, name):
        return windowed(s, name, getattr(s, of), window, aggregates=aggregates, **settings)

    return Job(last_step, () if name in NOT_TOLD else ("late",))


def of_all(window, settings, aggregates):
    """A job of ``OF_ALL``."""
    return Job(lambda s, name: s.left.window_all(window, **settings).aggregate(name, **aggregates), ("late",))


def global_rows(s, name):
    return windowed(s, name, s.left, weir.global_window(), early=weir.every(rows=3), **DISCARDING)


def told(key, window, rows):
    """The rows of a window, in their order."""
    span_ms = window.end_ms - window.start_ms
    return pl.DataFrame({"n": [rows.height], "vs": [str(rows["v"].to_list())], "span": [span_ms]})


def processed(window, **settings):
    """A job whose function gets all rows of a window."""

    def last_step(s, name):
        opened = s.left.key_by("k").window(window, **settings)
        return opened.process(name, told, {"n": int, "vs": str, "span": int}, parallelism=s.parallelism)

    return Job(last_step, ("late",))


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


def aggregated_by(window):
    """A job with an aggregator of its author's."""

    def last_step(s, name):
        opened = s.left.key_by("k").window(window, allowed_lateness="2s")
        return opened.aggregate_with(name, Texts, {"text": str}, parallelism=s.parallelism)

    return Job(last_step)


def window_top(s, name):
    counted = windowed(s, f"{name}_in", s.left, FIVE, aggregates={"n": weir.count()})
    return counted.window_top(name, by="n", rows=2, ties=True)


def count_window(s, name):
    aggregates = {"n": weir.count(), "most": weir.max("t"), "last": weir.last("v")}
    return s.left.key_by("k").count_window(4, 2).aggregate(name, parallelism=s.parallelism, **aggregates)


def windows_of_windows(s, name):
    counted = windowed(s, f"{name}_in", s.left, weir.tumbling("2s"), aggregates={"n": weir.count()})
    aggregates = {"m": weir.count(), "total": weir.sum("k")}
    return windowed(s, name, counted, weir.tumbling("10s"), "n", aggregates)


class Baskets(weir.WindowTrigger):
    """Closes 3 s of event time after the first row, or with a row that says so."""

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


def triggered(s, name):
    return s.left.key_by("k").triggered_window(Baskets).aggregate(name, parallelism=s.parallelism, **FEW)


JOBS = {
    **{name: keyed(name, *form) for name, form in KEYED.items()},
    **{name: of_all(*form) for name, form in OF_ALL.items()},
    "global_rows": Job(global_rows),
    "window_process": processed(FIVE, allowed_lateness="3s"),
    "session_process": processed(SESSION),
    "aggregator_tumbling": aggregated_by(FIVE),
    "aggregator_sliding": aggregated_by(SLIDING),
    "aggregator_session": aggregated_by(SESSION),
    "window_top": Job(window_top),
    "count_window": Job(count_window),
    "windows_of_windows": Job(windows_of_windows, ("late",)),
    "triggered": Job(triggered),
}
