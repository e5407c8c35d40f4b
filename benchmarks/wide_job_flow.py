"""The job of the wide_job benchmark: 9 stages, 21 subtasks, 2 sources, 5 HASH exchanges.

Rows are few for so many channels: what a batch, a hand-over and an idle subtask cost counts here, not what a row costs.
"""

from __future__ import annotations

import functools

import polars as pl

import weir
from benchmarks.record_sink import RecordSink

#: Subtasks of the whole job: it does not fit into the default quota of two task managers.
SUBTASKS = 21
#: Place of the last stage in ``/status``.
SINK_STAGE = 8
_GROUPS = 7


def build(left: str, right: str, output: str, rate: float) -> weir.Dataflow:
    """The dataflow.

    Args:
        left: JSON lines with ``id``, a number that no other event has, and ``server_name``.
        right: the same for the other source.
        output: directory of the records: ``id``, and the running count of the event's server.
        rate: events per second of each source.
    """
    flow = weir.Dataflow("wide")
    counted = [
        flow.source(
            name,
            weir.JsonLines(path, schema={"id": pl.Int64, "server_name": pl.String}, rate=rate),
            parallelism=2,
        )
        .key_by("server_name")
        .count(f"count_{name}", output="seen", parallelism=3)
        for name, path in (("left", left), ("right", right))
    ]
    both = counted[0].rebalance().union("both", counted[1].rebalance(), parallelism=2)
    spread = both.key_by("id").with_columns("group", group=pl.col("id") % _GROUPS, parallelism=3)
    groups = spread.key_by("group").aggregate("groups", of_group=weir.count(), parallelism=3)
    servers = groups.key_by("server_name").count("servers", output="n", parallelism=2)
    sink = weir.UserSink(functools.partial(RecordSink, output))
    servers.rebalance().sink("record", sink, parallelism=1)
    return flow
