"""A count and an operator with a state of each kind, for questions; it holds when its input is read."""

from flow_states import COLUMNS, EveryState

import weir
from experiments.held_source import held


def build(input: str, release: str, parallelism: int = 2, rate: float = 1_500) -> weir.Dataflow:
    flow = weir.Dataflow("queries", max_parallelism=16)
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate, event_time="id")
    by_server = flow.source("events", held(source, release)).key_by("server")
    by_server.process("states", EveryState, COLUMNS, parallelism=parallelism).sink(
        "states_out", weir.Blackhole()
    )
    by_server.count("seen", parallelism=parallelism).sink("seen_out", weir.Blackhole())
    by_server.window(weir.sliding("1s", "250ms")).aggregate(
        "hops", rides=weir.count(), total=weir.sum("id")
    ).sink("hops_out", weir.Blackhole())
    sessions = by_server.window(weir.session("500ms"))
    sessions.aggregate("sessions", parallelism=parallelism, rides=weir.count()).sink(
        "sessions_out", weir.Blackhole()
    )
    by_server.top("newest", by="id", rows=3).sink("newest_out", weir.Blackhole())
    return flow
