"""Processes die, pause and come back while a job runs: what the sinks deliver is what a run without faults delivers."""

import json
import signal
import time

import pytest

import weir.testing
from experiments import soak_job
from experiments.cluster import FINAL_STATES, files_below
from experiments.held_source import keep_back
from experiments.soak import JOB
from experiments.soak_check import check_output, write_events
from tests.scenarios.losses import task_manager_of

pytestmark = pytest.mark.scenario

SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
}
EVENTS = 10_000
RATE = 1_000


def start(cluster, tmp_path, kept_back=0.3):
    """``kept_back``: of the rows, however slow the machine is, until the test says otherwise."""
    events = write_events(tmp_path / "events.jsonl", EVENTS, 300, 7)
    # The stream goes on until it is released.
    hold = {"rate": RATE, "release": tmp_path / "release"}
    keep_back(hold["release"], kept_back)
    parameters = {"input": events, "output": tmp_path / "out", **hold, "ballast_bytes": 200}
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")
    return events


def finish(cluster, events, tmp_path):
    """The end of the job, checked."""
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check_output(events, tmp_path / "out")
    delivered = sum(len(part.read_bytes().splitlines()) for part in (tmp_path / "out").glob("part-*"))
    totals = status["totals"]
    # Each event counts once, however often the job started again.
    assert totals["events_in"] == len(events.read_bytes().splitlines())
    assert totals["events_out"] == delivered
    return status


def restarted(cluster, generation=2):
    return cluster.wait_for(
        lambda status: status["generation"] >= generation and status["state"] in ("RUNNING", "FINISHED"),
        "the restart",
    )


def with_count(cluster):
    """The task manager that counts."""
    return task_manager_of(cluster, 1)


def check_restores(cluster, status):
    """All keyed stages are restored, and the pages say so; returns how many restores there were."""
    keyed = {stage["stage"] for stage in status["stages"] if stage["keyed"]}

    def restores():
        return cluster.http("GET", "/restores")[1]

    def latest():
        return [item for item in restores() if item["generation"] >= status["generation"]]

    cluster.wait_for(
        lambda _: {(item["stage"], item["state"]) for item in latest()} == {(n, "COMPLETE") for n in keyed},
        "the end of the restores",
    )
    assert all(item["groups_total"] > 0 == item["groups_left"] for item in latest())
    count = sum(item["state"] == "COMPLETE" for item in restores())
    assert f'state="COMPLETE"}} {count}.0' in cluster.http("GET", "/metrics")[1]
    return count


def test_kill_one_task_manager_after_the_other(make_cluster, tmp_path):
    """The one that counts, with a standby; then the one that reads; then the only one that is left."""
    cluster = make_cluster(settings=SETTINGS)
    events = start(cluster, tmp_path, 0.6)
    cluster.start_task_manager("standby")
    status = cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "the standby")
    for stage, kept_back in ((1, 0.4), (0, 0.2)):
        task_manager_of(cluster, stage).popen.kill()
        status = restarted(cluster, status["generation"] + 1)
        assert "no heartbeat" in status["restart_cause"] or "failed" in status["restart_cause"]
        count = check_restores(cluster, status)
        keep_back(tmp_path / "release", kept_back)
    with_count(cluster).popen.kill()
    cluster.wait_for(lambda status: status["state"] == "WAITING_FOR_TASK_MANAGERS", "the loss")
    cluster.start_task_manager("another")
    restarted(cluster, status["generation"] + 1)
    finish(cluster, events, tmp_path)
    logs = "".join(process.log_path.read_text() for process in cluster.processes.values())
    assert logs.count(" restored step") >= count


def test_a_paused_task_manager_is_fenced(make_cluster, tmp_path):
    # Only the end of its lease tells of it.
    cluster = make_cluster(settings=SETTINGS | {"controlPlane.lease_timeout_ms": 2_000})
    events = start(cluster, tmp_path)
    zombie = with_count(cluster)
    zombie.popen.send_signal(signal.SIGSTOP)
    try:
        cluster.start_task_manager("standby")
        restarted(cluster)
    finally:
        zombie.popen.send_signal(signal.SIGCONT)
    cluster.wait_for(
        lambda status: len(status["task_managers"]) == 3, "the return of the paused task manager"
    )
    finish(cluster, events, tmp_path)


def test_kill_after_a_rescale_and_during_one(make_cluster, tmp_path):
    """Key groups have moved, and a checkpoint was made since; then the next rescale has only begun."""
    cluster = make_cluster(settings=SETTINGS)
    events = start(cluster, tmp_path, 0.4)
    assert cluster.http("POST", "/scale?stage=1&parallelism=2")[0] == 202
    cluster.wait_for(
        lambda _: cluster.http("GET", "/rescales/1")[1]["phase"] in ("MIGRATING", "COMPLETE"), "the rescale"
    )
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest + 1, "a checkpoint behind it")
    with_count(cluster).popen.kill()
    cluster.start_task_manager("third")
    status = restarted(cluster)
    assert len(status["stages"][1]["subtasks"]) == 2
    check_restores(cluster, status)
    keep_back(tmp_path / "release", 0.1)
    assert cluster.http("POST", "/scale?stage=1&parallelism=3")[0] == 202
    with_count(cluster).popen.kill()
    restarted(cluster, status["generation"] + 1)
    finish(cluster, events, tmp_path)


def test_barriers_overtake_rows_under_back_pressure(make_cluster, tmp_path):
    """The rows that they overtook are in the checkpoint, and come first after the restart."""
    cluster = make_cluster(settings=SETTINGS | {"controlPlane.checkpoint_alignment_timeout_ms": 20})
    events = write_events(tmp_path / "events.jsonl", 2_000, 300, 7)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 2_000, "load_ms": 2.0}
    hold = {"release": tmp_path / "release", "count_parallelism": 2}
    cluster.start_control_plane(JOB, parameters | hold, exit_when_finished=False)
    for name in ("first", "second", "third"):
        cluster.start_task_manager(name)
    checkpoints = cluster.directory / "checkpoints"
    cluster.wait_for(
        lambda status: status["latest_checkpoint"] and any(files_below(checkpoints, "rows-*.arrow")),
        "a checkpoint with rows",
    )
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest, "the next checkpoint")
    with_count(cluster).popen.kill()
    restarted(cluster)
    finish(cluster, events, tmp_path)


def test_savepoint_under_back_pressure_is_complete(make_cluster, tmp_path):
    """Barriers overtake rows behind a slow step: the savepoint has them, and a job that starts from it goes on."""
    settings = SETTINGS | {
        "controlPlane.checkpoint_alignment_timeout_ms": 20,
        # Nothing is delivered but what the savepoint covers.
        "controlPlane.checkpoint_interval_ms": 3_600_000,
        # Barriers overtake batches, but not the one that a step is at.
        "taskManager.batch_size": 100,
    }
    events = write_events(tmp_path / "events.jsonl", 20_000, 300, 7)
    hold = {"release": tmp_path / "release", "count_parallelism": 2}
    parameters = {"input": events, "output": tmp_path / "out", **hold}
    cluster = make_cluster(settings=settings)
    slow = {"rate": 2_000, "load_ms": 2.0}
    cluster.start_control_plane(JOB, parameters | slow, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: status["totals"]["events_in"] > 1_000, "rows")
    for number in range(1, 21):
        savepoint = cluster.directory / "savepoints" / str(number)
        assert cluster.http("POST", f"/savepoint?path={savepoint}")[0] == 202
        cluster.wait_for(lambda status, number=number: status["latest_checkpoint"] == number, "the savepoint")
        if list(savepoint.rglob("rows-*.arrow")):
            break
    else:
        pytest.fail("no barrier overtook a row")
    assert cluster.http("POST", "/cancel")[0] == 202
    cluster.wait_for(lambda status: status["state"] == "CANCELLED", "the end")
    cluster.stop()
    again = make_cluster(settings=settings)
    again.start_control_plane(
        JOB, parameters, exit_when_finished=False, arguments=["--from-savepoint", str(savepoint)]
    )
    for name in ("first", "second"):
        again.start_task_manager(name)
    finish(again, events, tmp_path)


def kill_control_plane(cluster):
    control_plane = cluster.processes.pop("control_plane")
    control_plane.popen.kill()
    control_plane.popen.wait()


def test_another_control_plane_takes_over(make_cluster, tmp_path):
    """The job goes on meanwhile, and afterwards without a restart, unless a task manager was lost, too."""
    cluster = make_cluster(settings=SETTINGS)
    events = write_events(tmp_path / "events.jsonl", EVENTS, 300, 7)
    release = tmp_path / "release"
    # Rows for the other control plane.
    keep_back(release, 0.6)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE, "release": release}
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: status["state"] == "RUNNING", "the start")
    assert cluster.http("POST", "/scale?stage=1&parallelism=2")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/rescales/1")[1]["phase"] == "COMPLETE", "the rescale")
    rescale = cluster.http("GET", "/rescales/1")[1]
    before = cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")
    known = cluster.directory / "control_plane.json.history"
    cluster.wait_for(lambda _: known.exists(), "the history of the page")
    kill_control_plane(cluster)
    killed_ms = time.time() * 1e3
    # With another parameter it is another job: it is not started from nothing without a word.
    other = cluster.start_control_plane(JOB, parameters | {"rate": RATE + 1}, name="other")
    assert other.wait() == 2
    error = cluster.processes.pop("other").log_path.read_text().splitlines()[-1]
    assert f"rate was {RATE}.0 and is {RATE + 1}.0" in error
    assert "--start-fresh" in error
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    keep_back(release, 0.3)
    status = cluster.wait_for(
        lambda status: (
            (status["latest_checkpoint"] or 0) > before["latest_checkpoint"] + 1
            and status["totals"]["events_in"] > before["totals"]["events_in"]
        ),
        "a checkpoint of the other control plane, and rows",
    )
    assert (status["job_id"], status["generation"]) == (before["job_id"], 1)
    assert cluster.http("GET", "/rescales")[1] == [rescale]
    victim = with_count(cluster)
    kill_control_plane(cluster)
    victim.popen.kill()
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    cluster.start_task_manager("third")
    restarted(cluster)
    found = cluster.http("GET", "/history")[1]
    assert "takeover" in {mark["kind"] for mark in found["marks"]}
    assert found["times_ms"][0] < killed_ms, "what was before the first kill is still there"
    finish(cluster, events, tmp_path)


def test_start_from_a_savepoint_with_another_parallelism(make_cluster, tmp_path):
    """From task managers into one process and back again: savepoints have one form."""
    cluster = make_cluster(settings=SETTINGS)
    # Rows for the job in one process.
    events = start(cluster, tmp_path, 0.5)
    code, body = cluster.http("POST", f"/savepoint?path={tmp_path / 'savepoint'}")
    assert code == 403
    assert "controlPlane.savepoint_roots" in body["error"]
    savepoint = cluster.directory / "savepoints" / "monday"
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    cluster.wait_for(lambda status: status["state"] == "STOPPED", "the end")
    cluster.stop()
    keep_back(tmp_path / "release", 0)
    # Fast, so that rows do not come one by one.
    here = soak_job.build(
        str(events),
        str(tmp_path / "out"),
        rate=20_000,
        count_parallelism=2,
        release=str(tmp_path / "release"),
    )
    with weir.testing.start(here, {}, from_savepoint=savepoint) as job:
        job.advance_time(100)
        assert len(job.rows("out")) > 1_000
        savepoint = job.savepoint(tmp_path / "savepoint_here")
    again = make_cluster(settings=SETTINGS)
    parameters = {
        "input": events,
        "output": tmp_path / "out",
        "release": tmp_path / "release",
        "count_parallelism": 3,
    }
    again.start_control_plane(
        JOB, parameters, exit_when_finished=False, arguments=["--from-savepoint", savepoint.path]
    )
    for name in ("first", "second"):
        again.start_task_manager(name)
    finish(again, events, tmp_path)


def test_checkpoints_follow_one_another_and_a_cancelled_job_goes_on_from_the_latest(make_cluster, tmp_path):
    """Nothing is delivered that it does not cover."""
    cluster = make_cluster(settings=SETTINGS)
    events = start(cluster, tmp_path)
    assert cluster.http("POST", "/checkpoints")[0] == 202
    # The one that was asked for waits for its turn.
    cluster.wait_for(lambda status: status["latest_checkpoint"] >= 5, "further checkpoints")
    found = cluster.http("GET", "/checkpoints")[1]
    assert {item["state"] for item in found} <= {"COMPLETE", "IN_PROGRESS", "COMMITTING"}
    # On a slow machine all rows have come before the later ones.
    assert all(item["new_bytes"] > 0 for item in found[-2:])
    assert cluster.http("POST", "/cancel")[0] == 202
    job_id = cluster.wait_for(lambda status: status["state"] == "CANCELLED", "the end")["job_id"]
    cluster.stop()
    again = make_cluster(settings=SETTINGS)
    hold = {"release": tmp_path / "release", "count_parallelism": 2}
    again.start_control_plane(
        JOB,
        {"input": events, "output": tmp_path / "out", **hold},
        exit_when_finished=False,
        arguments=["--from-checkpoint", str(cluster.directory / "checkpoints" / job_id)],
    )
    for name in ("first", "second"):
        again.start_task_manager(name)
    finish(again, events, tmp_path)
    found = again.http("GET", "/checkpoints")[1]
    assert found[0]["is_last"]
    assert {item["state"] for item in found} == {"COMPLETE"}


def test_poison_records_are_put_aside(make_cluster, tmp_path):
    """The first fails the job a few times; then the job goes on without it, and without one after a checkpoint."""
    events = write_events(tmp_path / "events.jsonl", 3_000, 30, 7)
    cluster = make_cluster(settings={**SETTINGS, "controlPlane.restart_delay_ms": 10}, task_managers=1)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 1_000, "poison": 500, "also": 2_900}
    cluster.start_control_plane("flow_poison", parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["restarts"]) == ("FINISHED", 3)
    paths = (tmp_path / "out").glob("part-*")
    found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert sorted(row["id"] for row in found) == sorted({*range(3_000)} - {500, 2_900})
    [letters] = (cluster.directory / "dead_letters").rglob("picky*.jsonl")
    reasons = [json.loads(line)["reason"] for line in letters.read_text().splitlines()]
    assert ["too hot" in reason for reason in reasons] == [True, True]
    cluster.wait_for(
        lambda _: not any((cluster.directory / "checkpoints").rglob("*.json")),
        "the end of checkpoints that are of no use any more",
    )


def test_a_row_that_is_put_aside_again_after_a_restart_has_one_dead_letter(make_cluster, tmp_path):
    events = write_events(tmp_path / "events.jsonl", 3_000, 30, 7)
    settings = {"controlPlane.poison_attempts": 1, "controlPlane.checkpoint_interval_ms": 3_600_000}
    cluster = make_cluster(settings=SETTINGS | settings, task_managers=1)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 1_000, "poison": 100}
    parameters["release"] = tmp_path / "release"
    cluster.start_control_plane("flow_poison", parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    directory = cluster.directory / "dead_letters"
    cluster.wait_for(lambda _: any(directory.rglob("picky*.jsonl")), "the dead letter")
    cluster.processes["first"].popen.kill()
    cluster.start_task_manager("second")
    parameters["release"].touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["restarts"]) == ("FINISHED", 2)
    assert [(item["step"], item["rejected"]) for item in status["rejected"]] == [("picky", 1)], (
        "it came again"
    )
    [letters] = directory.rglob("picky*.jsonl")
    assert len(letters.read_text().splitlines()) == 1
