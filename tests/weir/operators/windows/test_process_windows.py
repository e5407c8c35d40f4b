"""Windows whose rows an author's code gets: equal to the same code over the rows in plain Python."""

import re

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings

import weir
from tests.effort import cases
from weir import testing
from weir.operators.windows.panes.kept_values import KeptValues
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = {"k": str, "at": int, "v": int}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from(["", "a", "ab"]), "at": st.integers(0, 80), "v": st.integers(-9, 9)}
    ),
    max_size=40,
)
WINDOWS = st.sampled_from([weir.tumbling(20), weir.sliding(30, 10), weir.cumulative(20, 5), weir.session(5)])


class Range(weir.Aggregator):
    accumulator = list[int]

    def create(self):
        return []

    def add(self, accumulator, rows):
        return self.merge(accumulator, rows["v"].to_list())

    def merge(self, left, right):
        values = [*left, *right]
        return [min(values), max(values)] if values else []

    def result(self, accumulator):
        return {"low": accumulator[0], "high": accumulator[1]}


def in_order(key, window, rows):
    """Each value with its place; windows that begin with an even value say nothing."""
    assert rows.columns == ["k", "at", "v"]
    assert (
        rows["at"].is_between(window.start_ms, window.end_ms, closed="left" if rows.height else "both").all()
    )
    assert rows["k"].unique().to_list() == [key["k"]]
    if rows["v"][0] % 2 == 0:
        return None
    return rows.select("v", "at", place=pl.int_range(pl.len(), dtype=pl.Int64))


def windows(flow, window, lateness=0, out_of_order="30ms"):
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
    source = flow.source("rows", events, watermark=weir.bounded_out_of_orderness(out_of_order))
    return source.key_by("k").window(window, allowed_lateness=lateness)


def results(flow, rows):
    """Rows come in two parts, with a restart between them."""
    with testing.start(flow, watermarks="follow_rows") as job:
        half = len(rows) // 2
        job.push("rows", rows[:half])
        job.checkpoint()
        job.restart()
        job.push("rows", rows[half:])
        return job.finish()["out"]


@given(rows=ROWS, window=WINDOWS)
@settings(max_examples=cases(5), deadline=None)
def test_an_aggregator_of_ones_own_equals_min_and_max(rows, window):
    mine, built_in = weir.Dataflow("mine"), weir.Dataflow("built_in")
    made = windows(mine, window).aggregate_with("w", Range, {"low": int, "high": int})
    made.sink("out", weir.Collect())
    wanted = windows(built_in, window).aggregate("w", low=weir.min("v"), high=weir.max("v"))
    wanted.sink("out", weir.Collect())
    assert sorted(results(mine, rows), key=str) == sorted(results(built_in, rows), key=str)


@given(rows=ROWS, window=WINDOWS)
@settings(max_examples=cases(5), deadline=None)
def test_a_function_gets_all_rows_of_each_window_in_the_order_of_event_times(rows, window):
    flow, counted = weir.Dataflow("mine"), weir.Dataflow("counted")
    schema = {"v": int, "at": int, "place": int}
    windows(flow, window).process("w", in_order, schema).sink("out", weir.Collect())
    told = {}
    for row in results(flow, rows):
        bounds = (row["k"], row["window_start"], row["window_end"])
        told.setdefault(bounds, []).append((row["at"], row["v"], row["place"]))
    first = windows(counted, window).aggregate("w", n=weir.count(), first=weir.first("v"))
    first.sink("out", weir.Collect())
    wanted = {
        (row["k"], row["window_start"], row["window_end"]): row["n"]
        for row in results(counted, rows)
        if row["first"] % 2
    }
    assert {bounds: len(found) for bounds, found in told.items()} == wanted
    for found in told.values():
        assert [place for _, _, place in found] == list(range(len(found)))
        assert [at for at, _, _ in found] == sorted(at for at, _, _ in found)


@given(
    parts=st.lists(ROWS, max_size=5),
    window=st.one_of(WINDOWS, st.sampled_from([weir.session(5), weir.session(12)])),
    lateness=st.sampled_from([1, 15, 60]),
    keyless=st.booleans(),
)
@settings(max_examples=cases(5), deadline=None)
def test_code_of_ones_own_is_called_again_for_windows_with_late_rows(parts, window, lateness, keyless):
    """Just as often, and with the same rows, as built-in aggregates are told again."""

    def told(name, step):
        flow = weir.Dataflow(name)
        events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
        source = flow.source("rows", events, watermark=weir.bounded_out_of_orderness("5ms"))
        made = step(
            source.window_all(window, allowed_lateness=lateness)
            if keyless
            else source.key_by("k").window(window, allowed_lateness=lateness)
        )
        made.sink("out", weir.Collect())
        made.side_output("late").sink("too_late", weir.Collect())
        with testing.start(flow, watermarks="follow_rows") as job:
            for number, rows in enumerate(parts):
                job.push("rows", rows)
                if number == 1:
                    job.checkpoint()
                    job.restart()
            found = job.finish()
        return [sorted(found[sink], key=str) for sink in ("out", "too_late")]

    wanted = told(
        "built_in", lambda w: w.aggregate("w", low=weir.min("v"), high=weir.max("v"), n=weir.count())
    )
    extremes = told("own", lambda w: w.aggregate_with("w", Range, {"low": int, "high": int}))
    assert extremes == [[{k: row[k] for k in row if k != "n"} for row in wanted[0]], wanted[1]]
    schema = {"low": int, "high": int, "n": int}

    code = extremes_of_all if keyless else extremes_of_key
    assert told("rows", lambda w: w.process("w", code, schema)) == wanted


def extremes_of_all(window, rows):
    return rows.select(low=pl.col("v").min(), high=pl.col("v").max(), n=pl.len().cast(pl.Int64))


def extremes_of_key(key, window, rows):
    return extremes_of_all(window, rows)


@pytest.mark.parametrize("window", [weir.tumbling(20), weir.sliding(40, 20), weir.session(10)])
def test_rows_of_windows_stay_for_the_allowed_lateness_and_no_longer(monkeypatch, window):
    kept = set()
    put, clear = KeptValues.put, KeptValues.clear

    def noted_put(self, values):
        kept.update(owner for owner, _, _ in values)
        put(self, values)

    def noted_clear(self, owners):
        kept.difference_update(owners)
        clear(self, owners)

    monkeypatch.setattr(KeptValues, "put", noted_put)
    monkeypatch.setattr(KeptValues, "clear", noted_clear)
    flow = weir.Dataflow("kept")
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
    made = flow.source("rows", events).key_by("k").window(window, allowed_lateness=100)
    made.process("w", extremes_of_key, {"low": int, "high": int, "n": int}).sink("out", weir.Collect())
    # A session leaves when the watermark has passed its end.
    end_ms = {"tumbling": 20, "sliding": 40, "session": 17}[window.kind]
    with testing.start(flow, {"rows": []}) as job:
        job.push("rows", [{"k": "a", "at": 6, "v": 1}, {"k": "b", "at": 6, "v": 1}])
        job.advance_watermark("rows", end_ms)
        job.push("rows", [{"k": "a", "at": 5, "v": 3}])
        job.advance_watermark("rows", end_ms + 99)
        assert len(kept) == 2
        job.restart()
        job.advance_watermark("rows", end_ms + 100)
        assert not kept
        rows = [(row["k"], row["window_end"], row["n"]) for row in job.rows("out")]
    wanted = [("a", 16, 1), ("a", 16, 2)] if window.kind == "session" else [("a", 20, 1), ("a", 20, 2)]
    assert sorted(rows)[:2] == wanted


def test_values_of_a_pane_lie_under_the_bytes_of_the_golden_form():
    backend = MemoryBackend()
    tables = StateTables(backend, 1 << 20, 4)
    kept = KeptValues(tables.of("step", {"rows": 5}), "rows")
    owner, other = kept.owners([3, 3], [20, 20], [b"ab", b"abc"])
    kept.put([(owner, 0, b"first"), (owner, 2, b"second"), (other, 0, b"other")])
    assert kept.of([other, owner]) == [[b"other"], [b"first", b"second"]]
    tables.flush()
    assert [(key.hex(), value) for key, value in backend.scan()] == [
        ("0003000500" + "8000000000000014" + "00000002" + "6162" + "0000000000000000", b"first"),
        ("0003000500" + "8000000000000014" + "00000002" + "6162" + "0000000000000002", b"second"),
        ("0003000500" + "8000000000000014" + "00000003" + "616263" + "0000000000000000", b"other"),
    ]
    kept.clear([owner])
    tables.flush()
    assert [value for _, value in backend.scan()] == [b"other"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda key, window, rows: rows["nothing"],
            r"raised ColumnNotFoundError.*of the window \(0, 20\) of {'k': 'a'}",
        ),
        (lambda key, window, rows: 5, r"returned int, not a pl.DataFrame or None; of the window \(0, 20\)"),
        (lambda key, window, rows: rows.select("k"), r"returned columns k; declared are n"),
        (lambda key, window, rows: rows.select(n=pl.lit("x")), r"returned other types than declared"),
    ],
)
def test_errors_of_a_function_name_the_step_and_the_window(function, message):
    flow = weir.Dataflow("wrong")
    windows(flow, weir.tumbling(20)).process("w", function, {"n": int}).sink("out", weir.Collect())
    with pytest.raises(weir.WeirError, match="(?s)step 'w': .*" + message):
        results(flow, [{"k": "a", "at": 5, "v": 1}])


def test_what_cannot_be_used_is_refused_when_the_graph_is_built():
    flow = weir.Dataflow("refused")
    made = windows(flow, weir.tumbling(20))
    with pytest.raises(
        weir.GraphError, match=re.escape("aggregate_with takes a weir.Aggregator class, got list")
    ):
        made.aggregate_with("a", list, {"n": int})
    with pytest.raises(weir.GraphError, match="every result has column 'k'"):
        made.process("b", in_order, {"k": str})


def times_of(key, window, rows):
    return rows.select("at")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        # Key a goes on in the next pane, and then a row comes into the one before.
        ([("a", 5), ("a", 12), 18, ("a", 9)], [("a", 5, 22, 5), ("a", 5, 22, 9), ("a", 5, 22, 12)]),
        # Its session is over, and a row begins another one in the same pane.
        ([("a", 2), 18, ("a", 9)], [("a", 2, 12, 2), ("a", 9, 19, 9)]),
        # The pane of key c has been looked at.
        ([("a", 2), 18, ("c", 9)], [("a", 2, 12, 2), ("c", 9, 19, 9)]),
    ],
)
def test_sessions_keep_rows_that_come_when_the_watermark_is_beyond_their_pane(steps, told):
    flow = weir.Dataflow("late")
    events = weir.JsonLines("rows.jsonl", schema={"k": str, "at": int}, event_time="at")
    sessions = flow.source("rows", events).key_by("k").window(weir.session(10))
    sessions.process("w", times_of, {"at": int}).sink("out", weir.Collect())
    with testing.start(flow, {"rows": []}) as job:
        for step in [*steps, 20, 30, 40]:
            if isinstance(step, int):
                job.advance_watermark("rows", step)
            else:
                job.push("rows", [dict(zip(("k", "at"), step, strict=True))])
        rows = [(row["k"], row["window_start"], row["window_end"], row["at"]) for row in job.rows("out")]
    assert sorted(rows) == told
