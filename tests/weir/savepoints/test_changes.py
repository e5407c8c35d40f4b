"""``weir plan --from-savepoint``: what becomes of each step's state, and that a start says the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import weir
from benchmarks.changed.jobs import DEFAULTS, build
from benchmarks.changed.rows import rows_of
from benchmarks.changed.trying import planned
from weir import testing
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.console.planning import print_plan
from weir.errors import CheckpointError, WeirError
from weir.savepoints.changes import Verdict

N, BAD = ("count",), ("count", "", "bad")


def several(**more):
    """A job with a source that keeps positions, aggregates, and a step besides."""
    flow = weir.Dataflow("running")
    rows = flow.source("events", weir.JsonLines("/absent", schema={"k": str, "at": int}, event_time="at"))
    keyed = rows.key_by("k")
    if "top" in more:
        keyed.top(**more["top"]).sink("best", weir.Collect())
    if "first" in more:
        keyed.deduplicate(more["first"]).sink("firsts", weir.Collect())
    keyed.aggregate("totals", **more["aggregates"]).sink("out", weir.Collect())
    return flow


def running(aggregates):
    return build("running", {**DEFAULTS["running"], "aggregates": aggregates, "step": "totals"})


def saved(flow, tmp_path, rows=None):
    with testing.start(flow, {"events": rows or [{"k": "a", "at": 1}]}) as job:
        job.savepoint(tmp_path / "savepoint")
    return tmp_path / "savepoint"


def told(flow, path, *, allow_dropped=False):
    graph = flow.build()
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    changes = planned(graph, manifest, allow_dropped=allow_dropped)
    starts = all(change.verdict is not Verdict.REFUSED for change in changes)
    if starts:
        testing.start(flow, {"events": []}, from_savepoint=path, allow_dropped_state=allow_dropped).stop()
    else:
        with pytest.raises(WeirError):
            testing.start(flow, {"events": []}, from_savepoint=path, allow_dropped_state=allow_dropped)
    return {change.step: (change.verdict.value, change.reason) for change in changes}


def test_each_step_is_told_as_the_start_decides(tmp_path):
    n, latest = weir.count(), weir.max("at")
    top = {"name": "best_rows", "by": "at", "rows": 2}
    path = saved(several(aggregates={"n": n}, top=top), tmp_path)
    assert told(several(aggregates={"n": n}, top=top), path)["totals"] == ("kept", "")

    more = told(several(aggregates={"latest": latest, "n": n}, top=top, first="seen"), path)
    assert more["totals"] == ("converted", "latest: begins at its first value, also for keys that there are")
    assert more["best_rows"] == ("kept", "")
    assert more["seen"] == ("begins empty", "the checkpoint has no such step")

    without = told(several(aggregates={"n": n}), path)
    assert without["best_rows"][0] == "refused"
    assert "--allow-dropped-state" in without["best_rows"][1]
    assert told(several(aggregates={"n": n}), path, allow_dropped=True)["best_rows"][0] == "dropped"

    other = told(several(aggregates={"n": n}, top={**top, "rows": 3}), path)
    assert other["best_rows"][0] == "refused"
    assert "order" in other["best_rows"][1]

    moved = told(
        several(aggregates={"n": n}, top={**top, "name": "winners", "renamed_from": "best_rows"}), path
    )
    assert moved["winners"] == ("converted", "was called best_rows")
    assert "best_rows" not in moved

    wrong = told(several(aggregates={"n": n.where(pl.col("at") > 3)}, top=top), path)
    assert wrong["totals"][0] == "refused"
    assert "aggregate 'n' is n=count" in wrong["totals"][1]


def test_a_removed_aggregate_is_told_with_leave_and_refused_without(tmp_path):
    path = saved(running({"n": N, "bad": BAD}), tmp_path, rows_of(1, 20))
    assert told(running({"bad": BAD}), path)["totals"][0] == "refused"
    assert told(running({"bad": BAD}), path, allow_dropped=True)["totals"] == ("converted", "n: dropped")


def test_a_renamed_aggregate_says_what_it_was_called(tmp_path):
    rows = rows_of(1, 20)
    path = saved(running({"n": N}), tmp_path, rows)
    aggregates = {
        "aggregates": {"rows": N, "u": ("count_distinct", "word")},
        "aggregates_from": {"rows": "n"},
    }
    renamed = build("running", {**DEFAULTS["running"], **aggregates, "step": "totals"})
    begins = "u: begins at its first value, also for keys that there are"
    assert told(renamed, path)["totals"] == ("converted", f"rows was called n; {begins}")
    # Left in the job, it says nothing of a checkpoint that has the new name.
    with testing.start(renamed, {"events": []}, from_savepoint=path) as job:
        job.savepoint(tmp_path / "next")
    assert told(renamed, tmp_path / "next")["totals"] == ("kept", "")


def test_a_state_that_a_checkpoint_of_before_has_not_is_told(tmp_path):
    settings = {**DEFAULTS["window"], "window": weir.sliding("60ms", "20ms")}
    path = saved(build("window", settings), tmp_path, rows_of(1, 20))
    graph = build("window", settings).build()
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    before = replace(manifest, state_ids={"step": manifest.state_ids["step"]})
    (change,) = [each for each in planned(graph, before, allow_dropped=False) if each.step == "step"]
    assert (change.verdict, change.reason) == (Verdict.CONVERTED, "late rows that wait: begins empty")


JOB = """
import weir

def build(wide: bool = False, groups: int = 128):
    flow = weir.Dataflow("counts", max_parallelism=groups)
    rows = flow.source("events", weir.JsonLines("/absent", schema={"k": str, "at": int}, event_time="at"))
    more = {"latest": weir.max("at")} if wide else {}
    rows.key_by("k").aggregate("totals", n=weir.count(), **more).sink("out", weir.Blackhole())
    return flow
"""


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """A job whose file is ``changed.py`` of the working directory, and ``savepoint`` of it there."""
    flow = weir.Dataflow("counts")
    rows = flow.source("events", weir.JsonLines("/absent", schema={"k": str, "at": int}, event_time="at"))
    rows.key_by("k").aggregate("totals", n=weir.count()).sink("out", weir.Blackhole())
    with testing.start(flow, {"events": [{"k": "a", "at": 1}]}, collect_sinks=True) as job:
        job.savepoint(tmp_path / "savepoint")
    (tmp_path / "changed.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return flow


def test_the_command_prints_it_and_its_exit_code_is_that_of_the_start(tmp_path, capsys, counts):
    place = str(tmp_path / "savepoint")
    assert print_plan("changed.py", ["wide=true"], None, [], as_json=False, from_savepoint=place) == 0
    shown = capsys.readouterr().out
    assert "latest: begins at its first value" in shown
    assert shown.splitlines()[-1] == "the job would start"
    assert print_plan("changed.py", ["groups=64"], None, [], as_json=True, from_savepoint=place) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["starts"]
    assert "128 key groups" in document["steps"][-1]["reason"]
    with pytest.raises(CheckpointError, match="no savepoint"):
        print_plan("changed.py", [], None, [], as_json=True, from_savepoint=str(tmp_path / "none"))


@pytest.mark.parametrize("left", [None, 0, 100])
def test_a_savepoint_that_lacks_a_file_is_refused_as_a_start_refuses_it(tmp_path, left, counts):
    path = tmp_path / "savepoint"
    table = max(
        (each for each in (path / "files").rglob("*") if each.is_file()), key=lambda each: each.stat().st_size
    )
    if left is None:
        table.unlink()
    else:
        table.write_bytes(table.read_bytes()[:left])
    with pytest.raises(WeirError):
        testing.start(counts, {"events": []}, from_savepoint=path, collect_sinks=True)
    with pytest.raises(CheckpointError, match=table.name):
        print_plan("changed.py", [], None, [], as_json=False, from_savepoint=str(path))


def test_the_command_line_knows_the_flags(tmp_path):
    (tmp_path / "changed.py").write_text(JOB)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "weir", "plan", "changed.py", "--from-savepoint", str(tmp_path / "none")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "there is no savepoint or checkpoint at" in done.stderr


def joined(how, key, renamed_from=None):
    """A job whose result does not have the key column of the right side."""
    flow = weir.Dataflow("joined")
    schema = {"id": int, "a": int, "b": int}
    left, right, third = (
        flow.source(name, weir.JsonLines("/absent", schema=schema)) for name in ("left", "right", "third")
    )
    by = {"own": {"own": renamed_from}} if renamed_from else {}
    named = right.rename("named", {key: "own"}) if renamed_from else right
    kept = named.select("kept", "own" if renamed_from else key)
    keyed = kept.key_by("own", renamed_from=by["own"]) if renamed_from else kept.key_by(key)
    if how == "as of":
        out = left.key_by("a").join_as_of("out", keyed, how="inner")
    elif how == "three":
        out = left.key_by("a").join_all("out", third.key_by("a"), keyed)
    else:
        out = left.key_by("a").join("out", keyed, how=how)
    if how != "three":
        third.sink("unused", weir.Blackhole())
    out.select("chosen", *({"id", "_change"} & {*out.schema.names})).sink("rows", weir.Collect())
    return flow


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti", "as of", "three"])
def test_another_key_column_of_the_other_side_of_a_join_is_refused(tmp_path, how):
    row = {"id": 1, "a": 1, "b": 2}
    with testing.start(joined(how, "a"), {"left": [], "right": [row], "third": []}) as job:
        job.savepoint(tmp_path / "savepoint")
    inputs = {"left": [], "right": [], "third": []}
    with pytest.raises(WeirError, match=r"keys of input 2|keys of input 3") as raised:
        testing.start(joined(how, "b"), inputs, from_savepoint=tmp_path / "savepoint")
    assert 'key_by("b", renamed_from={"b": "a"})' in str(raised.value)
    testing.start(joined(how, "a"), inputs, from_savepoint=tmp_path / "savepoint").stop()
    testing.start(joined(how, "a", "a"), inputs, from_savepoint=tmp_path / "savepoint").stop()


class Counting(weir.KeyedProcess):
    def process(self, key, row, context):
        context.timers.register(context.event_time_ms + 1)

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0]}


def counting(parallelism):
    flow = weir.Dataflow("counting")
    source = weir.JsonLines("/absent", schema={"k": str, "at": int}, event_time="at")
    counts = flow.source("events", source, parallelism=2).key_by("k").count("n", parallelism=1)
    timed = counts.key_by("k").process(
        "timed", Counting, {"k": str}, in_time_order=True, parallelism=parallelism
    )
    timed.sink("out", weir.Collect())
    return flow


def test_rows_that_wait_in_front_of_a_stage_that_is_divided_are_told(tmp_path):
    with testing.start(counting(1), {"events": []}) as job:
        job.advance_watermark("events", 1, subtask=0)
        job.push("events", [{"k": "a", "at": 1}], subtask=0)
        job.savepoint(tmp_path / "savepoint")
    said = told(counting(2), tmp_path / "savepoint")
    assert said["counting"][0] == "refused"
    assert "give these steps the parallelism that they had" in said["counting"][1]
    assert told(counting(1), tmp_path / "savepoint")["n"][0] == "kept"
