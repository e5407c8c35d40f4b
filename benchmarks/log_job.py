"""Records of a topic of the replicated log, counted by key, to nowhere: as ``kafka_job`` over Kafka."""

from __future__ import annotations

import weir


def build(bootstrap: str, topic: str, parallelism: int = 2, *, max_parallelism: int) -> weir.Dataflow:
    """Log -> HASH -> running count -> blackhole."""
    flow = weir.Dataflow("log", max_parallelism=max_parallelism)
    records = weir.LogSource(
        bootstrap=bootstrap, topic=topic, schema={"id": int, "server_name": str}, bounded=True
    )
    events = flow.source("events", records, parallelism=parallelism)
    events.key_by("server_name").count("count", parallelism=parallelism).sink("out", weir.Blackhole())
    return flow
