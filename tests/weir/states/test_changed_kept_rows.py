"""Windows that keep rows, after a change of what they keep: rows of before lack a column, or have one more."""

import polars as pl
import pytest

import weir
from benchmarks.changed.rows import SCHEMA, rows_of
from weir import testing
from weir.errors import WeirError

BEFORE, AFTER = rows_of(1, 12, keys=1), rows_of(2, 12, first_ms=12, keys=1)
KINDS = {
    "tumbling": weir.tumbling("20ms"),
    "sliding": weir.sliding("20ms", "10ms"),
    "session": weir.session("5ms"),
}


def told(build, changed, tmp_path):
    """What the changed job tells after a savepoint in the middle."""
    with testing.start(job(build), {"events": BEFORE}) as running:
        savepoint = running.savepoint(tmp_path / "savepoint")
    with testing.start(job(changed), {"events": AFTER}, from_savepoint=savepoint) as running:
        return list(running.finish()["out"])


def job(build):
    flow = weir.Dataflow("kept")
    rows = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    build(rows).sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregate_of_another_column_is_null_over_rows_that_were_kept(kind, tmp_path):
    def windowed(**more):
        texts = {"n": weir.count(), "word": weir.min("word")}
        return lambda rows: rows.key_by("k").window(KINDS[kind]).aggregate("w", **texts, **more)

    more = {"most": weir.max("x"), "bad": weir.count().where(pl.col("code") >= 3)}
    for row in told(windowed(), windowed(**more), tmp_path):
        within = range(row["window_start"], row["window_end"])
        new = [each for each in AFTER if each["at"] in within]
        assert row["n"] == len([each for each in BEFORE if each["at"] in within]) + len(new)
        assert row["most"] == max((each["x"] for each in new), default=None)
        assert row["bad"] == len([each for each in new if each["code"] >= 3])


def whole_rows(*dropped, **settings):
    def counted(key, window, frame):
        return pl.DataFrame({"columns": [",".join(frame.columns)], "n": [frame.height]})

    return lambda rows: (
        (rows.drop("fewer", *dropped) if dropped else rows)
        .key_by("k")
        .window(KINDS["tumbling"])
        .process("w", counted, {"columns": str, "n": int}, **settings)
    )


def test_a_function_of_rows_gets_null_for_a_new_column_that_may_be_null(tmp_path):
    rows = told(whole_rows("num"), whole_rows(), tmp_path)
    assert [(row["columns"], row["n"]) for row in rows] == [(",".join(SCHEMA), 20), (",".join(SCHEMA), 4)]
    fewer = told(whole_rows(), whole_rows("x"), tmp_path / "fewer")
    assert [row["n"] for row in fewer] == [20, 4]
    assert "x" not in fewer[0]["columns"].split(",")


def test_a_function_of_rows_is_refused_a_new_column_that_is_never_null(tmp_path):
    with pytest.raises(WeirError, match="step 'w': the checkpoint's state has rows"):
        told(whole_rows("x"), whole_rows(), tmp_path)


def test_windows_of_so_many_rows_go_on_with_another_column_and_a_wider_one(tmp_path):
    def counted(dtype, **more):
        return lambda rows: (
            rows.with_columns("typed", pl.col("code").cast(dtype))
            .key_by("k")
            .count_window(8)
            .aggregate("w", n=weir.count(), code=weir.sum("code"), **more)
        )

    first = told(counted(pl.Int32), counted(pl.Int64, most=weir.max("x")), tmp_path)[0]
    # The rows from 8 on, four of which were kept.
    assert first["code"] == sum(each["code"] for each in [*BEFORE[8:], *AFTER[:4]])
    assert first["most"] == max(each["x"] for each in AFTER[:4])


def test_the_first_text_of_windows_that_kept_numbers_is_refused_with_the_reason(tmp_path):
    def windowed(**aggregates):
        return lambda rows: rows.key_by("k").window(KINDS["tumbling"]).aggregate("w", **aggregates)

    n = weir.count()
    with pytest.raises(WeirError, match=r"step 'w'.*keep rows, others keep numbers"):
        told(windowed(n=n), windowed(n=n, word=weir.min("word")), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_text_of_windows_that_had_numbers_begins_at_its_first_value(kind, tmp_path):
    def windowed(**aggregates):
        return lambda rows: rows.key_by("k").window(KINDS[kind]).aggregate("w", **aggregates)

    n, last = weir.count(), weir.last("word")
    for row in told(windowed(n=n), windowed(word=last, n=n), tmp_path):
        within = range(row["window_start"], row["window_end"])
        words = [each["word"] for each in AFTER if each["at"] in within and each["word"] is not None]
        assert row["n"] == len([each for each in [*BEFORE, *AFTER] if each["at"] in within])
        assert row["word"] == (words[-1] if words else None)


@pytest.mark.parametrize("kind", ["tumbling", "session", "running"])
@pytest.mark.parametrize(("before", "after"), [(str, bytes), (bytes, str)])
def test_texts_and_bytes_are_told_apart(kind, before, after, tmp_path):
    """Bytes that are no text would be told as one."""

    def job(dtype):
        flow = weir.Dataflow("typed")
        schema = {"k": int, "at": int, "v": dtype}
        keyed = flow.source("rows", weir.JsonLines("/absent", schema=schema, event_time="at")).key_by("k")
        windows = {"tumbling": weir.tumbling("1h"), "session": weir.session("1h")}
        if kind == "running":
            made = keyed.aggregate("step", different=weir.count_distinct("v"))
        else:
            made = keyed.window(windows[kind]).aggregate("step", first=weir.first("v"))
        made.sink("out", weir.Collect())
        return flow

    value = {str: "é", bytes: b"\xff"}
    with testing.start(job(before), {"rows": [{"k": 1, "at": 1, "v": value[before]}]}) as running:
        path = running.savepoint(tmp_path / "savepoint")
    with pytest.raises(WeirError, match=r"step 'step'.*(string.*binary|binary.*string)"):
        testing.start(job(after), {"rows": []}, from_savepoint=path)
    with testing.start(job(before), {"rows": ()}, from_savepoint=path) as running:
        running.push("rows", [{"k": 1, "at": 2, "v": value[before]}])
        assert next(iter(running.finish()["out"]))
