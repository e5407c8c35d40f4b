"""Records of a topic, counted by key, to another topic."""

import weir


def build(bootstrap: str, source: str, target: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("kafka")
    words = flow.source(
        "words",
        weir.Kafka(
            bootstrap=bootstrap,
            topics=source,
            schema={"word": str, "number": int, "at": int, "partition": int},
            parts={"partition": "partition"},
            event_time="at",
            rate=1_000,
            properties={"group.id": "counting"},
        ),
        parallelism=2,
    )
    counted = words.key_by("word").count("count", parallelism=2)
    counted.sink(
        "out", weir.KafkaSink(target, bootstrap=bootstrap, key="word", key_in_value=True), parallelism=2
    )
    return flow
