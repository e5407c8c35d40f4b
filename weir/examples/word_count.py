"""How often each word occurs: the words of a text, counted by key.

weir run weir.examples.word_count
weir run weir.examples.word_count --param input=lines.jsonl --param parallelism=2
weir run weir.examples.word_count --param bootstrap=localhost:9092      # from Kafka to Kafka, each record once
curl localhost:9008/state/count/words/belgium                           # while it runs: how often, so far

docs/kafka.md says how the topic is filled with a text; countries.txt beside this file is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weir


def build(
    input: str = "",
    parallelism: int = 1,
    bootstrap: str = "",
    topic: str = "streams-plaintext-input",
    target: str = "streams-wordcount-output",
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``line``, a text; "": a text that comes with Weir.
        parallelism: subtasks that count.
        bootstrap: addresses of Kafka's brokers; "": the lines are in ``input``, and counts are printed.
        topic: whose records are lines of text.
        target: topic of the counts; the word is the key.
    """
    # The path of the installed text is found here: as a default it would be another one in every installation.
    path = input or str(Path(__file__).with_name("hare_and_tortoise.jsonl"))
    flow = weir.Dataflow("word_count")
    schema = {"line": str}
    texts = (
        weir.Kafka(bootstrap=bootstrap, topics=topic, schema=schema, value="raw")
        if bootstrap
        else weir.JsonLines(path, schema=schema)
    )
    words = flow.source("lines", texts).flat_map("words", split, {"word": str})
    # Asked as state "words" of step "count": a running count is known by its column.
    counts = words.key_by("word").count("count", "words", parallelism=parallelism)
    counts = counts.rename("named", {"words": "count"})
    counts.sink("out", weir.KafkaSink(target, bootstrap=bootstrap, key="word") if bootstrap else weir.Print())
    return flow


def split(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The words of a line, in lower case."""
    for word in row["line"].lower().split():
        yield {"word": word.strip(".,;:!?\"'")}
