"""Kafka to Kafka, exactly once: a running count by key."""

from __future__ import annotations

import weir

#: Stages that are scaled while the job runs: the source, and the count with the sink.
STAGES = (0, 1)


def build(bootstrap: str, source: str, target: str) -> weir.Dataflow:
    """Kafka -> HASH -> running count -> Kafka.

    Args:
        bootstrap: addresses of brokers.
        source: topic with records ``{"key": ..., "number": ...}``.
        target: topic of the same with the count of the key.
    """
    flow = weir.Dataflow("kafka_chaos")
    records = weir.Kafka(
        bootstrap=bootstrap, topics=source, schema={"key": str, "number": int}, discover_ms=2000
    )
    events = flow.source("events", records, parallelism=2)
    counted = events.key_by("key").count("count", parallelism=2)
    counted.sink("out", weir.KafkaSink(target, bootstrap=bootstrap, key="key"))
    return flow
