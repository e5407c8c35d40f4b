"""Numbers -> a function that is right, or wrong for every row -> JSON lines."""

from typing import Literal

import weir


def right(row):
    return row


def raises(row):
    return {"n": 1 // (row["n"] - row["n"])}


def returns_nothing(row):
    row["n"] += 1


def build(
    input: str, output: str, function: Literal["right", "raises", "returns_nothing"] = "right"
) -> weir.Dataflow:
    flow = weir.Dataflow("rejects")
    numbers = flow.source("numbers", weir.JsonLines(input, schema={"n": int}))
    numbers.map("change", globals()[function]).sink("out", weir.JsonLinesSink(output))
    return flow
