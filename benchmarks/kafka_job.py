"""Records of a topic, counted by key, to nowhere."""

from __future__ import annotations

import weir


def build(bootstrap: str, topic: str, parallelism: int = 2, *, max_parallelism: int) -> weir.Dataflow:
    """Kafka -> HASH -> running count -> blackhole."""
    flow = weir.Dataflow("kafka", max_parallelism=max_parallelism)
    records = weir.Kafka(
        bootstrap=bootstrap, topics=topic, schema={"id": int, "server_name": str}, bounded=True
    )
    events = flow.source("events", records, parallelism=parallelism)
    events.key_by("server_name").count("count", parallelism=parallelism).sink("out", weir.Blackhole())
    return flow
