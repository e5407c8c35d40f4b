"""Count words of one topic of the replicated log, and write the counts to another one; each record once.

::

    weir log start --brokers 3 --dir data/log                   # in a terminal of its own
    weir log create lines --partitions 3
    weir log create counts --partitions 3
    weir run weir.examples.log_words

Records of ``lines`` are JSON objects such as ``{"word": "weir", "at": 1700000000000}``; :class:`weir.log.Producer`
writes some. Anything that reads the log sees the counts, when their checkpoint is complete.
"""

import weir


def build(
    bootstrap: str = "localhost:7008",
    source: str = "lines",
    target: str = "counts",
    parallelism: int = 2,
    bounded: bool = False,
) -> weir.Dataflow:
    """The job.

    Args:
        bootstrap: addresses of brokers.
        source: topic that is read.
        target: topic that is written.
        parallelism: of the source and of the count.
        bounded: end with what is there at the start.
    """
    flow = weir.Dataflow("log_words")
    lines = flow.source(
        "lines",
        weir.LogSource(
            bootstrap=bootstrap,
            topic=source,
            schema={"word": str, "at": int},
            event_time="at",
            bounded=bounded,
        ),
        parallelism=parallelism,
    )
    counted = lines.key_by("word").count("count", parallelism=parallelism)
    counted.sink("out", weir.LogSink(target, bootstrap=bootstrap, key="word"))
    return flow
