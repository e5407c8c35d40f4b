import io

import polars as pl
import pytest
from rich.console import Console

import weir
from weir.console.plan_drawing import draw
from weir.plan.document import plan_document
from weir.plan.stages import physical_graph


def test_the_plan_names_every_step_and_how_rows_get_there():
    flow = weir.Dataflow("counts")
    events = flow.source("events", weir.JsonLines("in", schema={"id": int, "server": str}))
    kept = events.filter("keep", pl.col("id") > 3)
    kept.key_by("server").count("count", parallelism=2).sink("out", weir.Print())
    events.rebalance().sink("all", weir.Blackhole(), parallelism=3)
    out = io.StringIO()
    Console(file=out, width=200).print(draw(physical_graph(flow.build())))
    text = out.getvalue()
    assert "counts  5 steps" in text
    for step in (
        "events (json_lines_source, the time of reading, watermark at out_of_order_grace_period)",
        "keep (filter)",
        "count (",
        "keeps state",
        "out (",
        "all (blackhole",
    ):
        assert step in text
    assert "by server stage" in text
    assert "in turn stage" in text
    assert "x 3" in text
    assert "not read" not in text
    assert "only" not in text


def test_the_plan_tells_what_is_not_read_and_not_sent():
    flow = weir.Dataflow("narrow")
    events = flow.source("events", weir.JsonLines("in", schema={"id": int, "server": str, "note": str}))
    kept = events.filter("keep", pl.col("id") > 3).key_by("server").count("n")
    kept.select("chosen", "server", "n").sink("out", weir.Print())
    out = io.StringIO()
    graph = physical_graph(flow.build())
    Console(file=out, width=200).print(draw(graph))
    assert "grace_period)  id: int64, server: string  not read: note" in out.getvalue()
    assert "by server (only server) stage 1" in out.getvalue()
    document = plan_document(graph)
    assert document["operators"][0]["columns_not_read"] == ["note"]
    assert document["edges"][0]["columns"] == ["server"]


def test_the_plan_tells_which_row_groups_are_read():
    flow = weir.Dataflow("pruned")
    rows = flow.source("rows", weir.Parquet("in", schema={"id": int, "name": str}))
    rows.filter("keep", pl.col("id").is_between(3, 9) & (pl.col("name") != "x")).sink("out", weir.Print())
    out = io.StringIO()
    Console(file=out, width=200).print(draw(physical_graph(flow.build())))
    assert "name: string  row groups: (id >= 3 and id <= 9)" in out.getvalue()


def test_the_plan_tells_of_keys_states_windows_and_watermarks():
    flow = weir.Dataflow("timed")
    schema = {"id": int, "at_ms": int}
    watermark = weir.bounded_out_of_orderness("2s", idle_timeout="1500ms")
    left, right = (
        flow.source(name, weir.JsonLines("in", schema=schema), event_time="at_ms", watermark=watermark)
        for name in ("left", "right")
    )
    other = right.rename("named", {"id": "of"}).key_by("of")
    joined = left.key_by("id").join("joined", other, within=("-1s", "5s"))
    counts = joined.key_by("id").window(weir.sliding("1m", "10s")).aggregate("counts", n=weir.count())
    counts.select("some", "id", "n").key_by("id").count("n2").sink("out", weir.Blackhole())
    graph = physical_graph(flow.build())
    out = io.StringIO()
    Console(file=out, width=300).print(draw(graph))
    text = out.getvalue()
    assert "left (json_lines_source, at_ms, watermark 2s behind, idle after 1500ms)" in text
    assert (
        "joined (join, keeps state rows, _expiry, _recent by id = of, from -1000 ms to +5000 ms of the left row)"
        in text
    )
    assert "counts (window_aggregate, keeps state by id, sliding 1m by 10s)" in text
    operators = {item["name"]: item for item in plan_document(graph)["operators"]}
    assert operators["joined"]["states"] == ["joined/rows", "joined/_expiry", "joined/_recent"]
    assert operators["joined"]["key_columns"] == [["id"], ["of"]]
    assert operators["counts"]["window"] == "sliding 1m by 10s"
    assert operators["left"]["event_time"] == "at_ms, watermark 2s behind, idle after 1500ms"
    # Windows and the count go by the key of the join.
    assert graph.stages[-1].name == "joined -> counts -> some -> n2 -> out"


def test_the_plan_tells_what_deduplicate_of_a_changelog_keeps():
    flow = weir.Dataflow("winners")
    schema = {"auction": int, "bidder": str, "price": int, "at": int, "note": str}
    bids = flow.source("bids", weir.JsonLines("in", schema=schema), event_time="at")
    won = bids.key_by("auction").top("won", by="price", rows=1)
    latest = won.key_by("bidder").deduplicate("latest", keep="last", by="at")
    latest.select("few", "bidder", "auction", "_change").sink("out", weir.Blackhole())
    graph = physical_graph(flow.build())
    operators = {item["name"]: item for item in plan_document(graph)["operators"]}
    assert operators["latest"]["states"] == ["latest/top", "latest/owed"]
    assert operators["latest"]["key_columns"] == [["bidder"]]
    out = io.StringIO()
    Console(file=out, width=300).print(draw(graph))
    assert "latest (changelog_top, keeps state top, owed by bidder)" in out.getvalue()
    # The order is read, though nobody reads it afterwards.
    assert operators["bids"]["columns_not_read"] == ["note"]


def test_the_plan_tells_of_windows_over_a_changelog():
    flow = weir.Dataflow("winners")
    schema = {"auction": int, "bidder": str, "price": int, "at": int}
    bids = flow.source("bids", weir.JsonLines("in", schema=schema), event_time="at")
    won = bids.key_by("auction").top("won", by="price", rows=1)
    timed = won.assign_event_time("timed", "at", watermark=weir.bounded_out_of_orderness("1h"))
    made = timed.key_by("bidder").window(weir.tumbling("1m")).aggregate("totals", n=weir.count())
    made.sink("out", weir.Blackhole())
    graph = physical_graph(flow.build())
    out = io.StringIO()
    Console(file=out, width=300).print(draw(graph))
    assert 'timed (assign_event_time, col("at"), watermark 1h behind)' in out.getvalue()
    assert "totals (changelog_window, keeps state rows by bidder, tumbling 1m)" in out.getvalue()
    assert "totals.columns (select)  bidder: string, _change: string" in out.getvalue()
    operators = {item["name"]: item for item in plan_document(graph)["operators"]}
    assert operators["totals"]["window"] == "tumbling 1m"


@pytest.mark.parametrize(
    ("times", "told"),
    [({}, ["people"]), ({"event_time": pl.lit(0)}, [])],
)
def test_the_plan_tells_which_windows_go_by_the_time_of_reading(times, told):
    flow = weir.Dataflow("read")
    visits = flow.source("visits", weir.JsonLines("in", schema={"id": int, "at_ms": int}), event_time="at_ms")
    people = flow.source("people", weir.JsonLines("in", schema={"person": int, "city": str}), **times)
    table = people.key_by("person")
    joined = visits.key_by("id").join("joined", table)
    joined.key_by("city").window(weir.tumbling("1m")).aggregate("w", n=weir.count()).sink(
        "a", weir.Blackhole()
    )
    # Pairs as of a time have that of the visit; what is given another time, and what goes by no time, is as it was.
    latest = visits.key_by("id").join_as_of("latest", table)
    latest.key_by("city").window(weir.tumbling("1m")).aggregate("of_latest", n=weir.count()).sink(
        "b", weir.Blackhole()
    )
    again = joined.assign_event_time("again", "at_ms").key_by("city")
    again.window(weir.session("1m")).aggregate("of_again", n=weir.count()).sink("c", weir.Blackhole())
    joined.key_by("city").count("all").sink("d", weir.Blackhole())
    graph = physical_graph(flow.build())
    found = {item["name"]: item["sources_by_reading_time"] for item in plan_document(graph)["operators"]}
    assert {name for name, sources in found.items() if sources} == ({"w", "latest"} if told else set())
    assert found["w"] == found["latest"] == told
    out = io.StringIO()
    Console(file=out, width=300).print(draw(graph))
    assert out.getvalue().count("by the time of reading: people has no event time") == 2 * len(told)


@pytest.mark.parametrize(
    ("window", "options", "text"),
    [
        (weir.tumbling("1m"), {"allowed_lateness": "5s"}, "tumbling 1m, 5s late"),
        (
            weir.sliding("1m", "10s"),
            {"early": weir.every("2s", time="event")},
            "sliding 1m by 10s, early every 2s of event time",
        ),
        (
            weir.global_window(),
            {"early": weir.every(rows=9), "results": "discarding"},
            "global, early every 9 rows, discarding",
        ),
    ],
)
def test_the_plan_tells_when_windows_tell(window, options, text):
    flow = weir.Dataflow("windows")
    events = flow.source("events", weir.JsonLines("/absent", schema={"id": int, "at": int}, event_time="at"))
    counts = events.key_by("id").window(window, **options).aggregate("counts", n=weir.count())
    assert counts.node.spec.time_words == text
