"""A function may return, or yield, one dict again and again with other values: each row is what the dict was then."""

import polars as pl
import pytest

import weir
from weir import testing

ROWS = [{"k": "ab"[n % 2], "n": n} for n in range(6)]
SCHEMA = {"k": str, "n": int}


def grouped(rows):
    return sorted((row["k"], row["n"]) for row in rows)


EXPECTED = sorted((row["k"], row["n"] * 10 + more) for row in ROWS for more in (0, 1))
ONE_EACH = sorted((row["k"], row["n"] * 10) for row in ROWS)


class Yields:
    """Changes its only dict."""

    def __init__(self):
        self.row = {}

    def __call__(self, row):
        for more in (0, 1):
            self.row.update(k=row["k"], n=row["n"] * 10 + more)
            yield self.row


class Returns(Yields):
    def __call__(self, row):
        self.row.update(k=row["k"], n=row["n"] * 10)
        return self.row


class Process(weir.KeyedProcess):
    def open(self, context):
        self.made = Yields()

    def process(self, key, row, context):
        for made in self.made(row):
            yield made
            yield weir.side("seen", made)


class OnTimer(weir.KeyedProcess):
    numbers = weir.ListState(pl.Int64)

    def open(self, context):
        self.made = Yields()

    def process(self, key, row, context):
        self.numbers.append(row["n"])
        context.timers.register(100)

    def on_timer(self, key, time_ms, context):
        for number in self.numbers:
            yield from self.made({"k": key[0], "n": number})
        self.numbers.clear()


def flat_map(stream):
    return stream.flat_map("step", Yields(), schema=SCHEMA), EXPECTED


def mapped(stream):
    return stream.map("step", Returns(), schema=SCHEMA), ONE_EACH


def process(stream):
    return stream.key_by("k").process("step", Process, schema=SCHEMA, side_outputs={"seen": SCHEMA}), EXPECTED


def side_of_process(stream):
    return process(stream)[0].side_output("seen"), EXPECTED


def on_timer(stream):
    return stream.key_by("k").process("step", OnTimer, schema=SCHEMA), EXPECTED


@pytest.mark.parametrize("build", [flat_map, mapped, process, side_of_process, on_timer])
def test_each_row_is_what_the_dict_was_when_it_came(build):
    flow = weir.Dataflow("same")
    stream, expected = build(flow.source("rows", weir.JsonLines("none", schema=SCHEMA)))
    stream.sink("out", weir.Collect())
    assert grouped(testing.run(flow, {"rows": ROWS})["out"]) == expected
