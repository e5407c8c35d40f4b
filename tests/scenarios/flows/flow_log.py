"""Records of a topic of the replicated log, counted by key, to another topic."""

import weir


def build(bootstrap: str, source: str, target: str, parallelism: int = 2, release: str = "") -> weir.Dataflow:
    flow = weir.Dataflow("log")
    words = flow.source(
        "words",
        weir.LogSource(
            bootstrap=bootstrap,
            topic=source,
            schema={"word": str, "number": int, "at": int, "partition": int},
            parts={"partition": "partition"},
            event_time="at",
            rate=4_000,
        ),
        parallelism=2,
    )
    counted = words.key_by("word").count("count", parallelism=parallelism)
    counted.sink("out", weir.LogSink(target, bootstrap=bootstrap, key="word", id="number"))
    return flow
