"""Counts of words that are looked at by the clock: a prefix, a range, their number and all of them, each in its rhythm.

weir run weir.examples.punctuators --store cassandra                                       # takes 22 s
weir run weir.examples.punctuators --store cassandra --param bootstrap=localhost:9092      # until it is cancelled

In systems with one store per partition such a look is a "punctuator" of the partition's processor. Here the partition
is the key, and its words are one map, which has them in order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import weir
from weir.examples.word_count import split

#: How often each look is taken, s.
RHYTHMS_S = {"prefix bel": 5, "netherlands to romania": 12, "count": 17, "all": 21}


class LookedAt(weir.KeyedProcess):
    """Counts the words of a partition, and returns what each look finds."""

    words = weir.MapState(str, int)
    #: When each look is taken next, ms.
    due = weir.MapState(str, int)

    def process(self, key: tuple[Any, ...], row: Any, context: weir.KeyContext) -> None:
        """Count a word; the first one of the partition starts the looks."""
        if not self.due:
            for look in RHYTHMS_S:
                self._plan(look, context.timers.now_ms, context)
        self.words[row["word"]] = self.words.get(row["word"], 0) + 1

    def _plan(self, look: str, now_ms: int, context: weir.KeyContext) -> None:
        self.due[look] = now_ms + RHYTHMS_S[look] * 1000
        context.timers.register_processing(self.due[look])

    def on_timer(
        self, key: tuple[Any, ...], time_ms: int, context: weir.KeyContext
    ) -> Iterator[Mapping[str, Any]]:
        """Take the looks of this time; some may coincide."""
        for look in [look for look, due_ms in self.due.items() if due_ms == time_ms]:
            self._plan(look, time_ms, context)
            for word, count in self._found(look):
                yield {"part": key[0], "look": look, "word": word, "count": count}

    def _found(self, look: str) -> Iterator[tuple[str, int]]:
        if look == "count":
            yield "", len(self.words)
        elif look == "all":
            yield from self.words.items()
        elif look == "prefix bel":
            yield from self.words.prefix_scan("bel")
        else:
            yield from self.words.range("netherlands", "romania")


def build(
    input: str = "",
    rate: float = 0.4,
    parts: int = 1,
    parallelism: int = 1,
    bootstrap: str = "",
    topic: str = "streams-plaintext-input",
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``line``, a text; "": a text that comes with Weir.
        rate: lines per second of ``input``; its words are looked at while it is read.
        parts: partitions of the words.
        parallelism: subtasks that count.
        bootstrap: addresses of Kafka's brokers; "": the lines are in ``input``.
        topic: whose records are lines of text.
    """
    path = input or str(Path(__file__).with_name("hare_and_tortoise.jsonl"))
    schema = {"line": str}
    flow = weir.Dataflow("punctuators")
    lines = (
        weir.Kafka(bootstrap=bootstrap, topics=topic, schema=schema, value="raw")
        if bootstrap
        else weir.JsonLines(path, schema=schema, rate=rate)
    )

    def split_into_parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for found in split(row):
            yield {"part": zlib.crc32(found["word"].encode()) % parts, **found}

    words = flow.source("lines", lines).flat_map("words", split_into_parts, {"part": int, "word": str})
    columns = {"part": int, "look": str, "word": str, "count": int}
    looks = words.key_by("part").process("counts", LookedAt, columns, parallelism=parallelism)
    looks.sink("out", weir.Print())
    return flow
