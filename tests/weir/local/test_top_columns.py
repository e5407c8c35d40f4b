"""``top`` and ``window_top`` by several columns of any type, against plain Python."""

import datetime as dt
import math
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing
from weir.specs import TopSpec
from weir.specs.told_form import told_form

SCHEMA = {
    "user": str,
    "n": int,
    "name": weir.Nullable(str),
    "price": weir.Nullable(pl.Float64),
    "day": weir.Nullable(pl.Date),
    "is_new": weir.Nullable(bool),
    "cost": weir.Nullable(pl.Decimal(10, 2)),
}
COLUMNS = ("name", "price", "day", "is_new", "cost")
VALUES = {
    "name": st.sampled_from([None, "", "a", "B", "ä"]),
    "price": st.sampled_from([None, -1.5, 0.0, 2.0, math.nan, math.inf]),
    "day": st.sampled_from([None, dt.date(1960, 5, 1), dt.date(2026, 1, 1)]),
    "is_new": st.sampled_from([None, False, True]),
    "cost": st.sampled_from([None, Decimal("1.50"), Decimal("-20.00")]),
}
ROWS = st.lists(
    st.fixed_dictionaries({"user": st.sampled_from(["ann", "bob"]), **VALUES}), min_size=1, max_size=30
).map(lambda made: [row | {"n": n} for n, row in enumerate(made)])
#: Columns, whether they ascend, whether null comes first.
ORDERS = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.tuples(
        st.just(names),
        st.lists(st.booleans(), min_size=len(names), max_size=len(names)),
        st.lists(st.booleans(), min_size=len(names), max_size=len(names)),
    )
)


def before(one, other, order):
    """-1: one goes first; 1: the other; 0: they are equal."""
    for name, ascends, nulls_first in zip(*order, strict=True):
        a, b = one[name], other[name]
        if a is None or b is None:
            if (a is None) == (b is None):
                continue
            return -1 if (a is None) == nulls_first else 1
        if isinstance(a, float):
            # NaN is above all numbers.
            a, b = (
                (math.isnan(a), a if not math.isnan(a) else 0),
                (math.isnan(b), b if not math.isnan(b) else 0),
            )
        if isinstance(a, str):
            a, b = a.encode(), b.encode()
        if a != b:
            return -1 if (a < b) == ascends else 1
    return 0


def first_rows(rows, order, count):
    """Of rows that are equal in the order the one that came first goes first."""
    left, found = list(rows), []
    while left and len(found) < count:
        best = left[0]
        for row in left[1:]:
            if before(row, best, order) < 0:
                best = row
        left.remove(best)
        found.append(best)
    return found


def wanted(rows, order, count):
    """Numbers of the first rows of each user, and their places."""
    return sorted(
        (row["n"], place)
        for user in {row["user"] for row in rows}
        for place, row in enumerate(first_rows([r for r in rows if r["user"] == user], order, count), 1)
    )


def job(order, count, *, is_changelog=False):
    flow = weir.Dataflow("job", max_parallelism=8)
    rows = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    if is_changelog:
        # Every row is there, as the last one of its number.
        rows = rows.key_by("n").top("newest", by="n", rows=1)
    names, ascending, nulls_first = order
    found = rows.key_by("user").top(
        "top", by=names, ascending=ascending, nulls_first=nulls_first, rows=count, rank="place", parallelism=2
    )
    found.sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize("is_changelog", [False, True])
@settings(max_examples=cases(3))
@given(rows=ROWS, order=ORDERS, count=st.integers(1, 4), cut=st.integers(1, 9))
def test_first_rows_are_those_of_plain_python(is_changelog, rows, order, count, cut):
    with testing.start(job(order, count, is_changelog=is_changelog)) as running:
        for start in range(0, len(rows), cut):
            running.push("in", rows[start : start + cut])
            if start % 2:
                running.checkpoint()
                running.restart()
        found = testing.folded(running.finish()["out"].to_polars())
    assert sorted(found.select("n", "place").rows()) == wanted(rows, order, count)


def test_a_state_of_one_column_is_what_it_was():
    assert told_form(TopSpec(("user",), "price", 2)) == {
        "kind": "top", "key_columns": ["user"], "by": "price", "rows": 2, "ascending": False, "rank": None,
        "prefers_later": False,
    }  # fmt: skip


def windows(order, count, key, *, ties, rank):
    flow = weir.Dataflow("job", max_parallelism=8)
    rows = flow.source(
        "in",
        weir.JsonLines("none", schema={"k": str, "g": str, "at": int}, event_time="at"),
        watermark=weir.bounded_out_of_orderness("3s"),
    )
    counted = (
        rows.key_by("k", "g").window(weir.tumbling("5s")).aggregate("n", n=weir.count(), last=weir.max("at"))
    )
    names, ascending = order
    found = counted.window_top(
        "top", by=names, ascending=ascending, rows=count, key=key, ties=ties, rank=rank
    )
    found.sink("out", weir.Collect())
    return flow


@settings(max_examples=cases(4))
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 20_000)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([(["n", "k"], [False, True]), (["n"], [True]), (["k", "last"], [False, False])]),
    st.integers(1, 3),
    st.sampled_from([(), ("g",)]),
    st.booleans(),
)
def test_first_rows_of_windows_are_those_of_plain_python(given_rows, order, count, key, ties):
    rows = sorted(({"k": k, "g": g, "at": at} for k, g, at in given_rows), key=lambda row: row["at"])
    groups = {}
    for row in rows:
        groups.setdefault((row["at"] // 5_000, row["k"], row["g"]), []).append(row["at"])
    results = [
        {"w": w, "k": k, "g": g, "n": len(times), "last": max(times)} for (w, k, g), times in groups.items()
    ]
    expected = []
    names, ascending = order
    full = (names, ascending, [False] * len(names))
    rest = [name for name in ("k", "g", "n", "last") if name not in names]
    for part in {(r["w"], *(r[name] for name in key)) for r in results}:
        mine = [r for r in results if (r["w"], *(r[name] for name in key)) == part]
        if ties:
            place = {id(r): 1 + sum(before(other, r, full) < 0 for other in mine) for r in mine}
            expected += [(r["w"], r["k"], r["g"], place[id(r)]) for r in mine if place[id(r)] <= count]
        else:
            mine.sort(key=lambda r: tuple(r[name] for name in rest))
            chosen = first_rows(mine, full, count)
            expected += [(r["w"], r["k"], r["g"], place) for place, r in enumerate(chosen, 1)]
    with testing.start(
        windows(order, count, key, ties=ties, rank="place"), watermarks="follow_rows"
    ) as running:
        for number, start in enumerate(range(0, len(rows), 7)):
            running.push("in", rows[start : start + 7])
            if number % 2:
                running.checkpoint()
                running.restart()
        found = running.finish()["out"].to_polars()
    told = [
        (start // 5_000, k, g, place)
        for start, k, g, place in found.select("window_start", "k", "g", "place").rows()
    ]
    assert sorted(told) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": (["m"], [True])}, "there is no column 'm'"),
        ({"key": ("h",)}, "there is no key column 'h'"),
        ({"rank": "n"}, "output column 'n' exists already"),
    ],
)
def test_mistakes_of_window_top_are_told(options, message):
    given = {"order": (["n"], [True]), "key": (), "rank": "place", **options}
    with pytest.raises(weir.GraphError, match=message):
        windows(given["order"], 2, given["key"], ties=False, rank=given["rank"])


def best_of(**options):
    flow = weir.Dataflow("job", max_parallelism=8)
    schema = {"user": str, "v": int, "at": int}
    rows = flow.source("in", weir.JsonLines("none", schema=schema, event_time="at"))
    totals = rows.key_by("user").window(weir.tumbling(10)).aggregate("w", n=weir.count(), m=weir.max("v"))
    totals.window_top("top", **options).select("few", "window_end", "user").sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize(
    "after",
    [
        {"by": "m"},
        {"by": "n", "rows": 3},
        {"by": "n", "ties": True},
        {"by": ["n", "m"]},
        {"by": "n", "rank": "place"},
    ],
    ids=str,
)
def test_a_savepoint_of_rows_that_were_chosen_otherwise_is_refused(after):
    rows = [
        {"user": "ann", "v": 1, "at": 1},
        {"user": "ann", "v": 1, "at": 2},
        {"user": "bob", "v": 2, "at": 3},
    ]
    with testing.start(best_of(by="n"), {"in": rows}) as running:
        savepoint = running.savepoint()
    with testing.start(best_of(by="n"), {"in": []}, from_savepoint=savepoint) as running:
        assert running.finish()["out"].to_polars().rows() == [(10, "ann")]
    with pytest.raises(
        weir.WeirError, match=r"step 'top': the checkpoint has (order|by): .*ties: False.*the job"
    ):
        testing.start(best_of(**after), {"in": []}, from_savepoint=savepoint)
