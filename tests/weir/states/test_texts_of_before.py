"""Windows with first and last texts in the state of programs of before, which kept the rows for them."""

import pytest

import weir
from benchmarks.changed.rows import SCHEMA, rows_of
from weir import testing
from weir.errors import WeirError

ROWS = rows_of(3, 40, keys=3)
KINDS = {
    "tumbling": weir.tumbling("20ms"),
    "sliding": weir.sliding("20ms", "10ms"),
    "session": weir.session("5ms"),
}
TEXTS = {"n": weir.count(), "first": weir.first("word"), "last": weir.last("word"), "most": weir.max("x")}


def job(kind, aggregates=TEXTS):
    flow = weir.Dataflow("texts")
    rows = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    windows = rows.key_by("k").window(KINDS[kind], allowed_lateness="7ms")
    windows.aggregate("w", parallelism=2, **aggregates).sink("out", weir.Collect())
    return flow


def job_of_before(kind, monkeypatch):
    """The same, whose windows keep rows as they did."""
    with monkeypatch.context() as before:
        before.setattr("weir.dataflow.windowed_streams.has_coded_texts", lambda aggregates, schema: False)
        return job(kind)


def told(running, first, then=()):
    for rows in (first, *then):
        running.push("events", rows)
        running.checkpoint()
        running.restart()
    return sorted(map(repr, running.finish()["out"]))


@pytest.mark.parametrize("kind", KINDS)
def test_they_go_on_with_the_rows_and_tell_the_same(kind, tmp_path, monkeypatch):
    with testing.start(job(kind), {"events": ROWS}) as running:
        wanted = sorted(map(repr, running.finish()["out"]))
    with testing.start(job_of_before(kind, monkeypatch), {"events": ROWS[:15]}) as running:
        savepoint = running.savepoint(tmp_path / "before")
    with testing.start(job(kind), {"events": []}, from_savepoint=savepoint) as running:
        running.push("events", ROWS[15:20])
        again = running.savepoint(tmp_path / "again")
    with testing.start(job(kind), {"events": []}, from_savepoint=again) as running:
        assert told(running, ROWS[20:30], [ROWS[30:]]) == wanted


def test_an_aggregate_more_is_of_the_rows_that_were_kept(tmp_path, monkeypatch):
    with testing.start(job_of_before("tumbling", monkeypatch), {"events": ROWS[:15]}) as running:
        savepoint = running.savepoint(tmp_path / "before")
    changed = job("tumbling", {**TEXTS, "more": weir.last("x")})
    with testing.start(changed, {"events": ROWS[15:]}, from_savepoint=savepoint) as running:
        assert sum(row["n"] for row in running.finish()["out"]) == len(ROWS)


def test_windows_of_numbers_do_not_go_on_with_rows(tmp_path, monkeypatch):
    with testing.start(job_of_before("tumbling", monkeypatch), {"events": ROWS[:15]}) as running:
        savepoint = running.savepoint(tmp_path / "before")
    numbers = job("tumbling", {"n": weir.count()})
    with pytest.raises(WeirError, match=r"step 'w'.*keep rows, others keep numbers"):
        testing.start(numbers, {"events": []}, from_savepoint=savepoint, allow_dropped_state=True)
