"""``deduplicate``: the first row of each key, within a time, or the last one as a changelog."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"user": weir.Nullable(str), "n": int, "at": int}


def job(parallelism=2, **options):
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.JsonLines("none", schema=SCHEMA, event_time="at"))
    found = events.key_by("user").deduplicate("d", parallelism=parallelism, **options)
    found.sink("out", weir.Collect())
    return flow


def row(user, n, at=0):
    return {"user": user, "n": n, "at": at}


def firsts(rows, within_ms):
    """Plain Python: what is passed on."""
    last = {}
    for item in rows:
        before = last.get(item["user"])
        if before is None or (within_ms is not None and item["at"] - before >= within_ms):
            last[item["user"]] = item["at"]
            yield item


def lasts(rows):
    """Plain Python: the row of each key with the highest time, of equals the last one."""
    found = {}
    for item in rows:
        if item["user"] not in found or item["at"] >= found[item["user"]]["at"]:
            found[item["user"]] = item
    return list(found.values())


def in_order(rows):
    return sorted(rows, key=lambda item: item["n"])


ROWS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy", None]), st.integers(0, 60)), max_size=40).map(
    lambda made: [row(user, n, at) for n, (user, at) in enumerate(made)]
)
CUTS = st.lists(
    st.tuples(st.integers(1, 10), st.sampled_from(["", "checkpoint", "restart", "savepoint"])), max_size=6
)


def run_in_parts(flow_of, rows, cuts):
    """Rows in batches of several sizes, with checkpoints and restarts between them, on other numbers of subtasks."""
    left, made = list(rows), []
    job, parallelism = testing.start(flow_of(2), {"in": []}), 2
    for count, then in [*cuts, (len(rows), "")]:
        if left[:count]:
            job.push("in", left[:count])
        left = left[count:]
        if then == "checkpoint":
            job.checkpoint()
        elif then == "restart":
            job.restart()
        elif then == "savepoint":
            savepoint = job.savepoint()
            made += job.rows("d").to_dicts()
            job.stop()
            parallelism = 5 - parallelism
            job = testing.start(flow_of(parallelism), {"in": []}, from_savepoint=savepoint)
    made += job.finish()["d"].to_dicts()
    job.stop()
    return made


@settings(max_examples=cases(12))
@given(ROWS, CUTS, st.sampled_from([None, 1, 10, 45]))
def test_first_rows_are_those_of_plain_python(rows, cuts, within_ms):
    within = None if within_ms is None else f"{within_ms}ms"
    made = run_in_parts(lambda parallelism: job(parallelism, within=within), rows, cuts)
    assert in_order(made) == list(firsts(rows, within_ms))


@settings(max_examples=cases(12))
@given(ROWS, CUTS)
def test_the_last_rows_fold_to_those_of_plain_python(rows, cuts):
    made = run_in_parts(lambda parallelism: job(parallelism, keep="last"), rows, cuts)
    if rows:
        assert in_order(testing.folded(pl.DataFrame(made)).to_dicts()) == in_order(lasts(rows))


def test_a_key_is_forgotten_when_the_watermark_has_passed_its_time():
    with testing.start(job(1, within="10ms"), {"in": [row("a", 1, 100)]}) as running:
        running.advance_watermark("in", 105)
        running.push("in", [row("a", 2, 109)])
        assert len(running.rows("d")) == 1
        running.checkpoint()
        running.advance_watermark("in", 110)
        # Late: a row of its time was passed on, but nobody remembers.
        running.push("in", [row("a", 3, 105)])
        assert [found["n"] for found in running.rows("d")] == [1, 3]


def test_a_row_far_ahead_of_the_watermark_is_remembered_until_its_time():
    with testing.start(job(1, within="10ms"), {"in": [row("b", 0, 0)]}) as running:
        running.advance_watermark("in", 1)
        running.push("in", [row("a", 1, 1000)])
        running.advance_watermark("in", 900)
        running.restart()
        running.push("in", [row("a", 2, 1005)])
        assert [found["n"] for found in running.rows("d")] == [0, 1]


def test_a_replaced_row_is_told_with_the_row_that_replaces_it():
    with testing.start(job(1, keep="last"), {"in": [row("a", 1, 5), row("a", 2, 3)]}) as running:
        running.push("in", [row("a", 3, 5)])
        running.push("in", [row("a", 4, 4)])
        found = running.rows("d").to_dicts(times=True)
        assert [(item["n"], item["_change"], item["_event_time_ms"]) for item in found] == [
            (1, "insert", 5),
            (1, "update_before", 5),
            (3, "update_after", 5),
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "best"}, "step 'd': keep is 'best'; it is 'first' or 'last'"),
        ({"within": "soon"}, "step 'd': within: 'soon' is not a duration"),
        ({"keep": "last", "within": "1s"}, "step 'd': within goes only with keep='first'"),
        ({"by": "n", "within": "1s"}, "step 'd': within goes by event time; leave out by='n'"),
        ({"by": "user"}, "step 'd': it goes by column 'user', which is string"),
        ({"by": "m"}, "step 'd': there is no column 'm' to go by"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(options, message):
    with pytest.raises(weir.GraphError, match=message):
        job(**options)


def test_another_key_is_refused_when_a_savepoint_is_read():
    with testing.start(job(), {"in": [row("a", 1)]}) as running:
        savepoint = running.savepoint()
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.JsonLines("none", schema=SCHEMA, event_time="at"))
    events.key_by("n").deduplicate("d", parallelism=2).sink("out", weir.Collect())
    with pytest.raises(
        weir.WeirError, match="step 'd': the checkpoint's state is by user, the job now keeps it by n"
    ):
        testing.start(flow, {"in": []}, from_savepoint=savepoint)
