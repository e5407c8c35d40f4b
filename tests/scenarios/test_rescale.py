"""Stages are scaled while they run: results stay those of a batch computation, whatever the strategy and the moment."""

import signal
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from experiments.cluster import FINAL_STATES, Cluster
from experiments.held_source import keep_back
from experiments.soak import JOB, SoakSettings, StreamEndedError, rescale, run_soak
from experiments.soak_check import check_output, write_events
from tests.effort import cases
from tests.otlp_receiver import OtlpReceiver, attributes_of

pytestmark = pytest.mark.scenario

QUOTA = {"taskManager.operator_quota": 20}
HYBRID_ONLY = {"taskManager.useMigrate": "false"}
HYBRID = {**QUOTA, **HYBRID_ONLY}
SOAK = SoakSettings(rescales=cases(4, 6), rate=500, interval_s=0.4, task_managers=2, seed=3)


@pytest.mark.parametrize("strategy", ["local", "hybrid-no-cache", "hybrid", "migrate"])
def test_random_rescales_with_every_strategy(strategy, tmp_path, environment, forks):
    """Out and in, keyed stages with two kinds of state and round-robin ones, on two task managers.

    ``run_soak`` compares what comes out row by row with the input.
    """
    lines = []
    # Without a cache each row asks the former owner of its state: all of them took as long as all other strategies.
    settings = replace(SOAK, rate=100) if strategy == "hybrid-no-cache" else SOAK
    result = run_soak(tmp_path, strategy, settings, lines.append, environment, forks.popen)
    assert result.rescales == SOAK.rescales, lines
    assert result.groups_moved > 0


def start(cluster, parameters, job=JOB, task_managers=("first", "second"), settings=None):
    """``settings``: of the control plane only."""
    cluster.start_control_plane(job, parameters, exit_when_finished=False, settings=settings)
    for name in task_managers:
        cluster.start_task_manager(name)
    return cluster.wait_for(has_output, "the first results")


def has_output(status):
    assert status["state"] not in ("FAILED", "CANCELLED"), status["cause"]
    return status["totals"]["events_out"] > 0


def finish(cluster):
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    return status


def address(cluster, name):
    return f"127.0.0.1:{cluster.processes[name].port}"


def subtasks(status, stage):
    return [item["subtask_index"] for item in status["stages"][stage]["subtasks"]]


def test_an_overloaded_stage_and_those_that_it_holds_back(make_cluster, tmp_path, release):
    """3 ms of CPU for each row: rows wait everywhere before stage 3."""
    events = write_events(tmp_path / "events.jsonl", 3_000, 50, 1)
    # Small batches, so that not all rows fit into the buffers.
    cluster = make_cluster(settings={**QUOTA, "taskManager.batch_size": 100})
    start(cluster, {"input": events, "output": tmp_path / "out", "load_ms": 3, "release": release})
    cluster.wait_for(
        lambda status: status["stages"][2]["subtasks"][0]["backpressured_ratio"] > 0.2, "pressure"
    )
    for stage, parallelism in ((3, 3), (2, 2), (3, 2), (1, 2)):
        rescale(cluster, stage, parallelism)
    release.touch()
    status = finish(cluster)
    assert status["totals"]["events_out"] == 3_000
    assert subtasks(status, 3) == [0, 1]
    check_output(events, tmp_path / "out")


def test_right_after_the_start_and_up_to_the_end(make_cluster, tmp_path, release):
    """Requests from the first moment on, until they come too late."""
    events = write_events(tmp_path / "events.jsonl", 20_000, 50, 2)
    cluster = make_cluster(settings=QUOTA)
    parameters = {
        "input": events,
        "output": tmp_path / "out",
        "rate": 1000,
        "source_parallelism": 2,
        "release": release,
    }
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    cluster.start_task_manager("second")
    cluster.wait_for(lambda status: status["state"] == "RUNNING", "the running job")
    done = 0
    try:
        while True:
            rescale(cluster, 1 + done % 5, 1 + (done // 5 + 1) % 3)
            done += 1
            if done == 5:
                release.touch()
    except StreamEndedError:
        assert done >= 5
    finish(cluster)
    check_output(events, tmp_path / "out", ordered=False)


def test_copies_for_every_subtask(make_cluster, tmp_path, release):
    """BROADCAST into a stage that is rescaled: a row goes to all of its subtasks, those of one moment."""
    count = 20_000
    events = write_events(tmp_path / "events.jsonl", count, 50, 5)
    cluster = make_cluster(settings=QUOTA)
    keep_back(release, 0.6)
    start(
        cluster,
        {"input": events, "output": tmp_path / "out", "rate": 2000, "release": release},
        "flow_copies",
    )
    for parallelism, kept_back in ((3, 0.4), (1, 0.2), (2, 0)):
        rescale(cluster, 1, parallelism)
        seen = cluster.status()["totals"]["events_in"]
        keep_back(release, kept_back)
        cluster.wait_for(lambda status, seen=seen: status["totals"]["events_in"] > seen, "further rows")
    release.touch()
    finish(cluster)
    by_subtask = defaultdict(list)
    for part in sorted((tmp_path / "out").glob("part-*.jsonl")):
        by_subtask[part.name.split("-")[1]].append(pl.read_ndjson(part))
    copies = np.zeros(count, dtype=np.int64)
    for subtask, parts in by_subtask.items():
        ids = pl.concat(parts)["id"].to_numpy()
        assert np.array_equal(ids, np.arange(ids[0], ids[-1] + 1)), subtask
        copies[ids] += 1
    changes = np.flatnonzero(np.diff(copies)) + 1
    assert copies[[0, *changes]].tolist() == [2, 3, 1, 2]


# --- one job for all requests that are refused, and for watermarks -----------------------------------------------


@pytest.fixture(scope="module")
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def running(tmp_path_factory, environment, forks, receiver):
    directory = tmp_path_factory.mktemp("scalable")
    # 10 minutes of events.
    busy = write_events(directory / "busy.jsonl", 600_000, 50, 1)
    short = write_events(directory / "short.jsonl", 300, 50, 2)
    settings = {
        "taskManager.operator_quota": 12,
        "controlPlane.watermark_interval": 0.1,
        "controlPlane.out_of_order_grace_period": 0.2,
        "controlPlane.idle_timeout_ms": 300,
        "traces.endpoint": receiver.url,
        # The control plane says otherwise, and it counts: else the first rescale would stay MIGRATING for ever.
        **HYBRID_ONLY,
    }
    environment = {**environment, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with Cluster(
        directory / "cluster", environment=environment, settings=settings, popen=forks.popen
    ) as cluster:
        parameters = {"busy": busy, "short": short, "rate": 1000, "output": directory / "out"}
        parameters["release"] = directory / "never"
        start(cluster, parameters, "flow_scalable", settings={"taskManager.useMigrate": "true"})
        yield cluster
        assert cluster.status()["state"] == "RUNNING", cluster.status()["cause"]


def stage_of(cluster, name):
    """The stage with an operator of this name."""
    return next(
        node["stage"] for node in cluster.http("GET", "/plan")[1]["operators"] if node["name"] == name
    )


def refused(cluster, path, method="POST"):
    code, body = cluster.http(method, path)
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    return code, body["error"]


def test_requests_that_make_no_sense(running):
    count, source = stage_of(running, "count"), stage_of(running, "busy")
    code, error = refused(running, "/scale?stage=99")
    assert code == 404
    assert "no stage 99; there are 0 (" in error
    for stage, name in ((count, "count"), (source, "busy")):
        assert f"{stage} ({name}" in error
    for number in ("0", "-1", "abc", "99999", "", "1.5"):
        code, error = refused(running, f"/scale?stage={count}&parallelism={number}")
        assert (code, "parallelism" in error) == (400, True), number
    for path in ("/scale", "/scale?parallelism=2", "/scale?stage=abc"):
        code, error = refused(running, path)
        assert (code, "stage" in error) == (400, True), path
    assert refused(running, "/scale", "GET")[0] == 400
    code, error = refused(running, f"/scale?stage={count}&parallelism=3", "GET")
    assert (code, "GET adds one subtask: for 3 send POST /scale?stage=" in error) == (400, True)
    code, error = refused(running, f"/scale?stage={count}&parallelism=1")
    assert (code, "already" in error) == (409, True)
    code, error = refused(running, f"/scale?stage={stage_of(running, 'first')}")
    assert code == 409
    assert "subtask by subtask" in error
    code, error = refused(running, f"/scale?stage={count}&parallelism=50")
    assert code == 409
    for name in ("first", "second"):
        assert f"{address(running, name)}: " in error
        assert " of 12 free" in error
    code, error = refused(running, f"/scale?stage={count}&parallelism=200")
    assert (code, "128 key groups" in error) == (409, True)
    assert refused(running, "/rescales/99", "GET")[0] == 404
    assert refused(running, "/rescales/abc", "GET")[0] == 400
    code, error = refused(running, "/drain?task_manager=10.0.0.1:1")
    assert code == 404
    assert address(running, "first") in error
    assert refused(running, "/drain")[0] == 400


def test_one_rescale_at_a_time(running):
    count = stage_of(running, "count")
    process = running.processes["second"]
    process.popen.send_signal(signal.SIGSTOP)  # No phase ends without it.
    try:
        code, body = running.http("GET", f"/scale?stage={count}")
        assert code == 202
        code, error = refused(running, f"/scale?stage={count}&parallelism=4")
        assert code == 409
        assert f"rescale {body['rescale']} of stage {count}" in error
    finally:
        process.popen.send_signal(signal.SIGCONT)
    running.wait_for(lambda _: running.http("GET", body["url"])[1]["phase"] == "COMPLETE", "the rescale")
    report = running.http("GET", body["url"])[1]
    assert (report["from"], report["to"], report["groups_total"]) == (1, 2, 64)
    assert report["groups_owned"] == report["groups_migrated"] == 64
    assert list(report["phases"])[-1] == "COMPLETE"
    assert running.http("GET", "/rescales")[1][0] == report
    table = next(item for item in running.http("GET", "/routing")[1] if item["stage"] == count)
    assert table["groups_per_subtask"] == [64, 64]


def test_a_collector_gets_the_rescale_and_checkpoints(running, receiver):
    """What the pages say of them, as traces."""
    running.wait_for(lambda _: receiver.roots("rescale") and receiver.roots("checkpoint"), "traces", 30)
    rescale = receiver.roots("rescale")[0]
    told = attributes_of(rescale)
    report = running.http("GET", f"/rescales/{told['weir.rescale.id']}")[1]
    assert (told["weir.rescale.from"], told["weir.rescale.to"]) == (1, 2)
    assert told["weir.rescale.phase"] == "COMPLETE"
    assert rescale.start_time_unix_nano == report["started_ms"] * 1_000_000
    assert [span.name for span in receiver.within(rescale)][:2] == ["rescale.preparation", "rescale.switch"]
    views = {view["id"]: view for view in running.http("GET", "/checkpoints")[1]}
    traced = {attributes_of(span)["weir.checkpoint.id"]: span for span in receiver.roots("checkpoint")}
    both = [number for number in traced if number in views and views[number]["state"] == "COMPLETE"]
    assert both
    span, view = traced[both[0]], views[both[0]]
    parts = [each for each in receiver.within(span) if each.name == "checkpoint.part"]
    slowest = max(parts, key=lambda each: each.end_time_unix_nano)
    assert slowest.end_time_unix_nano - span.start_time_unix_nano == view["parts_duration_ms"] * 1_000_000
    assert view["slowest"] == attributes_of(span)["weir.checkpoint.slowest"]
    assert receiver.resources[0]["service.name"] == "weir"


def test_the_strategy_of_the_control_plane_counts(running):
    """The task managers of this job are configured otherwise; what the rescales say is above."""
    for name in ("first", "second"):
        told = [
            line for line in running.processes[name].log_path.read_text().splitlines() if "useMigrate" in line
        ]
        assert len(told) == 1
        assert "WARNING" in told[0]
        assert "useMigrate false, useCache true here" in told[0]
        assert "useMigrate true, useCache true at the control plane" in told[0]


@pytest.mark.parametrize("name", ["both", "count", "tied", "out", "copies"])
def test_watermarks_go_on(running, name):
    """A source has ended and another one is idle for ever: what a new subtask must be told."""
    stage = stage_of(running, name)
    before = len(subtasks(running.status(), stage))
    for parallelism in (before + 1, before):
        try:
            rescale(running, stage, parallelism)
        except StreamEndedError:
            assert name == "copies"
            return
        watched = [stage_of(running, other) for other in (name, "count", "out")]
        now_ms = time.time() * 1e3
        running.wait_for(
            lambda status, now_ms=now_ms, watched=watched: all(
                (item["watermark_ms"] or 0) > now_ms
                for stage in watched
                for item in status["stages"][stage]["subtasks"]
                if item["state"] == "RUNNING"
            ),
            f"watermarks after the rescale of {name} to {parallelism}",
        )


# --- emptying a task manager -------------------------------------------------------------------------------------


def without_source(cluster, status):
    """The task manager that has state, and no source."""
    source = status["stages"][0]["subtasks"][0]["task_manager"]
    return next(name for name in ("first", "second") if address(cluster, name) != source)


def test_a_drained_task_manager_can_be_killed(make_cluster, tmp_path, release):
    """Without migration its state stays in its store, and has to be fetched before it is empty."""
    events = write_events(tmp_path / "events.jsonl", 20_000, 300, 3)
    cluster = make_cluster(settings=HYBRID)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 600, "ballast_bytes": 100}
    status = start(cluster, {**parameters, "release": release})
    victim = without_source(cluster, status)
    place = address(cluster, victim)
    keyed = [stage["stage"] for stage in status["stages"] if stage["subtasks"][0]["task_manager"] == place]
    cluster.start_task_manager("third")
    cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "the third task manager")
    rescale(cluster, keyed[-1], 2)
    assert cluster.http("POST", f"/drain?task_manager={place}")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/drains")[1][0]["state"] != "DRAINING", "the drain")
    drained = cluster.http("GET", "/drains")[1][0]
    assert (drained["state"], drained["cause"], drained["groups_left"]) == ("EMPTY", "", 0)
    assert drained["rescales"]
    status = cluster.status()
    assert place not in {item["task_manager"] for stage in status["stages"] for item in stage["subtasks"]}
    cluster.processes[victim].popen.kill()
    release.touch()
    finish(cluster)
    check_output(events, tmp_path / "out")


def test_splits_move_between_subtasks_of_a_source_that_is_rescaled_and_drained(
    make_cluster, tmp_path, release
):
    """A file that one subtask reads is shared by more and by fewer, and goes elsewhere: each line comes once."""
    events = write_events(tmp_path / "events.jsonl", 20_000, 300, 5)
    cluster = make_cluster(settings=QUOTA)
    keep_back(release, 0.5)
    status = start(cluster, {"input": events, "output": tmp_path / "out", "rate": 1000, "release": release})
    for parallelism, kept_back in ((3, 0.25), (2, 0)):
        before = cluster.status()["totals"]["events_out"]
        rescale(cluster, 0, parallelism)
        keep_back(release, kept_back)
        status = cluster.wait_for(
            lambda status, before=before: status["totals"]["events_out"] > before + 500, "further rows"
        )
        assert len(status["stages"][0]["subtasks"]) == parallelism
    place = status["stages"][0]["subtasks"][0]["task_manager"]
    assert cluster.http("POST", f"/drain?task_manager={place}")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/drains")[1][0]["state"] != "DRAINING", "the drain")
    drained = cluster.http("GET", "/drains")[1][0]
    assert (drained["state"], drained["cause"]) == ("EMPTY", "")
    next(p for p in cluster.processes.values() if place.endswith(f":{p.port}")).popen.kill()
    release.touch()
    finish(cluster)
    check_output(events, tmp_path / "out", ordered=False)


def test_sigterm_empties_a_task_manager(make_cluster, tmp_path, release):
    """Also when the control plane lets it wait for longer than a call takes."""
    events = write_events(tmp_path / "events.jsonl", 20_000, 300, 4)
    cluster = make_cluster(settings=QUOTA)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 1000, "ballast_bytes": 100}
    status = start(cluster, {**parameters, "release": release})
    victim = cluster.processes[without_source(cluster, status)]
    cluster.processes["control_plane"].popen.send_signal(signal.SIGSTOP)
    victim.popen.terminate()
    time.sleep(2.5)
    cluster.processes["control_plane"].popen.send_signal(signal.SIGCONT)
    assert victim.wait() == 0
    assert "others have taken over" in victim.log_path.read_text()
    status = cluster.wait_for(lambda status: len(status["task_managers"]) == 1, "its leave")
    assert status["state"] == "RUNNING", status["cause"]
    release.touch()
    finish(cluster)
    check_output(events, tmp_path / "out")


def test_sigterm_without_room_elsewhere(make_cluster, tmp_path, release):
    """It stops all the same, and the job's failure says why."""
    events = write_events(tmp_path / "events.jsonl", 20_000, 300, 4)
    cluster = make_cluster(settings={"taskManager.operator_quota": 3})
    parameters = {"input": events, "output": tmp_path / "out", "rate": 1000, "release": release}
    status = start(cluster, parameters)
    victim = cluster.processes[without_source(cluster, status)]
    victim.popen.terminate()
    assert victim.wait() == 0
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the failure")
    assert status["state"] == "FAILED"
    assert f"127.0.0.1:{victim.port} is lost: it was stopped and left" in status["cause"]
    assert "0 are free" in status["cause"]
