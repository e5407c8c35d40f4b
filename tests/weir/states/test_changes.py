"""Changes of a job that keeps its state: each right against a computation from scratch, or refused untouched."""

import dataclasses
import re

import polars as pl
import pyarrow as pa
import pytest

import weir
from benchmarks import changes
from benchmarks.changed.jobs import DEFAULTS, build
from benchmarks.changed.rows import SCHEMA, rows_of
from benchmarks.changed.table import CHANGES
from benchmarks.changed.trying import Trials, planned
from tests.effort import cases
from weir import testing
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import GraphError, WeirError
from weir.savepoints.changes import Verdict

#: Of these kinds each third change; all of them in long runs.
IN_PART = ("over", "changelog")
CASES = [
    (kind, change)
    for kind, listed in CHANGES.items()
    for change in (listed[:: cases(3, 1)] if kind in IN_PART else listed)
]


@pytest.fixture(scope="module")
def trials():
    """By where the state is."""
    with Trials() as memory, Trials(state="rocksdb") as rocksdb:
        yield {False: memory, True: rocksdb}


@pytest.mark.parametrize(("kind", "change"), CASES, ids=[f"{kind}: {change.name}" for kind, change in CASES])
def test_a_change_is_right_from_scratch_or_refused(kind, change, trials):
    on_disk = kind == "running" and change.name.startswith(("added", "removed"))
    outcome = trials[on_disk].outcome(kind, change.before, change.after, drops=change.drops)
    assert not outcome.wrong
    assert bool(outcome.refused) == bool(change.refused), outcome.refused
    assert re.search(change.refused, outcome.refused), outcome.refused


def test_a_renamed_source_goes_on_where_it_was(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"k": "a", "at": {n}}}\n' for n in range(30)))

    def flow(name, **more):
        made = weir.Dataflow("sources")
        rows = made.source(
            name, weir.JsonLines(str(path), schema={"k": str, "at": int}, event_time="at"), **more
        )
        rows.key_by("k").aggregate("totals", n=weir.count()).sink("out", weir.Collect())
        return made

    with testing.start(flow("a"), {}) as job:
        savepoint = job.savepoint(tmp_path / "savepoint")
        before = len(list(job.rows("out")))
    with testing.start(flow("b", renamed_from="a"), {}, from_savepoint=savepoint) as job:
        result = job.finish()
    assert before
    assert [row["n"] for row in result["out"]] == list(range(before + 1, 31))


def test_two_steps_cannot_be_renamed_from_one(tmp_path):
    with testing.start(build("running", DEFAULTS["running"]), {"events": rows_of(1, 9)}) as job:
        path = job.savepoint(tmp_path / "savepoint")
    flow = weir.Dataflow("running")
    keyed = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at")).key_by("k")
    for name in ("a", "b"):
        keyed.aggregate(name, renamed_from="step", n=weir.count()).sink(f"out_{name}", weir.Collect())
    with pytest.raises(WeirError, match="both renamed_from 'step'"):
        testing.start(flow, {"events": []}, from_savepoint=path)
    with pytest.raises(GraphError, match="renamed_from"):
        keyed.aggregate("x", renamed_from="a/b", n=weir.count())


def test_a_step_of_another_kind_is_refused(tmp_path):
    with testing.start(build("running", DEFAULTS["running"]), {"events": rows_of(1, 9)}) as job:
        path = job.savepoint(tmp_path / "savepoint")
    with pytest.raises(WeirError, match=r"step .its state without a name."):
        testing.start(build("deduplicate", DEFAULTS["deduplicate"]), {"events": []}, from_savepoint=path)


def counted(rows, slide):
    flow = weir.Dataflow("windows")
    keyed = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at")).key_by("k")
    keyed.count_window(rows, slide).aggregate("step", n=weir.count()).sink("out", weir.Collect())
    return flow


def test_windows_of_another_number_of_rows_are_refused(tmp_path):
    """What they keep is what their next window needs: one of more rows would have too few."""
    rows = rows_of(1, 60)
    with testing.start(counted(5, 5), {"events": rows[:30]}) as job:
        path = job.savepoint(tmp_path / "savepoint")
        before = len(list(job.rows("out")))
    for changed in (counted(6, 5), counted(5, 4)):
        with pytest.raises(WeirError, match="has windows of 5 rows, told every 5 rows, the job windows of"):
            testing.start(changed, {"events": []}, from_savepoint=path)
    with testing.start(counted(5, 5), {"events": ()}, from_savepoint=path) as job:
        job.push("events", rows[30:])
        found = list(job.finish()["out"])
    with testing.start(counted(5, 5), {"events": ()}) as job:
        job.push("events", rows[:30])
        job.push("events", rows[30:])
        assert found == list(job.finish()["out"])[before:]


def _means(rows):
    return rows.key_by("k").aggregate("step", m=weir.mean("v"))


def _percentiles(rows):
    return rows.key_by("k").aggregate("step", m=weir.percentile("v", 0.5))


def _over(rows):
    query = "SELECT k, at, v, LAG(at) OVER (PARTITION BY k ORDER BY at) AS before FROM rows"
    return rows.flow.sql(query, step="step", rows=rows)


def _best(rows):
    counted = rows.key_by("k").window(weir.tumbling("1h")).aggregate("counted", n=weir.count())
    scored = counted.with_columns("scored", v=pl.lit(1).cast(TYPES_OF_V[rows.schema.field("v").type]))
    return scored.window_top("step", by=["v"], rows=2)


class Keyless(weir.BroadcastProcess):
    """Its rows have no key."""

    seen = weir.ValueState(int, 0)

    def process(self, row, rules, context):
        self.seen.value += 1
        yield {"n": self.seen.value}

    def on_broadcast(self, row, rules, context):
        rules["rule"] = row["v"]


def _seen(rows):
    return rows.key_by("v").connect_broadcast("step", rows.broadcast(), Keyless, {"n": int})


TYPES_OF_V = {pa.int64(): pl.Int64, pa.float64(): pl.Float64, pa.string(): pl.String, pa.int32(): pl.Int32}


def of_type(made, name, dtype):
    flow = weir.Dataflow("typed")
    schema = {"k": int, "at": int, "v": dtype}
    schema |= {"_change": str} if made in (_means, _percentiles) else {}
    rows = flow.source("rows", weir.JsonLines("/absent", schema=schema, event_time="at"))
    made(rows).sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        # The result is a float of either, and the state is not.
        (_means, int, float),
        (_percentiles, float, int),
        # No row before has the other type, but those that wait have.
        (_over, int, str),
        (_best, int, float),
        # The results of the step do not have the key.
        (_seen, int, str),
    ],
)
def test_state_of_numbers_of_another_type_is_refused(made, before, after, tmp_path):
    def row(dtype, at):
        change = {"_change": "insert"} if made in (_means, _percentiles) else {}
        return {"k": 1, "at": at, "v": dtype(3), **change}

    with testing.start(of_type(made, "v", before)) as job:
        job.push("rows", [row(before, 1), row(before, 2)])
        path = job.savepoint(tmp_path / "savepoint")
    changed = of_type(made, "v", after)
    with pytest.raises(WeirError, match=r"step 'step.*': .*(start without|give the step another name)"):
        testing.start(changed, {"rows": [row(after, 3)]}, from_savepoint=path)
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    found = planned(changed.build(), manifest, allow_dropped=False)
    assert any(change.verdict is Verdict.REFUSED for change in found)
    with testing.start(of_type(made, "v", before), from_savepoint=path) as job:
        job.push("rows", [row(before, 3)])
        assert len(job.finish()["out"]) or made in (_means, _percentiles)


class Timed(weir.KeyedProcess):
    def process(self, key, row, context):
        context.timers.register(row["at"])

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0]}


class Quiet(weir.KeyedProcess):
    seen = weir.ValueState(int, 0)

    def process(self, key, row, context):
        yield {"k": key[0]}


def processed(made):
    flow = weir.Dataflow("timers")
    keyed = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at")).key_by("k")
    keyed.process("step", made, {"k": str}).sink("out", weir.Collect())
    return flow


def test_states_that_nobody_has_declared_are_called_by_what_they_hold(tmp_path):
    with testing.start(processed(Timed), {"events": rows_of(1, 9)}) as job:
        path = job.savepoint(tmp_path / "savepoint")
    with pytest.raises(WeirError, match=r"do not have: step \(its timers\); .* --allow-dropped-state"):
        testing.start(processed(Quiet), {"events": []}, from_savepoint=path)
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    changes = planned(processed(Quiet).build(), manifest, allow_dropped=True)
    assert [change.reason for change in changes if change.step == "step"] == [
        "seen: begins empty; its timers: dropped"
    ]


def test_the_plan_says_first_what_leave_to_drop_state_does_not_mend(tmp_path):
    sliding = {**DEFAULTS["window"], "window": weir.sliding("60ms", "20ms")}
    with testing.start(build("window", sliding), {"events": rows_of(1, 9)}) as job:
        path = job.savepoint(tmp_path / "savepoint")
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    changes = planned(build("window", DEFAULTS["window"]).build(), manifest, allow_dropped=False)
    (refused,) = (change.reason for change in changes if change.verdict is Verdict.REFUSED)
    assert "has window kind: sliding, size_ms: 60, step_ms: 20" in refused


def test_random_changes_are_right_or_refused():
    figures = changes.run(lambda *_: None, 6, 0).as_json()
    assert (figures["cases"], figures["wrong"]) == (6, 0), figures


def doubled(row):
    return row | {"num": 2 * (row["num"] or 0)}


def updated(made, renamed="made"):
    """Totals of the last rows, as something makes them."""
    flow = weir.Dataflow("made")
    rows = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    last = rows.key_by("k").deduplicate("last", keep="last")
    for number, make in enumerate(made):
        last = make(last, f"{renamed}{number}")
    last.key_by("word").aggregate("totals", n=weir.count(), total=weir.sum("num")).sink("out", weir.Collect())
    rows.key_by("k").count("beside").sink("beside_out", weir.Collect())
    return flow


MADE = {
    "nothing": (),
    "with_columns": (lambda rows, name: rows.with_columns(name, num=pl.col("num") * 2),),
    "other columns": (lambda rows, name: rows.with_columns(name, num=pl.col("num") * 3),),
    "select": (lambda rows, name: rows.select(name, "k", "word", "at", "_change", num=pl.col("num") * 2),),
    "function": (lambda rows, name: rows.map(name, doubled, rows.schema),),
    "another function": (lambda rows, name: rows.map(name, lambda row: row, rows.schema),),
    "both": (
        lambda rows, name: rows.with_columns(name, num=pl.col("num") * 2),
        lambda rows, name: rows.map(name, doubled, rows.schema),
    ),
}


@pytest.mark.parametrize("before", MADE)
def test_the_plan_tells_where_rows_of_a_changelog_are_made_otherwise(before, tmp_path):
    with testing.start(updated(MADE[before]), {"events": rows_of(1, 9)}) as job:
        path = job.savepoint(tmp_path / "savepoint")
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    for after, made in MADE.items():
        graph = updated(made, renamed="now").build()
        found = {each.step: each for each in planned(graph, manifest, allow_dropped=False)}
        assert all(each.verdict is not Verdict.REFUSED for each in found.values())
        told = "what makes its rows of a changelog has changed (step" in found["totals"].reason
        assert told == (before != after), (before, after)
        assert found["totals"].verdict is Verdict.KEPT
        assert not found["beside"].reason
        assert not found["last"].reason
    both = planned(updated(MADE["both"], renamed="now").build(), manifest, allow_dropped=False)
    if before == "with_columns":
        (reason,) = (each.reason for each in both if each.step == "totals")
        assert "(step 'now1')" in reason
    # A savepoint of before says nothing, and nothing is said of it.
    older = dataclasses.replace(manifest, makers={})
    for made in MADE.values():
        changes = planned(updated(made).build(), older, allow_dropped=False)
        assert not any(each.reason for each in changes)
