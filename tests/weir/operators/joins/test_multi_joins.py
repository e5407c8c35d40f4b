"""Joins of several streams in one step, against Polars' joins one after the other."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.joins.join_jobs import SEAL_BYTES
from weir import testing
from weir.errors import GraphError
from weir.operators.joins import row_chunks

KEYS = ("a", "b", "c")
NAMES = ("left", "middle", "right")
STEPS = drawn.drawn(
    drawn.lists(
        drawn.one_of(
            drawn.just("savepoint"),
            drawn.tuples(drawn.just("watermark"), drawn.integers(0, 2), drawn.integers(0, 9)),
            drawn.tuples(
                drawn.just("rows"),
                drawn.integers(0, 2),
                drawn.lists(
                    drawn.tuples(drawn.one_of(drawn.just(None), drawn.integers(0, 2)), drawn.integers(0, 9)),
                    max_size=6,
                ),
            ),
        ),
        max_size=12,
    ),
    byte_count=200,
)
QUICK = settings(max_examples=cases(8), deadline=None, suppress_health_check=list(HealthCheck))


def flow_of(**arguments):
    flow = weir.Dataflow("many", max_parallelism=4)
    streams = [
        flow.source(
            name,
            weir.JsonLines("/absent", schema={key: weir.Nullable(int), "at": int, "v": int}, event_time="at"),
        ).key_by(key)
        for name, key in zip(NAMES, KEYS, strict=True)
    ]
    joined = streams[0].join_all("j", *streams[1:], parallelism=2, **arguments)
    joined.sink("out", weir.Collect())
    return flow, joined


def expected(sides, goes_together):
    frames = [
        pl.DataFrame(
            rows, schema={"a": pl.Int64, f"at{number}": pl.Int64, f"v{number}": pl.Int64}, orient="row"
        )
        for number, rows in enumerate(sides)
    ]
    found = frames[0].join(frames[1], on="a").join(frames[2], on="a")
    return Counter(row for row in found.rows() if goes_together([row[1], row[3], row[5]]))


@pytest.mark.parametrize(
    ("arguments", "goes_together"),
    [
        ({}, lambda times: True),
        ({"within": "4ms"}, lambda times: max(times) - min(times) <= 4),
        ({"window": weir.tumbling("5ms")}, lambda times: len({time // 5 for time in times}) == 1),
    ],
    ids=["without bounds", "within", "window"],
)
@QUICK
@given(steps=STEPS, seal_bytes=st.sampled_from([SEAL_BYTES, 60, 1]))
def test_the_result_is_that_of_joins_one_after_the_other(arguments, goes_together, steps, seal_bytes):
    row_chunks.SEAL_BYTES = seal_bytes
    sides, watermarks, told, number = ([], [], []), [0, 0, 0], Counter(), 0
    job = testing.start(flow_of(**arguments)[0])
    try:
        for step in steps:
            match step:
                case "savepoint":
                    savepoint = job.savepoint()
                    told.update(job.rows("j").to_polars().rows() if len(job.rows("j").to_dicts()) else [])
                    job.stop()
                    job = testing.start(flow_of(**arguments)[0], from_savepoint=savepoint)
                    for name, time_ms in zip(NAMES, watermarks, strict=True):
                        if time_ms:
                            job.advance_watermark(name, time_ms)
                case "watermark", side, by:
                    watermarks[side] += by
                    if by:
                        job.advance_watermark(NAMES[side], watermarks[side])
                case "rows", side, made:
                    rows = []
                    for key, ahead in made:
                        number += 1
                        rows.append((key, watermarks[side] + ahead, number))
                    sides[side].extend(rows)
                    names = (KEYS[side], "at", "v")
                    job.push(NAMES[side], [dict(zip(names, row, strict=True)) for row in rows])
        told.update(map(tuple, (row.values() for row in job.finish()["j"].to_dicts())))
    finally:
        job.stop()
    assert told == expected(sides, goes_together)


def test_columns_and_state_of_one_step():
    flow, joined = flow_of(within="1m")
    assert joined.schema.names == ["a", "at", "v", "at_2", "v_2", "at_3", "v_3"]
    assert joined.key_columns == ("a",)
    joined.side_output("late_2").sink("late", weir.Collect())
    with testing.start(flow) as job:
        for name, key in zip(NAMES, KEYS, strict=True):
            job.push(name, [{key: 1, "at": 1_000, "v": 1}])
        assert len(job.rows("j").to_dicts()) == 1
        for name in NAMES:
            job.advance_watermark(name, 2_000)
        job.push("middle", [{"b": 1, "at": 1_500, "v": 2}])
        result = job.finish()
    assert result["late"].to_dicts() == [{"b": 1, "at": 1_500, "v": 2}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"within": "soon"}, "within: 'soon' is not a duration"),
        ({"within": "1s", "window": weir.tumbling("1s")}, "within and window are given; give one of them"),
        ({"window": weir.session("1s")}, "window is one of kind session"),
        ({"window": weir.sliding("2s", "1s")}, "window is a sliding one, and join_all takes tumbling ones"),
        (
            {"how": "full"},
            "how is 'full'; join_all takes inner and left: write other joins one after the other",
        ),
        (
            {"how": "left", "within": "1s"},
            "how='left' does not go with within=.*write left joins one after the other",
        ),
        ({"suffixes": ("_x",)}, "1 suffixes are given for 2 other streams"),
        ({"suffixes": ("", "_x")}, "column 'at' of stream 2 would be called 'at', which is there already"),
    ],
)
def test_what_is_wrong_is_said_when_the_join_is_written_down(arguments, message):
    with pytest.raises(GraphError, match=f"^step 'j': .*{message}"):
        flow_of(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, None),
        ({"within": "90s"}, "all within 90s"),
        ({"window": weir.tumbling("1h")}, "the same window of 1h"),
        ({"window": weir.tumbling("1h"), "how": "left"}, "the same window of 1h"),
        ({"how": "left"}, None),
    ],
)
def test_a_plan_tells_which_rows_go_together(arguments, text):
    assert flow_of(**arguments)[1].node.spec.time_words == text


def test_columns_of_streams_that_may_lack_rows_are_nullable():
    for how, nullable in (("inner", [False] * 7), ("left", [True, False, False, *[True] * 4])):
        assert [
            field.nullable for field in flow_of(how=how, window=weir.tumbling("1m"))[1].schema
        ] == nullable


def test_a_changelog_is_taken_without_bounds_only():
    streams = [
        weir.Dataflow("changes")
        .source("a", weir.JsonLines("/x", schema={"k": int, "_change": str}))
        .key_by("k")
    ] * 3
    assert "_change" in streams[0].join_all("j", *streams[1:]).schema.names
    for bounds in ({"within": "1s"}, {"window": weir.tumbling("1s")}):
        with pytest.raises(
            GraphError, match=r"join_all takes only rows .* without within= and window= join_all takes"
        ):
            streams[0].join_all("k", *streams[1:], **bounds)


def test_one_other_stream_is_joined_with_join():
    flow = weir.Dataflow("few")
    one, two = (
        flow.source(name, weir.JsonLines("/x", schema={"k": int})).key_by("k") for name in ("one", "two")
    )
    with pytest.raises(GraphError, match="step 'j': join_all takes 2 to 15 other streams, not 1"):
        one.join_all("j", two)
    other = flow.source("three", weir.JsonLines("/x", schema={"k": str})).key_by("k")
    with pytest.raises(
        GraphError, match=r"step 'j': key column 'k' of the 1\. side is int64, 'k' of the 3\. one is str"
    ):
        one.join_all("j", two, other)
