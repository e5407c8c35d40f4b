"""Texts that change between a savepoint and the start from it: state goes on, or the start is refused."""

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import WeirError

_SCHEMA = {"id": int, "k": str, "a": int, "b": int, "at": int}
_ROWS = [{"id": n, "k": "xyz"[n % 3], "a": n, "b": n % 4, "at": n * 1_000} for n in range(40)]
_WINDOWS = "FROM TUMBLE(t, at, INTERVAL '30' SECOND) GROUP BY k, window_start, window_end"
_PLACED = "SELECT k, id FROM (SELECT *, ROW_NUMBER() OVER ({}) AS r FROM t) WHERE r <= 2"


def _flow(text: str) -> weir.Dataflow:
    flow = weir.Dataflow("changed")
    source = weir.JsonLines("unused", schema=_SCHEMA, event_time="at")
    flow.sql(text, step="v", t=flow.source("t", source)).sink("out", weir.Collect())
    return flow


def _went_on(before: str, after: str, *, drops: bool = False) -> pl.DataFrame:
    """What is there at the end, of a job that goes on from a savepoint of another text."""
    with testing.start(_flow(before), watermarks="follow_rows") as job:
        job.push("t", _ROWS[:20])
        savepoint, told = job.savepoint(), job.rows("out").to_polars()
    with testing.start(
        _flow(after), watermarks="follow_rows", from_savepoint=savepoint, allow_dropped_state=drops
    ) as job:
        job.push("t", _ROWS[20:])
        return _folded(pl.concat([told, job.finish()["out"].to_polars()], how="diagonal"))


def _folded(rows: pl.DataFrame) -> pl.DataFrame:
    return testing.folded(rows) if "_change" in rows.columns else rows


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT k, SUM(a * 2) AS s FROM t GROUP BY k", "SELECT k, SUM(a * 3) AS s FROM t GROUP BY k"),
        (
            "SELECT k, SUM(a * 2) AS s, SUM(b * 2) AS n FROM t GROUP BY k",
            "SELECT k, SUM(b * 2) AS s, SUM(a * 2) AS n FROM t GROUP BY k",
        ),
        (
            "SELECT a % 3 AS g, COUNT(*) AS n FROM t GROUP BY g",
            "SELECT a % 4 AS g, COUNT(*) AS n FROM t GROUP BY g",
        ),
        ("SELECT k, MAX(a) AS s FROM t GROUP BY k", "SELECT k, MAX(b) AS s FROM t GROUP BY k"),
        ("SELECT k, MAX(a) AS a FROM t GROUP BY k", "SELECT k, MAX(b) AS a FROM t GROUP BY k"),
        (
            "SELECT k, MAX(a) AS a FROM (SELECT k, a FROM t) GROUP BY k",
            "SELECT k, MAX(a) AS a FROM (SELECT k, b AS a FROM t) GROUP BY k",
        ),
        (
            "SELECT k, MEDIAN(a * 2) AS m FROM t GROUP BY k",
            "SELECT k, MEDIAN(a * 3) AS m FROM t GROUP BY k",
        ),
        ("SELECT DISTINCT a % 5 AS m FROM t", "SELECT DISTINCT a % 6 AS m FROM t"),
        (f"SELECT k, SUM(a * 2) AS s {_WINDOWS}", f"SELECT k, SUM(a * 3) AS s {_WINDOWS}"),
        (
            _PLACED.format("PARTITION BY k ORDER BY a * 2 DESC, id"),
            _PLACED.format("PARTITION BY k ORDER BY a * -2 DESC, id"),
        ),
        (
            _PLACED.format("PARTITION BY id % 3 ORDER BY a DESC, id"),
            _PLACED.format("PARTITION BY id % 2 ORDER BY a DESC, id"),
        ),
        (
            "SELECT id, SUM(a * 2) OVER (PARTITION BY k ORDER BY at) AS s FROM t",
            "SELECT id, SUM(a * 3) OVER (PARTITION BY k ORDER BY at) AS s FROM t",
        ),
        (
            "SELECT x.id, y.id AS o FROM t x JOIN t y ON x.a + 1 = y.b",
            "SELECT x.id, y.id AS o FROM t x JOIN t y ON x.a + 2 = y.b",
        ),
        (
            "SELECT k, SUM(v) AS s FROM (SELECT k, a AS v FROM t UNION ALL SELECT k, b AS v FROM t) GROUP BY k",
            "SELECT k, SUM(v) AS s FROM (SELECT k, a AS v FROM t UNION ALL SELECT k, b + 1 AS v FROM t) GROUP BY k",
        ),
    ],
)
def test_what_is_computed_for_a_state_is_part_of_it(before, after):
    with pytest.raises(WeirError, match=r"step 'v\.\w+': column .* was .* in the checkpoint") as raised:
        _went_on(before, after)
    assert "another name" in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT k, SUM(a * 2) AS s FROM t GROUP BY k", "select k, sum(a*2) as s from t group by k"),
        (
            f"SELECT k, SUM(a * 2) AS s, SUM(b + 1) AS n {_WINDOWS}",
            f"SELECT k, SUM(b + 1) AS n, SUM(a * 2) AS s {_WINDOWS}",
        ),
        ("SELECT k, SUM(a * 2) AS s FROM t GROUP BY k", "SELECT k, SUM(q.a * 2) AS s FROM t q GROUP BY k"),
        (
            "SELECT k, SUM(a) AS a FROM (SELECT k, a FROM t) GROUP BY k",
            "SELECT k, SUM(a) AS a FROM (SELECT k, a, b FROM t) GROUP BY k",
        ),
        (
            "SELECT k, s + 1 AS s FROM (SELECT k, SUM(a * 2) AS s FROM t GROUP BY k)",
            "SELECT k, s + 2 - 1 AS s FROM (SELECT k, SUM(a * 2) AS s FROM t GROUP BY k)",
        ),
    ],
)
def test_what_means_the_same_goes_on(before, after):
    with testing.start(_flow(after), watermarks="follow_rows") as job:
        job.push("t", _ROWS)
        wanted = _folded(job.finish()["out"].to_polars())
    found = _went_on(before, after).select(wanted.columns)
    assert sorted(found.rows()) == sorted(wanted.rows())


def test_an_aggregate_of_windows_may_be_added_and_removed_with_what_it_is_computed_of():
    one, two = (
        f"SELECT k, SUM(a * 2) AS s {_WINDOWS}",
        f"SELECT k, SUM(a * 2) AS s, SUM(b * 3) AS n {_WINDOWS}",
    )
    wanted = _went_on(one, one)
    assert sorted(_went_on(one, two).select("k", "s").rows()) == sorted(wanted.rows())
    assert sorted(_went_on(two, one, drops=True).select("k", "s").rows()) == sorted(wanted.rows())


def test_steps_of_python_go_on_with_other_expressions():
    """There the names of columns are the author's."""

    def flow(factor: int) -> weir.Dataflow:
        made = weir.Dataflow("python")
        rows = made.source("t", weir.JsonLines("unused", schema=_SCHEMA, event_time="at"))
        doubled = rows.select("chosen", "k", (pl.col("a") * factor).alias("v"))
        doubled.key_by("k").aggregate("sums", s=weir.sum("v")).sink("out", weir.Collect())
        return made

    with testing.start(flow(2)) as job:
        job.push("t", _ROWS[:1])
        savepoint = job.savepoint()
    with testing.start(flow(3), from_savepoint=savepoint) as job:
        job.push("t", _ROWS[3:4])
        assert [row["s"] for row in job.rows("out").to_dicts()] == [9]


@pytest.mark.parametrize(
    "wanted", ["EXISTS (SELECT 1 FROM t y WHERE y.{} = t.a)", "t.a IN (SELECT {} FROM t)"]
)
def test_another_column_within_a_query_that_rows_are_looked_for_in_is_refused(wanted):
    before, after = (f"SELECT id FROM t WHERE {wanted.format(column)}" for column in "ab")
    with pytest.raises(WeirError, match=r"step 'v\.join'"):
        _went_on(before, after)
