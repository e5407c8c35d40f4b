"""Columns may have any names, also those that are of use within a step."""

import polars as pl
import pytest

import weir
from weir import testing

ROWS = [("a", 1, 2), ("b", 2, 3), ("a", 3, 5)]
NAMES = [
    "_row",
    "_window",
    "_window_key",
    "_window_number",
    "row",
    "key",
    "window",
    "literal",
    "a b",
    "ä.b[0]",
]
WINDOW = weir.tumbling("10ms")


def results(name, make):
    flow = weir.Dataflow("job")
    schema = {name: str, "at": int, "x": int}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema), event_time="at")
    make(rows).sink("out", weir.Collect())
    given = [dict(zip(schema, row, strict=True)) for row in ROWS]
    return testing.run(flow, {"rows": given})["out"].to_dicts()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_top_of_windows_takes_columns_of_any_name(name, ties):
    found = results(
        name,
        lambda rows: (
            rows.key_by(name)
            .window(WINDOW)
            .aggregate("w", n=weir.count())
            .window_top("top", by="n", ties=ties)
        ),
    )
    assert [row[name] for row in found] == ["a"]


@pytest.mark.parametrize("name", NAMES)
def test_windows_of_texts_and_of_rows_take_columns_of_any_name(name):
    def named(rows):
        return rows.with_columns("named", text=pl.col(name)).select("chosen", "text", "at", user=pl.col(name))

    made = {name: weir.max("text")}
    keyed = results(name, lambda rows: named(rows).key_by("user").window(WINDOW).aggregate("w", **made))
    assert sorted(row[name] for row in keyed) == ["a", "b"]
    every = results(name, lambda rows: named(rows).window_all(WINDOW).aggregate("w", **made))
    assert [row[name] for row in every] == ["b"]
    counted = results(
        name, lambda rows: rows.key_by("at").count_window(1).aggregate("w", **{name: weir.max(name)})
    )
    assert sorted(row[name] for row in counted) == ["a", "a", "b"]
