import json
from collections import defaultdict

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.protocol.job.event_counts import EventCounts
from weir.testing import PerSubtask, Watermark

SCHEMA = {"id": int, "name": str, "at": int}


def counting(sink=None, *, sources=1, parallelism=1, output="count"):
    flow = weir.Dataflow("counting")
    events = flow.source(
        "events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"), parallelism=sources
    )
    counts = events.filter("keep", pl.col("id") % 4 != 0).key_by("name")
    counts.count("count", output, parallelism=parallelism).sink("out", sink or weir.Collect())
    return flow


def rows(*ids):
    return [{"id": i, "name": f"s{i % 3}", "at": 1000 + i} for i in ids]


class LastWatermark(weir.KeyedProcess):
    """Marks rows that are late; at a watermark it emits nothing, it remembers it."""

    watermark_ms = 0

    def process_batch(self, batch, context):
        late = pa.array([at < self.watermark_ms for at in batch.column("at").to_pylist()])
        names = ["id", "name", "at"]
        yield pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in names), late, *batch.columns[3:]],
            names=[*names, "late", *batch.schema.names[3:]],
        )

    def on_watermark(self, time_ms):
        self.watermark_ms = time_ms


def lateness():
    flow = weir.Dataflow("lateness")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"), parallelism=2)
    marked = events.key_by("name").process("mark", LastWatermark, {**SCHEMA, "late": bool})
    marked.sink("out", weir.Collect())
    return flow


# --- testing.run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        rows(1, 2, 3, 4, 5),
        pl.DataFrame(rows(1, 2, 3, 4, 5)),
        pa.Table.from_pylist(rows(1, 2, 3, 4, 5)),
        [pl.DataFrame(rows(1, 2)), *rows(3, 4), pa.RecordBatch.from_pylist(rows(5))],
    ],
    ids=["dicts", "polars", "arrow", "mixed"],
)
def test_a_flow_runs_on_given_rows(given):
    result = testing.run(counting(), {"events": given})
    assert [(row["id"], row["count"]) for row in result["out"]] == [(1, 1), (2, 1), (3, 1), (5, 2)]
    assert len(result["events"]) == 5
    assert [row["_event_time_ms"] for row in result["keep"].to_dicts(times=True)] == [1001, 1002, 1003, 1005]


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_parallel_subtasks_count_each_key_in_one_place(seed):
    flow = counting(sources=3, parallelism=4)
    given = [{"id": i, "name": f"s{i % 50}", "at": i} for i in range(1, 500)]
    frame = testing.run(flow, {"events": given}, seed=seed)["out"].to_polars()
    highest = frame.group_by("name").agg(pl.len(), pl.col("count").max())
    assert highest["len"].to_list() == highest["count"].to_list()
    assert frame.height == sum(row["id"] % 4 != 0 for row in given)


def test_a_seed_gives_one_order_and_another_seed_another():
    flow = counting(sources=3, parallelism=2)
    given = {"events": [pl.DataFrame(rows(*range(i, i + 5))) for i in range(0, 200, 5)]}
    orders = [testing.run(flow, given, seed=seed)["out"].to_dicts() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(row["id"] for row in orders[0]) == sorted(row["id"] for row in orders[2])


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(
        weir.GraphError,
        match=r"source 'events': row 1 .* lacks \['name'\], or has null there; .* weir.Nullable",
    ):
        testing.run(counting(), {"events": [*rows(1), {"id": 2, "at": 3}]})
    with pytest.raises(weir.GraphError, match=r"columns that the source has not: \['more'\]"):
        testing.run(counting(), {"events": [{**rows(1)[0], "more": 1}]})
    with pytest.raises(weir.GraphError, match=r"column 'at' \(int64\) is missing"):
        testing.run(counting(), {"events": pl.DataFrame(rows(1)).drop("at")})
    with pytest.raises(weir.GraphError, match=r"no source is called 'event'; did you mean 'events'\?"):
        testing.run(counting(), {"event": []})


def test_a_source_that_is_not_replaced_reads_and_its_time_jumps(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(*range(1, 61))))
    flow = weir.Dataflow("paced")
    flow.source("events", weir.JsonLines(str(path), schema=SCHEMA, rate=1.0)).sink("out", weir.Collect())
    clock = testing.ManualClock()
    began_s = clock.monotonic_s()
    result = testing.run(flow, clock=clock)
    assert len(result["out"]) == 60
    assert clock.monotonic_s() - began_s == pytest.approx(59.5, abs=0.6)


def test_sinks_can_be_replaced(tmp_path):
    flow = counting(weir.JsonLinesSink(str(tmp_path / "out")))
    assert len(testing.run(flow, {"events": rows(1, 2)}, collect_sinks=True)["out"]) == 2
    assert not (tmp_path / "out").exists()


# --- time ---------------------------------------------------------------------------------------------------


def test_watermarks_by_hand_decide_which_rows_are_late():
    with testing.start(lateness()) as job:
        job.push("events", rows(50))
        job.advance_watermark("events", 1100, subtask=0)
        job.push("events", rows(51))
        job.advance_watermark("events", 1100, subtask=1)
        job.push("events", rows(52, 150))
        assert [(row["id"], row["late"]) for row in job.rows("out")] == [
            (50, False),
            (51, False),
            (52, True),
            (150, False),
        ]
        # An idle subtask holds nothing back.
        job.mark_idle("events", subtask=1)
        job.advance_watermark("events", 2000, subtask=0)
        job.push("events", rows(500), subtask=0)
        assert job.rows("out").to_dicts()[-1]["late"]


def test_rows_that_a_step_drops_end_the_idleness_of_what_comes_behind_it():
    flow = weir.Dataflow("dropping")
    one, other = (flow.source(n, weir.JsonLines("/absent", schema=SCHEMA, event_time="at")) for n in "ab")
    kept = other.rebalance().filter("keep", pl.col("id") < 900, parallelism=2)
    both = one.union("both", kept.rebalance(), parallelism=1)
    marked = both.key_by("name").process("mark", LastWatermark, {**SCHEMA, "late": bool})
    marked.sink("out", weir.Collect())
    with testing.start(flow) as job:
        job.advance_watermark("a", 1100)
        job.advance_watermark("b", 1100)
        job.mark_idle("b")
        job.push("b", rows(900))
        job.advance_watermark("a", 2500)
        job.push("a", rows(500))
        assert [row["late"] for row in job.rows("out")] == [False], "b may have earlier rows again"


def test_steps_know_the_watermark_before_the_first_row_after_a_restart():
    with testing.start(lateness()) as job:
        job.push("events", rows(50, 51))
        job.advance_watermark("events", 1100)
        job.checkpoint()
        job.restart()
        job.push("events", rows(52, 150))
        assert [(row["id"], row["late"]) for row in job.rows("out")][2:] == [(52, True), (150, False)]


def test_watermarks_follow_rows_or_stand_among_them():
    given = [*rows(1000), *rows(1)]
    followed = testing.run(
        lateness(),
        {"events": PerSubtask([pa.RecordBatch.from_pylist([row]) for row in given], rows(2000))},
        out_of_order_grace_period_ms=100,
    )
    late = {row["id"]: row["late"] for row in followed["out"]}
    assert late[1000] is False
    assert late[1] is True
    marked = testing.run(lateness(), {"events": [*rows(10), Watermark(1020), *rows(15, 30)]})
    assert {row["id"]: row["late"] for row in marked["out"]} == {10: False, 15: True, 30: False}


def test_advance_time_lets_paced_rows_come_when_they_are_due(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(*range(100))))
    flow = weir.Dataflow("paced")
    flow.source("events", weir.JsonLines(str(path), schema=SCHEMA, rate=10.0)).sink("out", weir.Collect())
    with testing.start(flow, {}) as job:
        job.advance_time(1000)
        seen = len(job.rows("out"))
        assert 10 <= seen <= 11
        job.advance_time(500)
        assert len(job.rows("out")) - seen == 5


# --- checkpoints, restarts, savepoints ------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
@pytest.mark.parametrize("seed", [None, 3])
def test_after_a_restart_everything_since_the_checkpoint_comes_once_again(state, seed):
    with testing.start(counting(sources=2, parallelism=3), state=state, seed=seed) as job:
        job.push("events", rows(1, 2, 3))
        job.checkpoint()
        job.push("events", rows(5, 6, 7))
        before = {(row["id"], row["count"]) for row in job.rows("out")}
        job.restart()
        assert {(row["id"], row["count"]) for row in job.rows("out")} == before
        assert len(job.rows("out")) == len(before) == 6
        job.push("events", rows(9))
        assert job.rows("out").to_dicts()[-1] == {**rows(9)[0], "count": 3}
        assert job.restarts == 1


def test_a_restart_without_a_checkpoint_starts_from_nothing():
    with testing.start(counting()) as job:
        job.push("events", rows(1, 1))
        job.restart()
        assert [row["count"] for row in job.rows("out")] == [1, 2]


@pytest.mark.parametrize("upto", ["prepared", "complete", "committed"])
def test_a_two_phase_sink_delivers_once_whenever_the_job_dies(tmp_path, upto):
    def delivered():
        parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
        return [json.loads(line)["id"] for part in parts for line in part.read_text().splitlines()]

    with testing.start(counting(weir.JsonLinesSink(str(tmp_path / "out")))) as job:
        job.push("events", rows(1, 2))
        job.checkpoint()
        assert delivered() == [1, 2]
        job.push("events", rows(3, 5))
        job.checkpoint(upto)
        assert delivered() == ([1, 2, 3, 5] if upto == "committed" else [1, 2])
        job.restart()
        assert delivered() == ([1, 2] if upto == "prepared" else [1, 2, 3, 5])
        job.push("events", rows(6))
        result = job.finish()
        assert delivered() == [1, 2, 3, 5, 6]
        assert [row["id"] for row in result["out"]] == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3)])
def test_a_savepoint_starts_with_another_parallelism(before, after):
    counts = defaultdict(int)
    with testing.start(counting(sources=2, parallelism=before)) as job:
        for row in job_rows(100):
            counts[row["name"]] += 1
        job.push("events", job_rows(100))
        savepoint = job.savepoint()
    with testing.start(counting(parallelism=after), from_savepoint=savepoint, state="rocksdb") as job:
        job.push("events", job_rows(100))
        for row in job.rows("out"):
            counts[row["name"]] += 1
            assert row["count"] == counts[row["name"]]
        job.checkpoint()
        job.restart()
        job.push("events", job_rows(1))
        assert job.rows("out").to_dicts()[-1]["count"] == counts["n1"] + 1


def test_savepoints_tell_how_many_events_they_cover(tmp_path):
    """As those of task managers do: the totals of a job that starts from one go on, and no restart counts twice."""
    covered = []
    savepoint = None
    for number in (1, 2):
        with testing.start(counting(sources=2, parallelism=2), from_savepoint=savepoint) as job:
            job.push("events", rows(*range(20)))
            job.checkpoint()
            job.push("events", rows(1, 2, 3))
            job.restart()
            savepoint = job.savepoint(tmp_path / str(number))
        manifest = CheckpointStore.open_savepoint(str(tmp_path / str(number))).latest()
        covered.append((manifest.events, manifest.events_before))
    first, second = EventCounts(23, 18), EventCounts(46, 36)
    assert [events for events, _ in covered] == [first, second]
    assert covered[0][1] == EventCounts(20, 15)


def job_rows(count):
    return [{"id": 4 * i + 1, "name": f"n{(i + 1) % 30}", "at": i} for i in range(count)]


def test_a_savepoint_that_does_not_fit_is_refused(tmp_path):
    with testing.start(counting()) as job:
        job.push("events", rows(1))
        savepoint = job.savepoint(tmp_path / "here")
        with pytest.raises(weir.WeirError, match="exists already"):
            job.savepoint(tmp_path / "here")
    with pytest.raises(weir.WeirError, match="there is no savepoint at"):
        testing.start(counting(), from_savepoint=tmp_path / "nothing")
    other = weir.Dataflow("counting")
    other.source("events", weir.JsonLines("/absent", schema=SCHEMA)).sink("out", weir.Collect())
    with pytest.raises(weir.WeirError, match=r"steps that the job has not got: count"):
        testing.start(other, from_savepoint=savepoint)
    with testing.start(other, from_savepoint=savepoint, allow_dropped_state=True) as job:
        job.push("events", rows(1))
        assert len(job.rows("out")) == 1


def test_an_error_fails_the_job_until_it_is_restarted():
    broken = [True]

    def check(row):
        if row["id"] == 7 and broken[0]:
            raise ValueError("seven")
        return row

    flow = weir.Dataflow("failing")
    flow.source("events", weir.JsonLines("/absent", schema=SCHEMA)).map("check", check)
    with testing.start(flow) as job:
        job.push("events", rows(1))
        with pytest.raises(weir.WeirError, match="step 'check'") as raised:
            job.push("events", rows(7))
        assert isinstance(raised.value.__cause__, ValueError)
        with pytest.raises(weir.WeirError, match=r"failed: .*restart\(\)"):
            job.push("events", rows(8))
        with pytest.raises(weir.WeirError, match="step 'check'"):
            job.restart()
        broken[0] = False
        job.restart()
        assert [row["id"] for row in job.rows("check")] == [1, 7]


def test_dead_letters_are_there_once_after_a_restart(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"id": 1}\nbroken\n{"id": 2}\n')
    flow = weir.Dataflow("letters")
    flow.source("events", weir.JsonLines(str(path), schema={"id": int})).sink("out", weir.Collect())
    with testing.start(flow, {}) as job:
        job.restart()
        job.checkpoint()
        job.restart()
        assert [letter.raw for letter in job.dead_letters] == ["broken"]
        assert [row["id"] for row in job.rows("out")] == [1, 2]
    assert len(job.dead_letters) == 1


@pytest.mark.parametrize("upto", ["prepared", "complete", "committed"])
def test_rows_that_steps_put_aside_are_there_once_after_a_restart(upto):
    flow = weir.Dataflow("letters")
    events = flow.source("events", weir.JsonLines("/absent", schema={"id": int}))
    events.sink("aside", weir.DeadLetters("not wanted"))
    without_time = events.with_columns("none", at=pl.lit(None, dtype=pl.Int64))
    without_time.assign_event_time("timed", "at").sink("out", weir.Collect())
    with testing.start(flow) as job:
        # One row is there twice.
        for ids in ([1, 2], [3, 3], [4]):
            job.push("events", [{"id": number} for number in ids])
            job.checkpoint(upto)
        job.push("events", [{"id": 5}])
        job.restart()
        job.push("events", [{"id": 6}])
        job.restart()
        letters = [(letter.step, json.loads(letter.raw)["id"]) for letter in job.dead_letters]
    assert sorted(letters) == [
        (step, number) for step in ("aside", "timed") for number in (1, 2, 3, 3, 4, 5, 6)
    ]
