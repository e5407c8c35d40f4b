"""``top``: the first rows of each key in an order, as a changelog that folds to what plain Python says."""

import datetime as dt
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"user": str, "n": int, "price": weir.Nullable(pl.Float64), "note": weir.Nullable(str)}


def job(parallelism=2, **options):
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    options = {"by": "price", "rows": 2, **options}
    top = events.key_by("user").top("top", parallelism=parallelism, **options)
    assert top.is_changelog
    top.sink("out", weir.Collect())
    return flow


def row(user, n, price):
    return {"user": user, "n": n, "price": price, "note": None if n % 3 else f"note {n}" * (n % 7)}


def tops(rows, count, *, ascending=False, rank=None):
    """Plain Python: the first rows of each key."""
    found = []
    for user in sorted({item["user"] for item in rows}):
        mine = [item for item in rows if item["user"] == user]

        def order(item):
            price = item["price"]
            if price is None or math.isnan(price):
                return (1, 0.0)
            return (0, price if ascending else -price)

        chosen = sorted(mine, key=order)[:count]
        found += [item | ({rank: place} if rank else {}) for place, item in enumerate(chosen, 1)]
    return in_order(found)


def in_order(rows):
    return sorted(
        ({name: str(value) for name, value in item.items()} for item in rows), key=lambda i: int(i["n"])
    )


PRICES = st.one_of(
    st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
)
ROWS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy"]), PRICES), max_size=40).map(
    lambda made: [row(user, n, price) for n, (user, price) in enumerate(made)]
)
CUTS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["", "checkpoint", "restart", "savepoint"])), max_size=6
)
OPTIONS = st.fixed_dictionaries({}, optional={"ascending": st.booleans(), "rank": st.just("place")})


@settings(max_examples=cases(12))
@given(ROWS, CUTS, st.integers(1, 4), OPTIONS)
def test_the_changelog_folds_to_what_plain_python_says(rows, cuts, count, options):
    left, made = list(rows), []
    parallelism = 2
    running = testing.start(job(2, rows=count, **options), {"in": []})
    for size, then in [*cuts, (len(rows), "")]:
        if left[:size]:
            running.push("in", left[:size])
        left = left[size:]
        if then == "checkpoint":
            running.checkpoint()
        elif then == "restart":
            running.restart()
        elif then == "savepoint":
            savepoint = running.savepoint()
            made += running.rows("top").to_dicts()
            running.stop()
            parallelism = 5 - parallelism
            running = testing.start(
                job(parallelism, rows=count, **options), {"in": []}, from_savepoint=savepoint
            )
    made += running.finish()["top"].to_dicts()
    running.stop()
    if rows:
        assert in_order(testing.folded(pl.DataFrame(made, infer_schema_length=None)).to_dicts()) == tops(
            rows, count, **options
        )


def changes(rows, *names):
    return [(item["_change"], *(item[name] for name in names)) for item in rows]


def test_only_what_enters_is_told():
    with testing.start(job(1), {"in": [row("a", 1, 5.0), row("a", 2, 3.0), row("a", 3, 4.0)]}) as running:
        # The one that entered and was driven out by the same batch is not told.
        assert changes(running.rows("top"), "n") == [("insert", 1), ("insert", 3)]
        running.push("in", [row("a", 4, 4.0), row("b", 5, 0.0)])
        assert changes(running.rows("top"), "n")[2:] == [("insert", 5)]
        running.push("in", [row("a", 6, 9.0)])
        assert changes(running.rows("top"), "n")[3:] == [("delete", 3), ("insert", 6)]


def test_a_row_that_enters_moves_the_places_after_it():
    with testing.start(job(1, rank="place"), {"in": [row("a", 1, 5.0), row("a", 2, 3.0)]}) as running:
        running.push("in", [row("a", 3, 4.0)])
        running.push("in", [row("a", 4, 6.0)])
        assert changes(running.rows("top"), "n", "place") == [
            ("insert", 1, 1),
            ("insert", 2, 2),
            ("update_before", 2, 2),
            ("update_after", 3, 2),
            ("update_before", 1, 1),
            ("update_after", 4, 1),
            ("update_before", 3, 2),
            ("update_after", 1, 2),
        ]


def test_one_row_is_updated():
    with testing.start(job(1, rows=1, ascending=True), {"in": [row("a", 1, 5.0)]}) as running:
        running.push("in", [row("a", 2, 3.0), row("a", 3, 3.0)])
        assert changes(running.rows("top"), "n") == [("insert", 1), ("update_before", 1), ("update_after", 2)]


BRUSSELS = ZoneInfo("Europe/Brussels")
EVERY = {
    "key": int,
    "small": pl.Int8,
    "wide": pl.UInt64,
    "half": pl.Float32,
    "flag": bool,
    "raw": bytes,
    "day": pl.Date,
    "at": pl.Datetime("us"),
    "span": pl.Duration("ms"),
    "text": weir.Nullable(str),
    "sum": weir.Nullable(pl.Decimal(20, 2)),
    "parts": weir.Nullable(pl.List(pl.Struct({"n": pl.Int64, "of": pl.List(pl.String)}))),
    "place": pl.Struct({"zone": pl.Datetime("us", "Europe/Brussels"), "box": pl.Array(pl.Float32, 2)}),
}


def every(n):
    return {
        "key": 1,
        "small": n - 128,
        "wide": 2**64 - 1 - n,
        "half": n / 4,
        "flag": n % 2 == 0,
        "raw": bytes([n, 0, 255]),
        "day": dt.date(1960 + n, 1, 2),
        "at": dt.datetime(1950 + n, 1, 1, 2, 3, 4, 5),
        "span": dt.timedelta(milliseconds=n - 5),
        "text": None if n % 2 else "é" * n,
        "sum": None if n % 3 else Decimal(n) / 4,
        "parts": None if n % 4 == 3 else [{"n": part, "of": ["é"] * part} for part in range(n % 4)],
        "place": {"zone": dt.datetime(2026, 1, 1 + n, tzinfo=BRUSSELS), "box": [n, None]},
    }


@pytest.mark.parametrize("by", ["small", "wide", "half", "day", "at", "span"])
def test_rows_of_every_type_come_back_as_they_were(by):
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.ArrowIpc("none", schema=EVERY))
    events.key_by("key").top("top", by=by, rows=3).sink("out", weir.Collect())
    rows = [every(n) for n in (4, 1, 9, 3, 8, 2)]
    with testing.start(flow, {"in": rows[:3]}) as running:
        running.checkpoint()
        running.restart()
        running.push("in", rows[3:])
        table = testing.folded(running.rows("top").to_polars())
    wanted = sorted(rows, key=lambda item: item[by], reverse=True)[:3]
    assert sorted(table.to_dicts(), key=lambda item: item["small"]) == sorted(
        wanted, key=lambda item: item["small"]
    )


def test_many_keys_are_read_bit_by_bit(monkeypatch):
    monkeypatch.setattr("weir.operators.keyed.top._ROWS_AT_A_TIME", 7)
    rows = [row(f"u{n % 11}", n, float(n * 7 % 13)) for n in range(80)]
    with testing.start(job(2), {"in": rows[:40]}) as running:
        running.push("in", rows[40:])
        assert in_order(testing.folded(running.rows("top").to_polars()).to_dicts()) == tops(rows, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "prize"}, "step 'top': there is no column 'prize' to go by; did you mean 'price'"),
        (
            {"by": ["price", "prize"]},
            "step 'top': there is no column 'prize' to go by; did you mean 'price'",
        ),
        ({"by": []}, "step 'top': by has no column"),
        ({"by": ["price", "price"]}, "step 'top': a column is in by twice"),
        (
            {"by": ["price", "n"], "ascending": [True]},
            "step 'top': ascending is \\[True\\]; it is True or False, or a list of 2 of these",
        ),
        ({"rows": 0}, "step 'top': rows is 0; it must be a whole number from 1 to 10,000"),
        ({"rows": True}, "step 'top': rows is True"),
        ({"rank": "n"}, "step 'top': output column 'n' exists already"),
        ({"rank": "_key_hash"}, "step 'top': rank is '_key_hash'; it must be the name of a new column"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(options, message):
    with pytest.raises(weir.GraphError, match=message):
        job(**options)


def changelog():
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    return events.key_by("user").top("top", by="price", rows=2)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda s: s.deduplicate("d"),
            r"step 'd': its input is a changelog .*: deduplicate\(..., keep='first', by=<the column>\)",
        ),
        (
            lambda s: s.deduplicate("d", within="1s", by="n"),
            r"step 'd': within takes no changelog .*: each row that is passed on decides which later ones are",
        ),
        (lambda s: s.select("s", "user"), "step 's': without column '_change' nobody could tell"),
        (
            lambda s: s.with_columns("w", pl.lit("insert").alias("_change")),
            "step 'w': without column '_change'",
        ),
    ],
)
def test_steps_that_cannot_take_a_changelog_refuse(step, message):
    with pytest.raises(weir.GraphError, match=message):
        step(changelog())


def test_steps_that_hand_changes_on_take_them():
    stream = changelog().filter("f", pl.col("price") > 0).with_columns("w", more=pl.col("n") + 1)
    assert stream.is_changelog
    both = stream.select("s", "user", "more", "_change").union(
        "u", stream.select("s2", "user", "more", "_change")
    )
    assert both.is_changelog
    assert not both.map("m", lambda found: {"user": found["user"]}, {"user": str}).is_changelog


def test_a_savepoint_of_other_rows_is_refused():
    with testing.start(job(), {"in": [row("a", 1, 2.0)]}) as running:
        savepoint = running.savepoint()
    with pytest.raises(weir.WeirError, match=r"step 'top': the checkpoint's rows are .* the job now needs"):
        testing.start(job(rows=3), {"in": []}, from_savepoint=savepoint)


def test_folding_says_what_cannot_be():
    with pytest.raises(ValueError, match=r"_change is 'added'; it must be one of"):
        testing.folded(pl.DataFrame({"a": [1], "_change": ["added"]}))
    with pytest.raises(ValueError, match=r"the row \{'a': 1\} was taken away, but never added"):
        testing.folded(pl.DataFrame({"a": [1], "_change": ["delete"]}))
