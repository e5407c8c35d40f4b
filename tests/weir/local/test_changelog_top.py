"""``top`` over a changelog: rows come and go, and the result folds to what plain Python says."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing
from weir.errors import GraphError

SCHEMA = {"user": str, "n": int, "price": weir.Nullable(pl.Float64), "_change": str}


def job(parallelism=2, **options):
    flow = weir.Dataflow("job")
    changes = flow.source("in", weir.JsonLines("none", schema=SCHEMA))
    top = changes.key_by("user").top("top", parallelism=parallelism, **{"by": "price", "rows": 2, **options})
    assert top.schema.names[-1] == "_change"
    top.sink("out", weir.Collect())
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

    def tops(self, count, *, ascending=False, rank=None):
        found = []
        for user in sorted({row["user"] for row in self.there}):
            mine = [row for row in self.there if row["user"] == user]
            sign = 1 if ascending else -1
            mine.sort(
                key=lambda row: (
                    (1, 0.0, row["n"]) if row["price"] is None else (0, sign * row["price"], row["n"])
                )
            )
            found += [row | ({rank: place} if rank else {}) for place, row in enumerate(mine[:count], 1)]
        return sorted(found, key=str)


ROW = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.none() | st.integers(-2, 2).map(float))
CHANGES = st.lists(
    st.tuples(ROW, st.sampled_from(["insert", "update_after", "insert", "delete", "update_before"])),
    max_size=60,
).map(lambda made: [change(*row, kind) for row, kind in made])
CUTS = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "restart", "savepoint"])), max_size=6)
OPTIONS = st.fixed_dictionaries({}, optional={"ascending": st.booleans(), "rank": st.just("place")})


@settings(max_examples=cases(9))
@given(CHANGES, CUTS, st.integers(1, 4), OPTIONS)
def test_the_changelog_folds_to_what_plain_python_says(changes, cuts, count, options):
    left, made, rows = list(changes), [], Rows()
    parallelism = 2
    running = testing.start(job(2, rows=count, **options), {"in": []})
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
            made += running.rows("top").to_dicts()
            running.stop()
            parallelism = 5 - parallelism
            running = testing.start(
                job(parallelism, rows=count, **options), {"in": []}, from_savepoint=savepoint
            )
    made += running.finish()["top"].to_dicts()
    running.stop()
    expected = rows.tops(count, **options)
    folded = testing.folded(pl.DataFrame(made, infer_schema_length=None)).to_dicts() if made else []
    assert sorted(folded, key=str) == expected


def told(running, *names):
    return [(item["_change"], *(item[name] for name in names)) for item in running.rows("top")]


def test_what_follows_comes_up():
    first = [change("a", n, price) for n, price in ((1, 5.0), (2, 3.0), (3, 4.0), (4, 3.0))]
    with testing.start(job(1), {"in": first}) as running:
        assert told(running, "n") == [("insert", 1), ("insert", 3)]
        running.push("in", [change("a", 1, 5.0, "delete")])
        assert told(running, "n")[2:] == [("delete", 1), ("insert", 2)]
        # What is updated to itself, or is not among the first, says nothing.
        running.push("in", [change("a", 3, 4.0, "update_before"), change("a", 3, 4.0, "update_after")])
        running.push("in", [change("a", 4, 3.0, "delete"), change("a", 5, 1.0)])
        assert len(told(running, "n")) == 4
        # Before it came.
        running.push("in", [change("b", 1, 1.0, "delete")])
        running.push("in", [change("b", 1, 1.0), change("b", 2, 0.0)])
        assert told(running, "n")[4:] == [("insert", 2)]


def test_places_move_up_and_down():
    first = [change("a", 1, 5.0), change("a", 2, 3.0), change("a", 3, 1.0)]
    with testing.start(job(1, rank="place"), {"in": first}) as running:
        running.push("in", [change("a", 1, 5.0, "delete")])
        assert told(running, "n", "place")[2:] == [
            ("update_before", 1, 1),
            ("update_after", 2, 1),
            ("update_before", 2, 2),
            ("update_after", 3, 2),
        ]
        running.push("in", [change("a", 3, 1.0, "delete")])
        assert told(running, "n", "place")[6:] == [("delete", 3, 2)]


def test_the_best_windows_while_late_rows_change_them():
    flow = weir.Dataflow("windows")
    events = flow.source("in", weir.JsonLines("none", schema={"k": str, "at": int}, event_time="at"))
    counted = events.key_by("k").window(weir.session("10ms"), allowed_lateness="50ms", results="changelog")
    longest = counted.aggregate("counted", n=weir.count()).key_by("k").top("top", by="n", rows=1)
    longest.sink("out", weir.Collect())
    with testing.start(flow, {"in": []}) as running:
        running.push("in", [{"k": "a", "at": at} for at in (0, 1, 30, 50)])
        running.advance_watermark("in", 61)
        running.push("in", [{"k": "a", "at": 40}])
        found = testing.folded(running.finish()["top"].to_polars())
    assert found.rows() == [("a", 30, 60, 3)]


def test_the_largest_of_windows_that_change_says_what_to_write():
    flow = weir.Dataflow("windows")
    events = flow.source("in", weir.JsonLines("none", schema={"k": str, "at": int}, event_time="at"))
    counted = events.key_by("k").window(weir.tumbling("10ms"), allowed_lateness="50ms", results="changelog")
    with pytest.raises(GraphError, match=r"key_by\('window_start', 'window_end'\).top"):
        counted.aggregate("counted", n=weir.count()).window_top("best", by="n")
