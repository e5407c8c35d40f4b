import io
import os
import pty
import re
import signal
import sys
import threading

import pytest
from rich.console import Console

from control_plane.job.late_counts import late_rows
from control_plane.terminal.follow import Lines, Rate
from control_plane.terminal.follow_view import Moment, line, screen
from control_plane.web.status_views import outcome
from control_plane.web.views import (
    CheckpointView,
    HeadlineView,
    RejectedView,
    RescaleView,
    RestoreView,
    StageView,
    StatusView,
    TotalsView,
)
from experiments.ports import free_port
from weir.process import bytecode
from weir.rpc import control_pb2


def status(state="RUNNING", events_in=12_345, **more):
    totals = TotalsView(
        events_in=events_in,
        events_out=9_000,
        events_rejected=0,
        distinct_keys=0,
        first_event_ms=None,
        last_event_ms=None,
        events_per_second=0,
    )
    counts = {"records_in": 0, "records_out": 0, "subtasks": []}
    said = HeadlineView(verdict="not_running", text=state.lower())
    given = {"generation": 1, "headline": said, **more}
    return StatusView(
        job_id="counts-1",
        job="counts",
        job_module="jobs.counts",
        parameters={},
        state=state,
        state_meaning="",
        fingerprint="",
        task_managers=[],
        stages=[StageView(stage=1, name="count", parallelism=2, keyed=True, **counts)],
        totals=totals,
        **given,
    )


def checkpoint(number, state="COMPLETE", ended_ms=9_000, cause=""):
    return CheckpointView(
        id=number,
        kind="checkpoint",
        path="",
        state=state,
        is_last=False,
        created_ms=8_000,
        started_ms=8_000,
        ended_ms=ended_ms,
        duration_ms=None if ended_ms is None else 1_035,
        new_bytes=2_500_000,
        size_bytes=3_000_000,
        cause=cause,
    )


def rescale(phase, owned, migrated):
    return RescaleView.model_validate(
        {
            "id": 4,
            "stage": 1,
            "from": 2,
            "to": 3,
            "subtasks_before": [0, 1],
            "subtasks_after": [0, 1, 2],
            "phase": phase,
            "cause": "",
            "groups_total": 40,
            "groups_owned": owned,
            "groups_migrated": migrated,
            "bytes_moved": 0,
            "started_ms": 0,
            "phases": {},
        }
    )


def restore(index, left, state="RESTORING"):
    return RestoreView(
        generation=2,
        stage=1,
        subtask_index=index,
        task_manager="127.0.0.1:8018",
        state=state,
        groups_total=64,
        groups_left=left,
        started_ms=0,
        ended_ms=None,
        duration_ms=100,
    )


def shown(moment):
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    console.print(screen(moment))
    return console.file.getvalue()


def bar_columns(text, row):
    """How much of a row's bar is filled; rich draws the rest only in colour."""
    return next(found for found in text.splitlines() if found.startswith(row)).count("━")


def test_everything_that_goes_on_is_shown():
    moment = Moment(
        status(generation=2, restarts=1, restart_cause="task manager x is lost"),
        4_000.0,
        12_000,
        [checkpoint(8, "IN_PROGRESS", None), checkpoint(7)],
        [rescale("MIGRATING", 40, 10)],
        [restore(0, 16), restore(1, 0, "COMPLETE")],
    )
    text = shown(moment)
    for words in (
        "RUNNING  counts, generation 2, 1 restarts",
        "last restart: task manager x is lost",
        "12,345 in, 4,000/s, 9,000 out",
        "checkpoint 7 COMPLETE in 1,035 ms, 2.5 MB new, 3 s ago",
        "4: count 2 -> 3 MIGRATING",
        "step 'count', subtask 0: 16 key groups left",
    ):
        assert words in text
    assert "subtask 1:" not in text
    assert (bar_columns(text, "rescale"), bar_columns(text, "restore")) == (6, 18)
    assert line(moment) == (
        "running; 12,345 events in, 4,000/s; checkpoint 7 COMPLETE in 1,035 ms, 2.5 MB new, 3 s ago; 4: count 2 -> 3 "
        "MIGRATING (10 of 40 key groups); restoring 1 subtasks, 16 key groups left"
    )


def test_what_it_waits_for_and_what_failed():
    waiting = Moment(status("WAITING_FOR_TASK_MANAGERS", 0, waiting_for="2 task manager(s)"), 0, 0)
    assert "2 task manager(s)" in shown(waiting)
    assert line(waiting).startswith("waiting_for_task_managers (2 task manager(s)); 0 events in")
    failed = Moment(status("FAILED", cause="disk full"), 0, 0, [checkpoint(7, "FAILED", cause="no room")])
    assert "disk full" in shown(failed)
    ends = Moment(status("FAILED", cause="step 'count', subtask 0 failed: no room"), 0.0, 0)
    assert line(ends) == "failed; 12,345 events in, 0/s"
    assert "checkpoint 7 FAILED in 1,035 ms" in line(failed)
    assert line(failed).endswith(": no room")


def test_many_restores_become_one_bar():
    text = shown(Moment(status(), 0, 0, restores=[restore(index, 32) for index in range(20)]))
    assert "restoring 20 subtasks, 640 key groups left" in text
    assert bar_columns(text, "restores") == 12


def test_an_ended_rescale_has_no_bar():
    text = shown(Moment(status(), 0, 0, rescales=[rescale("COMPLETE", 40, 40)]))
    assert "4: count 2 -> 3 COMPLETE" in text
    assert bar_columns(text, "rescale") == 0


def test_the_rate_is_that_of_the_last_seconds_and_begins_anew_with_a_restart():
    rate = Rate()
    assert rate(0.0, 0) == 0
    assert rate(1.0, 100) == 100
    assert rate(2.0, 200) == 100
    assert [rate(second, 200) for second in (3.0, 4.0, 5.0)][-1] == 0
    assert rate(6.0, 50) == 0
    assert rate(7.0, 90) == 40


def test_lines_come_now_and_then_and_when_something_begins_or_ends():
    written = []
    lines = Lines(written.append)
    for second in range(12):
        lines.show(Moment(status(), 0, 0), second)
    assert len(written) == 3
    lines.show(Moment(status("RESTARTING", generation=1), 0, 0), 12)
    lines.show(Moment(status(generation=2), 0, 0, restores=[restore(0, 9)]), 12)
    lines.show(Moment(status(generation=2), 0, 0, restores=[restore(0, 8)]), 12)
    lines.show(Moment(status(generation=2), 0, 0, restores=[restore(0, 0, "COMPLETE")]), 12)
    assert [text.split(";")[0] for text in written[3:]] == ["restarting", "running", "running"]
    assert len(written) == 6


@pytest.mark.scenario
@pytest.mark.parametrize("terminal", [True, False])
def test_a_control_plane_that_is_followed(terminal, tmp_path, forks):
    ports = ["--port", str(free_port()), "--http-port", str(free_port())]
    record = ["--set", f"controlPlane.state_path={tmp_path / 'control_plane.json'}"]
    near, far = pty.openpty() if terminal else os.pipe()
    job = ["--job", "jobs.throughput", "--param", "input=x", "--follow"]
    environment = {**os.environ, **bytecode.variables(), "TERM": "xterm", "COLUMNS": "100"}
    with os.fdopen(far, "wb") as output:
        process = forks.popen(
            [sys.executable, "-m", "control_plane", *job, *ports, *record], output, environment
        )
    seen, waiting = bytearray(), threading.Event()

    def read():
        while True:
            try:
                data = os.read(near, 4096)
            except OSError:
                return
            if not data:
                return
            seen.extend(data)
            if (b"0 in, 0/s" if terminal else b"0 events in, 0/s") in seen:
                waiting.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert waiting.wait(60), bytes(seen)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 3
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(near)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "CANCELLED" in text
    assert "stopping: cancelling job" in text, "log lines are there too"
    assert ("waiting_for_task_managers (" in text) is not terminal


def test_rows_that_came_too_late_are_told_by_step():
    reports = [
        control_pb2.SubtaskReport(late=[control_pb2.LateRows(step="windows", rows=rows)])
        for rows in (1_200, 34)
    ]
    shown = status(state="FINISHED")
    shown.totals.rows_late = late_rows([*reports, control_pb2.SubtaskReport()])
    assert shown.totals.rows_late == {"windows": 1_234}
    assert "1,234 late at windows" in line(Moment(shown, 0.0, 10_000))
    assert ", 1,234 late at windows, in" in outcome(shown)["summary"]


def test_the_first_rejected_record_is_told_once():
    item = RejectedView(
        step="events",
        kind="source",
        rejected=3,
        rows_in=None,
        first_reason="no JSON",
        first_source="in.jsonl",
        first_position=7,
        dead_letters="dead/events",
    )
    written = []
    lines = Lines(written.append)
    for second in (0.0, 6.0):
        lines.show(Moment(status(rejected=[item]), 1.0, 9_500, [], [], []), second)
    assert "3 records rejected by events (in.jsonl at 7: no JSON; dead letters: dead/events)" in written[0]
    assert written[1].endswith("3 records rejected by events")


def test_the_headline_is_in_the_line_and_on_the_screen():
    text = "stage 1 `count` limits: 2 of 2 subtasks 97 % busy"
    moment = Moment(status(headline=HeadlineView(verdict="limited", text=text, stage=1)), 10.0, 10_000)
    assert line(moment).startswith(f"running; {text}; 12,345 events in")
    assert text in shown(moment)
