"""Changes of sessions lead to the sessions of plain Python, whatever was told before two of them became one."""

import random

import pytest

import weir
from weir import testing
from weir.state.tables.panes.pane_table import PaneTable

GAP_MS, SEED = 7, 3


def changes_of(**updates):
    flow = weir.Dataflow("visits")
    events = weir.JsonLines("rows.jsonl", schema={"k": str, "at": int}, event_time="at")
    sessions = flow.source("rows", events).key_by("k").window(weir.session(GAP_MS), **updates)
    told = sessions.aggregate("visits", n=weir.count(), first=weir.min("at"))
    told.sink("out", weir.Collect())
    return flow


def row(key, at):
    return {"k": key, "at": at}


class Shown:
    """The table that changes lead to; each of them must fit what is there."""

    def __init__(self, job):
        self.job, self.seen, self.rows = job, 0, []

    def update(self):
        changes = self.job.rows("out").to_dicts()
        for change in changes[self.seen :]:
            result = tuple(change[name] for name in ("k", "window_start", "window_end", "n", "first"))
            if change["_change"] in ("delete", "update_before"):
                self.rows.remove(result)
            else:
                self.rows.append(result)
        self.seen = len(changes)
        return sorted(self.rows)


def sessions_of(rows):
    """Key, bounds, number of rows and first time of each session."""
    found = []
    for key in sorted({each["k"] for each in rows}):
        times = sorted(each["at"] for each in rows if each["k"] == key)
        starts = [n for n, at in enumerate(times) if not n or at - times[n - 1] > GAP_MS]
        for start, stop in zip(starts, [*starts[1:], len(times)], strict=True):
            inside = times[start:stop]
            found.append((key, inside[0], inside[-1] + GAP_MS, len(inside), inside[0]))
    return found


def test_results_that_a_session_which_stays_open_has_taken_in_leave():
    flow = changes_of(allowed_lateness=35, results="changelog")
    with testing.start(flow, {"rows": []}) as job:
        job.push("rows", [row("a", 0), row("a", 14)])
        job.advance_watermark("rows", 22)
        shown = Shown(job)
        assert shown.update() == [("a", 0, 7, 1, 0), ("a", 14, 21, 1, 14)]
        # Both have left. Now they belong to one that is open, until long after their rows can be forgotten.
        job.push("rows", [row("a", at) for at in (28, 7, 21)])
        for at in range(35, 120, GAP_MS):
            job.push("rows", [row("a", at)])
            job.advance_watermark("rows", at)
            shown.update()
        job.advance_watermark("rows", 200)
        assert shown.update() == [("a", 0, 126, 18, 0)]


@pytest.mark.parametrize(("lateness_ms", "is_early"), [(0, True), (20, True), (60, False)])
def test_what_is_shown_equals_plain_python(lateness_ms, is_early):
    made = random.Random(SEED)
    early = weir.every("10ms", time="event") if is_early else None
    flow = changes_of(allowed_lateness=lateness_ms, early=early, results="changelog")
    taken, watermark = [], 0
    with testing.start(flow, {"rows": []}, state="rocksdb" if is_early else "memory") as job:
        shown = Shown(job)
        for step in range(40):
            # No earlier row than could join a session which takes rows no more.
            earliest = max(0, watermark - lateness_ms)
            rows = [row(made.choice("ab"), made.randint(earliest, watermark + 25)) for _ in range(3)]
            job.push("rows", rows)
            taken += rows
            passed, watermark = watermark, watermark + made.choice([0, 1, 5, 10])
            job.advance_watermark("rows", watermark)
            found = shown.update()
            if step == 20:
                job.checkpoint()
                job.restart()
                shown.seen = len(job.rows("out").to_dicts())
            wanted = sessions_of(taken)
            if is_early and watermark // 10 > passed // 10:
                assert found == wanted
            assert {each for each in wanted if each[2] < watermark} <= set(found)
        job.finish()
        assert shown.update() == sessions_of(taken)


@pytest.mark.parametrize("lateness_ms", [0, 4, 30])
def test_a_watermark_looks_at_sessions_that_are_due_and_not_at_all_open_ones(monkeypatch, lateness_ms):
    looks = []
    entries = PaneTable.entries
    monkeypatch.setattr(
        PaneTable, "entries", lambda *given, **named: looks.append(1) or entries(*given, **named)
    )
    flow = changes_of(allowed_lateness=lateness_ms, early=weir.every("1h", time="event"), results="changelog")
    made = random.Random(SEED)
    given = [row(f"k{n}", made.randrange(GAP_MS * 4)) for n in range(300)]
    with testing.start(flow, {"rows": given}) as job:
        job.advance_watermark("rows", GAP_MS)
        looks.clear()
        shown = Shown(job)
        for at in range(GAP_MS + 1, 6 * GAP_MS):
            job.advance_watermark("rows", at)
            complete = [each for each in sessions_of(given) if each[2] < at]
            assert set(complete) <= set(shown.update())
        # A pane is listed once for each of three indexes, and there are six panes.
        assert len(looks) <= 3 * 6
