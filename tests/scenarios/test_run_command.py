"""``weir run`` while its control plane is killed, and while it is told to stop: real processes, a job of one file."""

import json
import signal
import time
import urllib.request
from collections import Counter

import pytest

from tests.effort import cases
from tests.scenarios.run_command import Command, wait_for

pytestmark = pytest.mark.scenario

ROWS, SERVERS = 400, 7

#: Half of the rows come; the others when there is a file "release".
JOB = f"""
import os
import signal
import sys
from pathlib import Path
from threading import Event

import weir


def rows(position):
    for number in range(position or 0, {ROWS}):
        while number >= {ROWS // 2} and not Path("release").exists():
            if Path("wait").exists():
                Path("hanging").touch()
                Event().wait()
            yield None
        yield [{{"id": number, "server": f"server-{{number % {SERVERS}}}"}}], number + 1


def build(output: str = "delivered", hangs: bool = False) -> weir.Dataflow:
    if sys.argv[0] == "control_plane" and Path("die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[0] == "control_plane" and Path("stay").exists():
        Path("building").touch()
        Event().wait()
    flow = weir.Dataflow("counts")
    stream = flow.source("rows", weir.UserSource(rows, schema={{"id": int, "server": str}}))
    if hangs:
        stream = stream.map("hang", hang, schema={{"id": int, "server": str}})
    stream.key_by("server").count("count").sink("out", weir.JsonLinesSink(output))
    return flow


def hang(row):
    Path("hanging").touch()
    Event().wait()
"""
SETTINGS = ["--set", "controlPlane.checkpoint_interval_ms=200"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "counts.py").write_text(JOB)
    return tmp_path


@pytest.fixture
def run(folder):
    commands = []

    def start(*arguments):
        commands.append(Command(folder, "counts.py", *SETTINGS, *arguments))
        return commands[-1]

    yield start
    for command in commands:
        command.close()


def delivered(folder):
    parts = sorted((folder / "delivered").glob("*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def check_all_once(folder):
    rows = delivered(folder)
    assert Counter(row["id"] for row in rows) == dict.fromkeys(range(ROWS), 1)
    counts = Counter()
    for row in sorted(rows, key=lambda row: row["id"]):
        counts[row["server"]] += 1
        assert row["count"] == counts[row["server"]]


def kill_control_plane(command):
    [control_plane] = command.control_planes()
    control_plane.kill()


def test_a_control_plane_that_is_killed_is_replaced_and_the_job_goes_on(run, folder):
    command = run("--param", "output=delivered")
    wait_for(lambda: delivered(folder), "the first rows")
    kill_control_plane(command)
    wait_for(lambda: command.said("the control plane was ended by signal 9; another one"), "the word of it")
    # Before it has begun to work.
    wait_for(command.control_planes, "another control plane")
    kill_control_plane(command)
    wait_for(lambda: command.said("the control plane was ended by signal 9; another one") == 2, "that, too")
    (folder / "release").touch()
    assert command.wait() == 0, command.lines
    check_all_once(folder)
    assert command.lines[-1].startswith(f"weir run: job counts finished: {ROWS} events in, {ROWS} out")
    log = (folder / ".weir/counts/logs/control_plane.log").read_text()
    # The task manager has not noticed.
    assert "all task managers are back: the job goes on" in log
    assert "starts again" not in log


def test_a_task_manager_that_is_killed_before_it_knows_the_job_is_replaced(run, folder):
    (folder / "release").touch()
    command = run("--param", "output=delivered")
    wait_for(command.task_managers, "a task manager")
    command.task_managers()[0].kill()
    assert command.wait() == 0, command.lines
    assert command.said("task manager 1 was ended by signal 9; starting another one") == 1, command.lines
    check_all_once(folder)


def test_a_run_from_a_savepoint_tells_of_itself_also_when_its_control_plane_is_killed(run, folder):
    half = ROWS // 2
    first = run()
    wait_for(lambda: len(delivered(folder)) == half, "half of the rows")
    [url] = [line.split()[-1] for line in first.lines if "/status" in line]
    stop = url.replace("status", "stop?savepoint=savepoints/half")
    urllib.request.urlopen(urllib.request.Request(stop, method="POST"), timeout=60).close()
    assert first.wait() == 0, first.lines
    begun_s = time.monotonic()
    second = run("--from-savepoint", "savepoints/half")
    log = folder / ".weir/counts/logs/control_plane.log"
    wait_for(lambda: log.read_text().count(": RUNNING") == 2, "the second run")
    kill_control_plane(second)
    wait_for(lambda: second.said("the control plane was ended by signal 9; another one"), "the word of it")
    (folder / "release").touch()
    assert second.wait() == 0, second.lines
    took_s = time.monotonic() - begun_s
    check_all_once(folder)
    assert f"counts finished: {half} events in, {half} out, in " in second.lines[-1]
    assert second.lines[-1].endswith(f" s ({ROWS} in and {ROWS} out with those before the savepoint)")
    assert float(second.lines[-1].split(", in ")[1].split()[0]) < took_s


def test_control_planes_that_die_at_the_same_place_are_given_up(run, folder):
    command = run()
    wait_for(lambda: delivered(folder), "the first rows")
    (folder / "die").touch()
    kill_control_plane(command)
    assert command.wait() == 1, command.lines
    assert command.said("another one takes the job over") == 4
    assert command.said("as 3 before it, before it came to work; giving up") == 1
    assert "error: the control plane was ended by signal 9; run the command again" in command.lines[-1]
    (folder / "die").unlink()
    (folder / "release").touch()
    again = run()
    assert again.wait() == 0, again.lines
    check_all_once(folder)


@pytest.mark.parametrize(
    ("signals", "code"),
    cases(
        [([signal.SIGTERM], 3), ([signal.SIGINT, signal.SIGINT], 130)],
        [([signal.SIGINT], 3), ([signal.SIGTERM], 3), ([signal.SIGINT, signal.SIGINT], 130)],
    ),
)
def test_a_run_whose_function_hangs_is_closed_by_a_signal(run, folder, signals, code):
    command = run("--param", "hangs=true")
    wait_for((folder / "hanging").exists, "a row in the function")
    command.send_signal(signals[0])
    wait_for(lambda: command.said("stopping the job"), "the word of the signal")
    for number in signals[1:]:
        command.send_signal(number)
    assert command.wait() == code, command.lines
    assert command.said("weir run: job counts cancelled: ") == 1
    assert command.said("did not stop in time") == 1
    (folder / "release").touch()
    # With another parameter it would be refused if the first run had been left running.
    again = run("--param", "hangs=false")
    assert again.wait() == 0, again.lines
    assert not again.said("left running")
    check_all_once(folder)


@pytest.mark.parametrize("number", cases([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_one_signal_while_the_job_is_built_cancels_it(run, folder, number):
    (folder / "stay").touch()
    command = run()
    wait_for((folder / "building").exists, "the job being built")
    command.send_signal(number)
    assert command.wait() == 3, command.lines
    assert command.lines[-1] == "weir run: job counts cancelled before it began"
    (folder / "stay").unlink()
    (folder / "release").touch()
    again = run()
    assert again.wait() == 0, again.lines
    check_all_once(folder)


def test_a_source_that_waits_for_its_next_row_does_not_hold_up_the_end(run, folder):
    (folder / "wait").touch()
    command = run()
    # What came before is delivered.
    wait_for(lambda: len(delivered(folder)) == ROWS // 2, "half of the rows")
    assert (folder / "hanging").exists()
    command.send_signal(signal.SIGINT)
    assert command.wait() == 3, command.lines
    assert not command.said("did not stop in time")
