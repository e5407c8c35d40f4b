"""Changes of a job that keeps its state: each right against a computation from scratch, or refused untouched."""

import re

import pytest

import weir
from benchmarks import changes
from benchmarks.changed.jobs import DEFAULTS, build
from benchmarks.changed.rows import SCHEMA, rows_of
from benchmarks.changed.table import CHANGES
from benchmarks.changed.trying import Trials
from weir import testing
from weir.errors import GraphError, WeirError

CASES = [(kind, change) for kind, listed in CHANGES.items() for change in listed]


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
    with pytest.raises(WeirError, match=r"step .without a name."):
        testing.start(build("deduplicate", DEFAULTS["deduplicate"]), {"events": []}, from_savepoint=path)


def test_random_changes_are_right_or_refused():
    figures = changes.run(lambda *_: None, 6, 0).as_json()
    assert (figures["cases"], figures["wrong"]) == (6, 0), figures
