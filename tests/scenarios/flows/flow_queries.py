"""Steps with a state of each kind, for questions; they hold when their input is read."""

import polars as pl
from flow_states import COLUMNS, EveryState

import weir
from experiments.held_source import held


class Marks(weir.BroadcastProcess):
    """Each subtask knows of all marks; nothing leaves."""

    def on_broadcast(self, row, rules):
        rules[str(row["id"])] = {"server": row["server"]}
        rules["latest"] = max(row["id"], rules.get("latest", 0))

    def process(self, row, rules):
        return ()


def number_of_rows(key, window, rows):
    return pl.DataFrame({"rows": [len(rows)]})


def build(input: str, release: str, parallelism: int = 2, rate: float = 1_500) -> weir.Dataflow:
    flow = weir.Dataflow("queries", max_parallelism=16)
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate, event_time="id")
    events = flow.source("events", held(source, release))
    by_server = events.key_by("server")
    by_server.process("states", EveryState, COLUMNS, parallelism=parallelism).sink(
        "states_out", weir.Blackhole()
    )
    by_server.count("seen", parallelism=parallelism).sink("seen_out", weir.Blackhole())
    by_server.window(weir.sliding("1s", "250ms")).aggregate(
        "hops",
        rides=weir.count(),
        total=weir.sum("id"),
        kinds=weir.count_distinct("id"),
        middle=weir.quantile("id", 0.5),
    ).sink("hops_out", weir.Blackhole())
    sessions = by_server.window(weir.session("500ms"))
    sessions.aggregate(
        "sessions", parallelism=parallelism, rides=weir.count(), kinds=weir.count_distinct("id")
    ).sink("sessions_out", weir.Blackhole())
    by_server.window(weir.tumbling("500ms")).process("kept", number_of_rows, {"rows": int}).sink(
        "kept_out", weir.Blackhole()
    )
    marks = events.filter("marks", pl.col("id") % 10 == 0)
    by_server.join("paired", marks.key_by("server"), within=("-500ms", "0ms")).sink(
        "paired_out", weir.Blackhole()
    )
    rules = events.filter("rules", pl.col("id") % 1_000 == 0)
    by_server.connect_broadcast("ruled", rules, Marks, {"id": int}, parallelism=parallelism).sink(
        "ruled_out", weir.Blackhole()
    )
    by_server.top("newest", by="id", rows=3).sink("newest_out", weir.Blackhole())
    return flow
