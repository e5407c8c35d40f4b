"""LAG and aggregates over rows before a row, against plain Python: late rows, restarts, another parallelism."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"k": str, "id": int, "at": int, "v": weir.Nullable(int), "x": weir.Nullable(float)}
DELAY_MS = 40
QUERY = """
    SELECT k, id, LAG(v, 2) OVER w1 AS before, SUM(v) OVER w1 AS total, COUNT(v) OVER w2 AS n, MIN(v) OVER w2 AS low,
        SUM(x) OVER w2 AS sum_x, MAX(x) OVER w3 AS high, SUM(x) OVER w1 AS total_x, COUNT(*) OVER w3 AS near
    FROM t
"""
for name, text in {
    "w1": "(PARTITION BY k ORDER BY at, id)",
    "w2": "(PARTITION BY k ORDER BY at, id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
    "w3": "(PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '30' MILLISECOND PRECEDING AND CURRENT ROW)",
}.items():
    QUERY = QUERY.replace(f"OVER {name}", f"OVER {text}")


def job(parallelism=1):
    flow = weir.Dataflow("job", max_parallelism=8)
    rows = flow.source(
        "t",
        weir.JsonLines("none", schema=SCHEMA, event_time="at"),
        parallelism=parallelism,
        watermark=weir.bounded_out_of_orderness(f"{DELAY_MS}ms"),
    )
    flow.sql(QUERY, t=rows, step="over").sink("out", weir.Collect())
    return flow


def wanted(rows):
    """What each row is told with, by plain Python."""
    found = {}
    for row in rows:
        mine = sorted((r for r in rows if r["k"] == row["k"]), key=lambda r: (r["at"], r["id"]))
        at = mine.index(row)
        upto, three = mine[: at + 1], mine[max(0, at - 2) : at + 1]
        near = [r for r in mine if row["at"] - 30 <= r["at"] <= row["at"]]

        def values(some, name):
            return [r[name] for r in some if r[name] is not None]

        def total(some, name):
            return math.fsum(values(some, name)) if values(some, name) else None

        found[row["id"]] = (
            mine[at - 2]["v"] if at >= 2 else None,
            total(upto, "v"),
            len(values(three, "v")),
            min(values(three, "v"), default=None),
            total(three, "x"),
            max(values(near, "x"), default=None),
            total(upto, "x"),
            len(near),
        )
    return found


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, DELAY_MS - 1),
        st.one_of(st.none(), st.integers(-5, 5)),
        st.one_of(st.none(), st.integers(-8, 8).map(lambda n: n / 4)),
    ),
    max_size=40,
).map(
    lambda made: [
        {"k": k, "id": n, "at": 1_000 + n * 9 + late, "v": v, "x": x}
        for n, (k, late, v, x) in enumerate(made)
    ]
)


@settings(max_examples=cases(4))
@given(ROWS, st.integers(1, 9), st.integers(1, 2), st.booleans())
def test_values_are_those_of_plain_python(rows, cut, parallelism, moves):
    made = []
    running = testing.start(job(parallelism), watermarks="follow_rows")
    for number, start in enumerate(range(0, len(rows), cut)):
        running.push("t", rows[start : start + cut])
        if number % 3 == 1:
            running.checkpoint()
            running.restart()
        if number == 2 and moves:
            savepoint = running.savepoint()
            made += running.rows("out").to_dicts()
            running.stop()
            running = testing.start(job(3 - parallelism), from_savepoint=savepoint, watermarks="follow_rows")
    made += running.finish()["out"].to_dicts()
    running.stop()
    told = {row["id"]: tuple(row.values())[2:] for row in made}
    assert len(made) == len(rows)
    assert told == wanted(rows)


def test_rows_leave_in_the_order_of_event_time():
    rows = [
        {"k": "ab"[n % 2], "id": n, "at": 1_000 + n * 9 + n * 7 % DELAY_MS, "v": n, "x": None}
        for n in range(30)
    ]
    with testing.start(job(), watermarks="follow_rows") as running:
        running.push("t", rows[:20])
        early = running.rows("out").to_dicts()
        # Those whose time the watermark has passed.
        highest = max(row["at"] for row in rows[:20])
        assert [row["id"] for row in early] == [
            row["id"]
            for row in sorted(rows[:20], key=lambda row: row["at"])
            if row["at"] < highest - DELAY_MS
        ]
        running.push("t", rows[20:])
        found = [row["id"] for row in running.finish()["out"].to_dicts()]
    assert found == [row["id"] for row in sorted(rows, key=lambda row: row["at"])]


def test_a_late_row_is_left_out_and_counted_also_over_a_restart():
    def row(n, at):
        return {"k": "a", "id": n, "at": at, "v": n, "x": None}

    with testing.start(job(), watermarks="follow_rows") as running:
        # In one batch, and in one of its own: the same.
        running.push("t", [row(1, 1_000), row(2, 2_000), row(3, 1_500)])
        running.checkpoint()
        running.restart()
        running.push("t", [row(4, 1_600), row(5, 2_100)])
        result = running.finish()
    assert [row["id"] for row in result["out"].to_dicts()] == [1, 2, 5]
    assert sum(result.late_rows.values()) == 2
