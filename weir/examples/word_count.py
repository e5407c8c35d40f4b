"""How often each word occurs: the words of a text, counted by key.

weir run weir.examples.word_count
weir run weir.examples.word_count --param input=lines.jsonl --param parallelism=2
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weir


def build(input: str = "", parallelism: int = 1) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``line``, a text; "": a text that comes with Weir.
        parallelism: subtasks that count.
    """
    # The path of the installed text is found here: as a default it would be another one in every installation.
    path = input or str(Path(__file__).with_name("hare_and_tortoise.jsonl"))
    flow = weir.Dataflow("word_count")
    lines = flow.source("lines", weir.JsonLines(path, schema={"line": str}))
    words = lines.flat_map("words", split, {"word": str})
    words.key_by("word").count("count", parallelism=parallelism).sink("out", weir.Print())
    return flow


def split(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The words of a line, in lower case."""
    for word in row["line"].lower().split():
        yield {"word": word.strip(".,;:!?\"'")}
