"""``deduplicate(by=)``: the first or the last row of each key by a column, also of rows that come and go."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"user": str, "n": int, "price": weir.Nullable(pl.Float64), "_change": str}
BIDS = {"auction": int, "bidder": str, "price": int, "at": int}


def job(parallelism=2, keep="last"):
    flow = weir.Dataflow("job")
    changes = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    found = changes.key_by("user").deduplicate("one", keep=keep, by="price", parallelism=parallelism)
    assert found.is_changelog
    found.sink("out", weir.Collect())
    return flow


def change(user, n, price, kind="insert"):
    return {"user": user, "n": n, "price": price, "_change": kind}


class Rows:
    """Plain Python: the rows of each key; those of one price go by the other columns, whichever came first."""

    def __init__(self):
        self.there, self.owed = [], []

    def take(self, item):
        row = {name: item[name] for name in ("user", "n", "price")}
        adds = item["_change"] in ("insert", "update_after")
        these, others = (self.there, self.owed) if adds else (self.owed, self.there)
        if row in others:
            others.remove(row)
        else:
            these.append(row)

    def one_of_each(self, keep):
        found = {}
        for row in self.there:
            found.setdefault(row["user"], []).append(row)
        sign = -1 if keep == "last" else 1

        def order(row):
            is_null = row["price"] is None
            return (is_null, 0.0 if is_null else sign * row["price"], sign * row["n"])

        return sorted((min(rows, key=order) for rows in found.values()), key=str)


ROW = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.none() | st.integers(-1, 1).map(float))
CHANGES = st.lists(
    st.tuples(ROW, st.sampled_from(["insert", "update_after", "insert", "delete", "update_before"])),
    max_size=60,
).map(lambda made: [change(*row, kind) for row, kind in made])
CUTS = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "restart", "savepoint"])), max_size=6)
KEEP = st.sampled_from(["first", "last"])


@settings(max_examples=cases(12))
@given(CHANGES, CUTS, KEEP)
def test_the_changelog_folds_to_what_plain_python_says(changes, cuts, keep):
    left, made, rows = list(changes), [], Rows()
    parallelism = 2
    running = testing.start(job(2, keep), {"in": []})
    for size, then in [*cuts, (len(changes), "")]:
        if left[:size]:
            running.push("in", left[:size])
            for item in left[:size]:
                rows.take(item)
        left = left[size:]
        if then == "restart":
            running.restart()
        elif then == "savepoint":
            savepoint = running.savepoint()
            made += running.rows("one").to_dicts()
            running.stop()
            parallelism = 5 - parallelism
            running = testing.start(job(parallelism, keep), {"in": []}, from_savepoint=savepoint)
    made += running.finish()["one"].to_dicts()
    running.stop()
    folded = testing.folded(pl.DataFrame(made, infer_schema_length=None)).to_dicts() if made else []
    assert sorted(folded, key=str) == rows.one_of_each(keep)


MADE_BIDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["ann", "bob"]), st.integers(0, 5)), min_size=1, max_size=50
)


@settings(max_examples=cases(9))
@given(MADE_BIDS, st.lists(st.integers(1, 15), max_size=5), KEEP, st.randoms(use_true_random=False))
def test_one_winning_bid_of_each_bidder_is_that_of_polars(made, cuts, keep, random):
    times = random.sample(range(1000), len(made))
    bids = [
        {"auction": auction, "bidder": bidder, "price": price * 1000 + number, "at": at}
        for number, ((auction, bidder, price), at) in enumerate(zip(made, times, strict=True))
    ]
    flow = weir.Dataflow("winners")
    won = flow.source("bids", weir.JsonLines("none", schema=BIDS, event_time="at"))
    won = won.key_by("auction").top("won", by="price", rows=1)
    one = won.key_by("bidder").deduplicate("one", keep=keep, by="at")
    one.sink("out", weir.Collect())
    one.key_by("bidder").count("ones").sink("count", weir.Collect())
    with testing.start(flow, {"bids": []}) as running:
        left = bids
        for size in [*cuts, len(bids)]:
            if left[:size]:
                running.push("bids", left[:size])
            left = left[size:]
        result = running.finish()
    best = pl.DataFrame(bids).sort("price").group_by("auction").last()
    expected = best.sort("at", descending=keep == "first").group_by("bidder").last()
    found = testing.folded(result["one"].to_polars())
    assert found.sort("bidder").equals(expected.select(found.columns).sort("bidder"))
    ones = testing.folded(result["ones"].to_polars())
    assert sorted(ones.rows()) == [(bidder, 1) for bidder in sorted(expected["bidder"])]


@settings(max_examples=cases(9))
@given(MADE_BIDS, st.lists(st.integers(1, 15), max_size=5), KEEP)
def test_rows_that_are_never_updated_go_by_the_column_too(made, cuts, keep):
    # Event time goes the other way.
    bids = [
        {"auction": auction, "bidder": bidder, "price": price, "at": 1000 - number}
        for number, (auction, bidder, price) in enumerate(made)
    ]
    flow = weir.Dataflow("dearest")
    events = flow.source("bids", weir.JsonLines("none", schema=BIDS, event_time="at"))
    events.key_by("bidder").deduplicate("one", keep=keep, by="price").sink("out", weir.Collect())
    with testing.start(flow, {"bids": []}) as running:
        left = bids
        for size in [*cuts, len(bids)]:
            if left[:size]:
                running.push("bids", left[:size])
            left = left[size:]
        found = testing.folded(running.finish()["one"].to_polars())
    rows = pl.DataFrame(bids).sort("price", maintain_order=True).group_by("bidder", maintain_order=True)
    expected = rows.first() if keep == "first" else rows.last()
    assert found.sort("bidder").equals(expected.select(found.columns).sort("bidder"))


def told(running):
    return [(item["_change"], item["n"]) for item in running.rows("one")]


@pytest.mark.parametrize(("keep", "after"), [("last", [4, 3, 1]), ("first", [1, 3, 4])])
def test_of_rows_with_one_time_the_next_one_comes_up(keep, after):
    with testing.start(job(1, keep), {"in": []}) as running:
        for n in (1, 3):
            running.push("in", [change("a", n, 5.0)])
        running.push("in", [change("a", 4, 5.0)])
        gone = []
        for n, following in zip(after, [*after[1:], None], strict=True):
            running.push("in", [change("a", n, 5.0, "delete")])
            gone += (
                [("delete", n)] if following is None else [("update_before", n), ("update_after", following)]
            )
        assert told(running)[-5:] == gone


def test_a_change_of_a_row_that_is_not_the_one_says_nothing():
    with testing.start(job(1), {"in": [change("a", 1, 5.0), change("a", 2, 3.0)]}) as running:
        running.push("in", [change("a", 2, 3.0, "update_before"), change("a", 2, 4.0, "update_after")])
        running.push("in", [change("a", 2, 4.0, "delete")])
        assert told(running) == [("insert", 1)]


def test_a_change_that_is_none_is_told():
    with (
        testing.start(job(1), {"in": []}) as running,
        pytest.raises(weir.WeirError, match=r"_change is 'upsert'; it must be one of"),
    ):
        running.push("in", [change("a", 1, 5.0, "upsert")])


def test_another_column_is_refused_when_a_savepoint_is_read():
    with testing.start(job(), {"in": [change("a", 1, 2.0)]}) as running:
        savepoint = running.savepoint()
    with pytest.raises(weir.WeirError, match=r"step 'one': the checkpoint's rows are .* the job now needs"):
        testing.start(job(keep="first"), {"in": []}, from_savepoint=savepoint)
