"""A left join of two topics that soon count as idle."""

import weir


def build(bootstrap: str, output: str) -> weir.Dataflow:
    flow = weir.Dataflow("kafka_join")
    left, right = (
        flow.source(
            name,
            weir.Kafka(
                bootstrap=bootstrap, topics=f"join-{name}", schema={"id": int, "at": int}, event_time="at"
            ),
            watermark=weir.bounded_out_of_orderness("0s", idle_timeout="1500ms"),
            parallelism=2,
        ).key_by("id")
        for name in ("left", "right")
    )
    joined = left.join("joined", right, within=("-10ms", "10ms"), how="left", parallelism=1)
    joined.sink("out", weir.JsonLinesSink(output), parallelism=1)
    return flow
