"""Windows over a changelog: equal to what Polars makes of the table that the changes lead to."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"k": str, "at": int, "v": weir.Nullable(int), "f": weir.Nullable(pl.Float64), "_change": str}
BIDS = {"auction": int, "bidder": str, "price": int, "at": int}
WINDOWS = [weir.tumbling(20), weir.sliding(30, 10), weir.cumulative(20, 5)]
IS_LARGE = pl.col("v") > 0
AGGREGATES = {
    "n": weir.count(),
    "values": weir.count("v"),
    "total": weir.sum("v"),
    "large": weir.sum("v").where(IS_LARGE),
    "mean": weir.mean("f"),
    "low": weir.min("f"),
    "high": weir.max("at"),
}


def changes_of(flow, out_of_order="1s"):
    source = weir.JsonLines("none", schema=SCHEMA, event_time="at")
    return flow.source("in", source, watermark=weir.bounded_out_of_orderness(out_of_order))


def job(window, parallelism=2, out_of_order="1s"):
    flow = weir.Dataflow("job")
    windows = changes_of(flow, out_of_order).key_by("k").window(window)
    made = windows.aggregate("w", parallelism=parallelism, **AGGREGATES)
    assert not made.is_changelog
    made.sink("out", weir.Collect())
    made.side_output("late").sink("late", weir.Collect())
    return flow


def ends_of(window, at):
    """Plain Python: the windows of a time, as (start, end)."""
    first = at // window.step_ms * window.step_ms
    if window.kind == "cumulative":
        start = at // window.size_ms * window.size_ms
        return [
            (start, end) for end in range(first + window.step_ms, start + window.size_ms + 1, window.step_ms)
        ]
    starts = range(first, first - window.size_ms, -window.step_ms)
    return [(start, start + window.size_ms) for start in starts]


def batch_result(rows, window):
    """The aggregates of a table by Polars."""
    bounds = pl.List(pl.Struct({"window_start": pl.Int64, "window_end": pl.Int64}))
    windows = [
        [{"window_start": start, "window_end": end} for start, end in ends_of(window, at)]
        for at in rows["at"]
    ]
    spread = rows.with_columns(pl.Series("window", windows, bounds)).explode("window").unnest("window")
    large = pl.col("v").filter(IS_LARGE)
    made = spread.group_by("k", "window_start", "window_end").agg(
        n=pl.len().cast(pl.Int64),
        values=pl.col("v").count().cast(pl.Int64),
        total=pl.when(pl.col("v").count() > 0).then(pl.col("v").sum()),
        large=pl.when(large.count() > 0).then(large.sum()),
        mean=pl.col("f").mean(),
        low=pl.col("f").min(),
        high=pl.col("at").max(),
    )
    return sorted(made.rows(), key=str)


ROW = st.tuples(
    st.sampled_from(["", "a", "ab"]),
    st.integers(0, 60),
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from([-1.5, 0.0, 0.25, 2.0]),
)


@st.composite
def changelogs(draw):
    """Changes of a table: rows that come, and rows that are there and leave or are replaced."""
    there, made = [], []
    for row, choice, place in draw(
        st.lists(st.tuples(ROW, st.sampled_from("iiddu"), st.integers(0, 99)), max_size=50)
    ):
        if choice == "i" or not there:
            made.append((*row, "insert"))
            there.append(row)
            continue
        gone = there.pop(place % len(there))
        made.append((*gone, "update_before" if choice == "u" else "delete"))
        if choice == "u":
            made.append((*row, "update_after"))
            there.append(row)
    return [dict(zip(SCHEMA, row, strict=True)) for row in made]


CUTS = st.lists(st.tuples(st.integers(1, 15), st.sampled_from(["", "restart", "savepoint"])), max_size=5)


def run(changes, cuts, make, parallelism=2):
    """Results and late rows of changes in batches of several sizes, with restarts between them."""
    left, made, late = list(changes), [], []
    running = testing.start(make(parallelism), {"in": []}, watermarks="follow_rows")
    for size, then in [*cuts, (len(changes), "")]:
        if left[:size]:
            running.push("in", left[:size])
        left = left[size:]
        if then == "restart":
            running.restart()
        elif then == "savepoint":
            savepoint = running.savepoint()
            made += running.rows("out").to_dicts()
            late += running.rows("late").to_dicts()
            running.stop()
            parallelism = 5 - parallelism
            running = testing.start(
                make(parallelism), {"in": []}, from_savepoint=savepoint, watermarks="follow_rows"
            )
    found = running.finish()
    running.stop()
    return [*made, *found["out"].to_dicts()], [*late, *found["late"].to_dicts()]


def values(rows):
    return sorted((tuple(row.values()) for row in rows), key=str)


_FRAME = {"k": pl.String, "at": pl.Int64, "v": pl.Int64, "f": pl.Float64, "_change": pl.String}


@settings(max_examples=cases(5))
@given(changelogs(), CUTS, st.sampled_from(WINDOWS))
def test_the_windows_of_a_changelog_are_those_of_its_table(changes, cuts, window):
    made, late = run(changes, cuts, lambda parallelism: job(window, parallelism))
    assert not late
    table = testing.folded(pl.DataFrame(changes, schema=_FRAME))
    assert values(made) == batch_result(table, window)


@settings(max_examples=cases(4))
@given(changelogs(), CUTS)
def test_what_comes_late_is_told_and_the_rest_is_that_of_the_table(changes, cuts):
    """Parallelism is 1 all along: one watermark."""
    window = weir.tumbling(20)
    made, late = run(
        changes, [cut for cut in cuts if cut[1] != "savepoint"], lambda _: job(window, 1, "15ms"), 1
    )
    signed = [(tuple(row.values())[:-1], row["_change"]) for row in changes]
    for row in late:
        signed.remove((tuple(row.values())[:-1], row["_change"]))
    adds = ("insert", "update_after")
    there = [row for row, change in signed if change in adds]
    for row, change in signed:
        if change not in adds and row in there:
            there.remove(row)
    table = pl.DataFrame(there, schema={name: _FRAME[name] for name in list(_FRAME)[:-1]}, orient="row")
    assert values(made) == batch_result(table, window)


def winners(window, keep_all, parallelism=2):
    flow = weir.Dataflow("winners")
    bids = flow.source("in", weir.JsonLines("none", schema=BIDS, event_time="at"))
    won = bids.key_by("auction").top("won", by="price", rows=1, parallelism=parallelism)
    timed = won.assign_event_time("timed", "at", watermark=weir.bounded_out_of_orderness(keep_all))
    made = timed.key_by("bidder").window(window).aggregate("w", n=weir.count(), sum=weir.sum("price"))
    made.sink("out", weir.Collect())
    made.side_output("late").sink("late", weir.Collect())
    return flow


MADE_BIDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["ann", "bob"]), st.integers(0, 5), st.integers(0, 60)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=cases(4))
@given(MADE_BIDS, CUTS, st.sampled_from(WINDOWS))
def test_windows_over_winning_bids_do_not_depend_on_how_batches_are_cut(made, cuts, window):
    bids = [
        {"auction": auction, "bidder": bidder, "price": price * 100 + number, "at": at}
        for number, (auction, bidder, price, at) in enumerate(made)
    ]
    found, late = run(bids, cuts, lambda parallelism: winners(window, "1s", parallelism))
    assert not late
    best = pl.DataFrame(bids).sort("price").group_by("auction").last()
    bounds = pl.DataFrame(
        [(row, *ends) for row, at in enumerate(best["at"]) for ends in ends_of(window, at)],
        schema=["row", "window_start", "window_end"],
        orient="row",
    )
    spread = best.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64)).join(bounds, on="row")
    wanted = spread.group_by("bidder", "window_start", "window_end").agg(
        n=pl.len().cast(pl.Int64), sum=pl.col("price").sum()
    )
    assert values(found) == sorted(wanted.rows(), key=str)


def change(k, at, kind="insert"):
    return {"k": k, "at": at, "v": 1, "f": None, "_change": kind}


def test_a_window_whose_rows_are_gone_has_no_result_and_a_late_change_is_counted():
    with testing.start(job(weir.tumbling(20), 1), {"in": []}) as running:
        running.push("in", [change("a", 1), change("b", 1), change("a", 30)])
        # The other one was never added: it takes nothing away, and nothing owes.
        running.push("in", [change("a", 1, "delete"), change("c", 2, "delete")])
        running.advance_watermark("in", 20)
        assert [(row["k"], row["n"]) for row in running.rows("out")] == [("b", 1)]
        running.push("in", [change("b", 1, "delete"), change("a", 30, "update_before"), change("c", 31)])
        assert [(row["k"], row["at"], row["_change"]) for row in running.rows("late")] == [("b", 1, "delete")]
        found = running.finish()
    assert [(row["k"], row["window_start"]) for row in found["out"]] == [("b", 0), ("c", 20)]


def test_windows_over_early_results_of_windows_take_back_what_is_replaced():
    flow = weir.Dataflow("job")
    rows = flow.source("in", weir.JsonLines("none", schema={"k": str, "at": int}, event_time="at"))
    early = weir.every("2ms", time="event")
    first = rows.key_by("k").window(weir.tumbling(10), early=early, results="changelog")
    counts = first.aggregate("first", n=weir.count())
    sizes = counts.key_by("n").window(weir.tumbling(20)).aggregate("sizes", keys=weir.count())
    sizes.sink("out", weir.Collect())
    with testing.start(flow, {"in": []}) as running:
        for at in (1, 3, 5, 12):
            running.push("in", [{"k": k, "at": at} for k in ("ab" if at == 1 else "a")])
            running.advance_watermark("in", at + 1)
        found = running.finish()["out"]
    assert sorted((row["n"], row["keys"]) for row in found) == [(1, 2), (3, 1)]


def test_a_change_that_is_none_is_told_with_its_batch():
    with (
        testing.start(job(weir.tumbling(20), 1), {"in": []}) as running,
        pytest.raises(weir.WeirError, match=r"_change is 'upsert'; it must be one of"),
    ):
        running.push("in", [change("a", 1, "upsert")])


def windowed(window, parallelism=None, **options):
    return changes_of(weir.Dataflow("job")).key_by("k").window(window, **options)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda: windowed(weir.tumbling(20)).aggregate(
                "w", n=weir.count(), a=weir.count_distinct("v"), b=weir.last("v"), c=weir.first("v")
            ),
            r"step 'w': a, b, c: count_distinct, last, first cannot take rows back, .*; over one there are count",
        ),
        (
            lambda: windowed(weir.session(20)).aggregate("w", n=weir.count()),
            "step 'w': its input is a changelog .*, and a session window cannot take rows back; tumbling, sliding and ",
        ),
        (
            lambda: windowed(weir.tumbling(20, time="processing")).aggregate("w", n=weir.count()),
            "and windows by the clock cannot take rows back",
        ),
        (
            lambda: windowed(weir.tumbling(20), allowed_lateness=5).aggregate("w", n=weir.count()),
            "leave out early, allowed_lateness, results and pre_aggregate",
        ),
        (
            lambda: windowed(weir.tumbling(20)).aggregate("w", n=weir.count(), pre_aggregate=True),
            "leave out early, allowed_lateness, results and pre_aggregate",
        ),
        (
            lambda: windowed(weir.tumbling(20)).process("w", lambda key, window, rows: rows, {"n": int}),
            r"window_process takes only rows .* updated; key_by\(...\).window\(...\).aggregate\(...\) takes",
        ),
        (
            lambda: (
                changes_of(weir.Dataflow("job")).window_all(weir.tumbling(20)).aggregate("w", n=weir.count())
            ),
            "window_all takes only rows that are never updated",
        ),
    ],
)
def test_what_cannot_take_rows_back_is_refused(step, message):
    with pytest.raises(weir.GraphError, match=message):
        step()


def top_of(rows):
    return rows.key_by("auction").top("won", by="price", rows=1)


def refused(make, **times):
    flow = weir.Dataflow("job")
    bids = flow.source("in", weir.JsonLines("none", schema=BIDS | {"_change": str}, **times))
    made = make(bids).key_by("bidder").window(weir.tumbling(20)).aggregate("w", n=weir.count())
    made.sink("out", weir.Blackhole())
    flow.build()


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda bids: bids.filter("f", pl.col("at") > 0), "in"),
        (lambda bids: top_of(bids.assign_event_time("t", "at")), "won"),
        (
            lambda bids: (
                top_of(bids).filter("f", pl.col("price") > 0).union("u", bids.assign_event_time("t", "at"))
            ),
            "won",
        ),
        (lambda bids: bids.key_by("auction").aggregate("won", bidder=weir.max("price")), "won"),
    ],
)
def test_rows_that_leave_with_other_times_are_refused(make, other):
    with pytest.raises(
        weir.GraphError, match=rf"step 'w': .* leave step '{other}' with other event times .* put"
    ):
        refused(make)


def test_rows_that_leave_with_their_own_times_are_taken():
    refused(lambda bids: bids.filter("f", pl.col("at") > 0), event_time="at")
    refused(lambda bids: top_of(bids).assign_event_time("t", "at").with_columns("c", more=pl.lit(1)))


def test_a_savepoint_of_other_columns_is_refused():
    def totals(**aggregates):
        flow = weir.Dataflow("job")
        made = changes_of(flow).key_by("k").window(weir.tumbling(20)).aggregate("w", **aggregates)
        made.sink("out", weir.Collect())
        return flow

    with testing.start(totals(n=weir.sum("v")), {"in": [change("a", 1)]}) as running:
        savepoint = running.savepoint()
    # The changes are there, so another function over them is none but another result.
    with testing.start(totals(n=weir.max("v")), {"in": []}, from_savepoint=savepoint) as running:
        assert [row["n"] for row in running.finish()["out"]] == [1]
    with pytest.raises(weir.WeirError, match=r"step 'w': .*changes of k: string, v: int64, _change: string"):
        testing.start(totals(n=weir.min("f")), {"in": []}, from_savepoint=savepoint)
