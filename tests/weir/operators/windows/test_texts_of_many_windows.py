"""First, last, lowest and highest texts of many windows at once are those of numbers that sort alike."""

import random

import pytest

import weir
from benchmarks.time_law_jobs import Pieces
from tests.effort import cases

SCHEMA = {"k": int, "at": int, "v": weir.Nullable(int), "t": weir.Nullable(str)}
WINDOWS = {
    "tumbling": weir.tumbling("1s"),
    "sliding": weir.sliding("2s", "1s"),
    "session": weir.session("700ms"),
}


@pytest.mark.parametrize("seed", range(cases(1)))
@pytest.mark.parametrize("kind", WINDOWS)
def test_texts_are_as_numbers(kind, seed):
    rng = random.Random(seed)
    rows = []
    for number in range(1_500):
        value = None if rng.random() < 0.1 else rng.randrange(1_000)
        text = None if value is None else f"{value:04}"
        rows.append({"k": rng.randrange(40), "at": number * 20 + rng.randrange(1_500), "v": value, "t": text})

    def told(column, cut):
        flow = weir.Dataflow("texts")
        source = weir.UserSource(lambda: Pieces(rows, cut, seed), schema=SCHEMA)
        events = flow.source("events", source, event_time="at", watermark=weir.bounded_out_of_orderness("2s"))
        names = ("first", "last", "min", "max")
        aggregates = {name: getattr(weir, name)(column) for name in names}
        out = events.key_by("k").window(WINDOWS[kind]).aggregate("out", **aggregates)
        found = weir.run(out)["out"].to_dicts()
        order = sorted(found, key=lambda row: (row["k"], row["window_start"]))
        return [
            (row["k"], row["window_start"], *(None if row[n] is None else int(row[n]) for n in names))
            for row in order
        ]

    # Of rows of one time either may be the first; here times of a key differ or both columns agree.
    assert told("t", None) == told("v", None) == told("t", 10_000)
