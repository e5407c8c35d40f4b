import json
import re
import signal

import polars as pl
import pytest

import weir
from weir.errors import InputError


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    rows = [{"id": i, "name": f"s{i % 7}", "at": 1000 + i} for i in range(1000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def source(path, **more):
    return weir.JsonLines(path, schema={"id": int, "name": str, "at": int}, event_time="at", **more)


def counting(path, sink=None, parallelism=1, **more):
    flow = weir.Dataflow("counting")
    kept = flow.source("events", source(path, **more), parallelism=parallelism).filter(
        "keep", pl.col("id") % 4 != 0
    )
    counts = kept.key_by("name").count("count", parallelism=parallelism)
    if sink is not None:
        counts.sink("out", sink)
    return flow


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_bounded_flow_runs_to_its_end_and_returns_rows(events, parallelism):
    result = weir.run(counting(events, weir.Collect(), parallelism))
    frame = result["out"].to_polars()
    assert frame.columns == ["id", "name", "at", "count"]
    counts = frame.group_by("name").agg(pl.len().cast(pl.Int64), pl.col("count").max()).sort("name")
    assert counts["len"].to_list() == counts["count"].to_list()
    assert frame.height == 750 == len(result["out"])
    assert result["out"].to_arrow().num_rows == 750
    assert result["out"].to_dicts()[0].keys() == {"id", "name", "at", "count"}
    assert not result.was_stopped


def test_a_branch_without_a_sink_is_collected_and_others_on_request(events):
    result = weir.run(counting(events), collect="keep")
    assert result.steps == list(result) == ["keep", "count"]
    assert len(result["keep"]) == len(result["count"]) == 750
    with pytest.raises(weir.GraphError, match=r"rows of step 'events' were not collected.*collect='events'"):
        result["events"]
    with pytest.raises(weir.GraphError, match=r"no step is called 'cuont'; did you mean 'count'\?"):
        weir.run(counting(events), collect="cuont")


def test_of_a_stream_only_what_leads_to_it_runs(events, tmp_path):
    flow = weir.Dataflow("streams")
    read = flow.source("events", source(events))
    read.map("fails", lambda row: 1 / 0).sink("out", weir.JsonLinesSink(str(tmp_path / "out")))
    kept = read.filter("keep", pl.col("id") < 3)
    assert weir.run(kept)["keep"].to_dicts() == [{"id": i, "name": f"s{i}", "at": 1000 + i} for i in range(3)]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_same_input_gives_the_same_rows_in_the_same_order(events, parallelism):
    runs = [weir.run(counting(events, parallelism=parallelism))["count"].to_dicts() for _ in range(2)]
    assert runs[0] == runs[1]


def test_rows_have_their_times_on_request(events):
    rows = weir.run(counting(events, events=5))["count"].to_dicts(times=True)
    assert [row["_event_time_ms"] for row in rows] == [1001, 1002, 1003]
    assert {"_ingest_time_us", "at"} <= rows[0].keys()


def test_sinks_deliver_at_the_end(events, tmp_path):
    out = tmp_path / "out"
    weir.run(counting(events, weir.JsonLinesSink(str(out)), parallelism=2))
    rows = [json.loads(line) for part in out.glob("part-*.jsonl") for line in part.read_text().splitlines()]
    assert len(rows) == 750
    assert not list(out.glob(".*.pending"))
    with pytest.raises(weir.WeirError, match="exists already"):
        weir.run(counting(events, weir.JsonLinesSink(str(out))))


def test_state_can_be_in_rocksdb(events, tmp_path):
    on_disk = weir.run(counting(events), state_directory=tmp_path / "state")["count"]
    assert on_disk == weir.run(counting(events))["count"]


def test_what_a_function_raises_comes_with_its_step_and_its_traceback(events):
    def divide(row):
        return {"id": row["id"] // (row["id"] - 5)}

    flow = weir.Dataflow("failing")
    flow.source("events", source(events)).map("divide", divide, schema={"id": int})
    with pytest.raises(weir.WeirError, match=r"step 'divide'.*ZeroDivisionError") as raised:
        weir.run(flow)
    cause = raised.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert [entry.name for entry in pytest.ExceptionInfo.from_exception(cause).traceback][-1] == "divide"
    # Between the caller and the step there is nothing of the engine to read.
    assert [entry.name for entry in raised.traceback][1:] == ["run"]


def test_rejected_records_are_in_the_result(events, tmp_path):
    with open(events, "a") as file:
        file.write('{"id": "x"}\nno json\n')
    result = weir.run(counting(events), dead_letter_directory=tmp_path / "letters")
    assert [letter.step for letter in result.dead_letters] == ["events"] * 2
    assert result.dead_letters[1].raw == "no json"
    assert result.dead_letters[0].source == events
    assert result.dead_letters[0].position > 0
    assert list((tmp_path / "letters").rglob("*.jsonl"))
    assert len(result["count"]) == 750


def test_a_run_of_which_no_record_is_good_fails_and_delivers_nothing(tmp_path):
    """The schema says text, and the file has integers."""
    path, out = tmp_path / "events.jsonl", tmp_path / "out"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(100)))
    flow = weir.Dataflow("ids")
    events = flow.source("events", weir.JsonLines(str(path), schema={"id": str}))
    events.sink("out", weir.JsonLinesSink(str(out)))
    with pytest.raises(
        weir.WeirError, match=r"source 'events' rejected 100 records; the first: .*events\.jsonl at 0: .*id"
    ):
        weir.run(flow)
    assert not list(out.glob("part-*"))
    # It names no file that goes with the run.
    with pytest.raises(weir.WeirError, match=r"id must be string.*; dead_letter_directory= keeps") as raised:
        weir.run(flow)
    assert "dead letters:" not in str(raised.value)
    letters = tmp_path / "letters"
    with pytest.raises(weir.WeirError, match=re.escape(f"dead letters: {letters}")):
        weir.run(flow, dead_letter_directory=letters)


def test_a_strict_run_fails_at_a_rejected_record_and_delivers_nothing(events, tmp_path):
    out = tmp_path / "out"
    flow = counting(events, weir.JsonLinesSink(str(out)))
    with open(events, "a") as file:
        file.write('{"id": "x"}\n')
    with pytest.raises(
        weir.WeirError, match=r"source 'events' rejected 1 record; the first: .*field id .*strict=True"
    ):
        weir.run(flow, strict=True)
    assert not list(out.glob("part-*"))
    assert len(weir.run(flow).dead_letters) == 1


def test_a_source_that_is_paced_can_be_stopped(events, tmp_path):
    out = tmp_path / "out"
    result = weir.run(counting(events, weir.JsonLinesSink(str(out)), rate=5_000), for_s=0.05, collect="count")
    assert result.was_stopped
    assert 0 < len(result["count"]) < 750
    assert len(list(out.glob("part-*"))) == 1
    result = weir.run(counting(events, rate=2_000), until=lambda so_far: len(so_far["count"]) >= 10)
    assert result.was_stopped
    assert 10 <= len(result["count"]) < 750


def test_ctrl_c_ends_a_run_in_order(events):
    def interrupt(so_far):
        if len(so_far["count"]) >= 10:
            signal.raise_signal(signal.SIGINT)
        return False

    before = signal.getsignal(signal.SIGINT)
    result = weir.run(counting(events, rate=5_000), until=interrupt)
    assert result.was_stopped
    assert len(result["count"]) < 750
    assert signal.getsignal(signal.SIGINT) is before


def test_a_dataflow_is_needed():
    with pytest.raises(
        weir.GraphError, match=r"expected a weir\.Dataflow or one of its streams, got function"
    ):
        weir.run(counting)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"for_s": "10s"}, "for_s is '10s'; it must be a number of seconds"),
        ({"collect": 5}, "collect is 5; give the name of a step, or a list of names"),
        ({"collect": ["count", 5]}, r"collect is \['count', 5\]"),
    ],
)
def test_settings_of_a_run_that_make_no_sense(settings, message):
    with pytest.raises(weir.GraphError, match=message):
        weir.run(counting("none"), **settings)


def test_a_directory_of_folders_is_read_by_a_glob(tmp_path):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.jsonl").write_text('{"id": 1}\n')
    flow = weir.Dataflow("folders")
    flow.source("rows", weir.JsonLines(str(tmp_path), schema={"id": int})).sink("out", weir.Collect())
    with pytest.raises(InputError, match=r"folders within it are read as (\S+/\*\*/\*)\)") as refused:
        weir.run(flow)
    found = re.search(r"as (\S+/\*\*/\*)\)", str(refused.value))
    flow = weir.Dataflow("folders")
    flow.source("rows", weir.JsonLines(found[1], schema={"id": int})).sink("out", weir.Collect())
    assert weir.run(flow)["out"].to_dicts() == [{"id": 1}]
