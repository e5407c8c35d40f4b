"""What fails, says so in one line, and leaves the rest usable."""

import json
import signal
import time
from pathlib import Path

import pytest

from experiments.cluster import FINAL_STATES, Cluster
from experiments.held_source import keep_back

pytestmark = pytest.mark.scenario

EVENTS = 2_000
#: Of the one test that is about a lease; short, and long enough for a survivor on a busy machine.
LEASE_S = 5
JOB = "flow_faulty"
FLOWS = Path(__file__).parent / "flows"


@pytest.fixture(scope="module")
def events(tmp_path_factory, write_events):
    return write_events(tmp_path_factory.mktemp("failures") / "events.jsonl", EVENTS)


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory, environment, forks):
    """Two task managers that outlive one control plane after the other."""
    settings = {"controlPlane.restart_attempts": 0}
    directory = tmp_path_factory.mktemp("long_lived")
    with Cluster(directory, environment=environment, settings=settings, popen=forks.popen) as cluster:
        cluster.start_task_manager("first")
        cluster.start_task_manager("second")
        yield cluster


@pytest.fixture
def run_again(long_lived):
    """Runs a job on them to its end: its last status, the control plane's exit code and its log."""

    def run(job=JOB, settings=None, **parameters):
        log_path = long_lived.directory / "control_plane.log"
        earlier = len(log_path.read_text()) if log_path.exists() else 0
        process = long_lived.start_control_plane(job, parameters, exit_when_finished=False, settings=settings)
        status = long_lived.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
        process.popen.terminate()
        code = process.wait()
        return status, code, log_path.read_text()[earlier:]

    return run


def held(events, release):
    """Parameters of a job that does not end by itself."""
    return {"input": events, "rate": 100, "release": release}


def errors(log):
    """Lines of a log that are more than information."""
    return [line for line in log.splitlines() if " INFO " not in line]


def check_usable(run_again, events):
    status, code, _ = run_again(input=events)
    assert (status["state"], code) == ("FINISHED", 0)
    assert status["totals"]["events_out"] == EVENTS


def test_a_step_that_raises(run_again, events, long_lived):
    status, code, log = run_again(input=events, explodes="true")
    assert (status["state"], code) == ("FAILED", 1)
    assert "step 'exploding_step'" in status["cause"]
    assert "ValueError: no such server" in status["cause"]
    assert len(errors(log)) == 1
    assert status["cause"] in errors(log)[0]
    logs = [long_lived.processes[name].log_path.read_text() for name in ("first", "second")]
    [told] = [log for log in logs if "Traceback" in log]
    assert told.count("Traceback") == 1, "of the user's function: whole, with step and row"
    for text in ("step 'exploding_step' failed on the row {\"id\":500,", "in explode", "no such server"):
        assert text in told
    check_usable(run_again, events)


def test_an_absent_input(run_again, events, tmp_path):
    status, code, log = run_again(input=tmp_path / "absent")
    assert (status["state"], code) == ("FAILED", 1)
    assert str(tmp_path / "absent") in status["cause"]
    assert len(errors(log)) == 1
    check_usable(run_again, events)


@pytest.mark.parametrize(
    ("parameters", "cause"),
    [
        ({"input": "absent"}, "absent"),
        ({"exits": "true"}, "failed: SystemExit: no such server"),
        ({"sinks": "false"}, "a UserSink's factory gave int, not a TwoPhaseSink"),
        ({"job": "flow_poison", "output": "results", "rate": 100, "poison": -1}, "results"),
    ],
)
def test_what_would_fail_again_fails_at_once(run_again, events, tmp_path, parameters, cause):
    """With ten restarts allowed it makes none, and tells the root of it."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "part-00000-000001-00000001.jsonl").write_text("{}\n")
    paths = {name: tmp_path / parameters[name] for name in ("input", "output") if name in parameters}
    allowed = {"controlPlane.restart_attempts": 10}
    status, code, log = run_again(settings=allowed, **{"input": events} | parameters | paths)
    assert (status["state"], status["restarts"], code) == ("FAILED", 0, 1)
    assert cause in status["cause"]
    assert "its task manager stopped it" not in log
    assert len([line for line in log.splitlines() if " ERROR " in line]) == 1


def test_a_bad_record_that_fails_the_job(run_again, tmp_path):
    path = tmp_path / "bad.jsonl"
    good = json.dumps({"id": 1, "server": "a"}) + "\n"
    path.write_text(good * 10 + '{"id": "one"}\n' + good * 10)
    status, code, _ = run_again(input=path, on_bad_record="fail")
    assert (status["state"], code) == ("FAILED", 1)
    assert f"{path} at byte {10 * len(good)}" in status["cause"]


def test_sigterm_to_a_task_manager(long_lived, events, release):
    """What runs there, a source too, goes to the other one, and the job goes on."""
    keep_back(release, 0.5)
    process = long_lived.start_control_plane(JOB, held(events, release), exit_when_finished=False)
    long_lived.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first events")
    victim = long_lived.processes["second"]
    victim.popen.terminate()
    assert victim.wait() == 0
    status = long_lived.wait_for(
        lambda status: len(status["task_managers"]) == 1, "the task manager that left"
    )
    assert [item["address"] for item in status["task_managers"]] == [address(long_lived.processes["first"])]
    before = status["totals"]["events_out"]
    keep_back(release, 0)
    status = long_lived.wait_for(lambda status: status["totals"]["events_out"] > before, "further events")
    assert (status["state"], status["cause"]) == ("RUNNING", "")
    process.popen.terminate()
    assert process.wait() == 3


def test_kill_of_a_task_manager(long_lived, events, release):
    """After the test above: with one of the first two and a new one."""
    victim = long_lived.start_task_manager("third")
    lease = {"controlPlane.lease_timeout_ms": LEASE_S * 1000}
    process = long_lived.start_control_plane(
        JOB, held(events, release), exit_when_finished=False, settings=lease
    )
    long_lived.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first events")
    began_s = time.monotonic()
    victim.popen.kill()
    status = long_lived.wait_for(lambda status: status["state"] in FINAL_STATES, "the failure")
    assert time.monotonic() - began_s < LEASE_S + 30, "the lease and a bit"
    assert status["state"] == "FAILED"
    assert address(victim) in status["cause"]
    process.popen.terminate()
    assert process.wait() == 1
    # The other one takes the next job, which needs 6 slots and gets them when a fourth one comes.
    process = long_lived.start_control_plane(
        JOB, {"input": events, "parallelism": 3}, exit_when_finished=False
    )
    status = long_lived.wait_for(lambda status: len(status["task_managers"]) == 1, "the survivor")
    assert "2 task managers; 1 registered" in status["waiting_for"]
    long_lived.start_task_manager("fourth")
    status = long_lived.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["totals"]["events_out"]) == ("FINISHED", EVENTS)


def address(process):
    arguments = process.popen.args
    return f"127.0.0.1:{arguments[arguments.index('--port') + 1]}"


def test_failure_ends_all_processes(make_cluster, events):
    """``--exit-when-finished``: the control plane exits with 1, task managers with 0."""
    cluster = make_cluster()
    cluster.start_control_plane(JOB, {"input": events, "explodes": "true"})
    cluster.start_task_manager("first")
    cluster.start_task_manager("second")
    assert cluster.wait_ended() == {"control_plane": 1, "first": 0, "second": 0}


def test_a_store_directory_that_is_not_ours(make_cluster, events, tmp_path):
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "holiday.jpg").write_bytes(b"sea")
    settings = {"taskManager.rocksDBPath": str(foreign), "controlPlane.restart_attempts": 10}
    cluster = make_cluster(task_managers=1, settings=settings)
    cluster.start_control_plane(JOB, {"input": events})
    # With the documented port, so that the path is taken as it is.
    cluster.start(
        "task_manager",
        "task_manager",
        ["--control-plane", f"127.0.0.1:{cluster.grpc_port}"],
        {"taskManager.tm_port": 0},
    )
    assert cluster.wait_ended() == {"control_plane": 1, "task_manager": 0}
    lines = errors(cluster.processes["control_plane"].log_path.read_text())
    assert len(lines) == 1
    assert str(foreign) in lines[0]
    assert "is not ours" in lines[0]
    assert [item.name for item in foreign.iterdir()] == ["holiday.jpg"]


def test_a_task_manager_with_other_code(make_cluster, events, tmp_path, environment):
    """The job module found in its directory is another one: refused, with a way out."""
    other = tmp_path / "other"
    other.mkdir()
    source = (FLOWS / "flow_faulty.py").read_text()
    (other / "flow_faulty.py").write_text(source.replace('"id") >= 0', '"id") > 0'))
    cluster = make_cluster(task_managers=1, settings={"controlPlane.restart_attempts": 10})
    cluster.start_control_plane(JOB, {"input": events})
    changed = Cluster(
        tmp_path / "changed", environment={"PYTHONPATH": f"{other}:{environment['PYTHONPATH']}"}
    )
    with changed:
        changed.grpc_port = cluster.grpc_port
        task_manager = changed.start_task_manager("changed")
        assert cluster.wait_ended() == {"control_plane": 1}
        assert task_manager.wait() == 0
    lines = errors(cluster.processes["control_plane"].log_path.read_text())
    assert len(lines) == 1
    assert "fingerprint" in lines[0]
    assert "start both processes from the same code" in lines[0]


def test_sigterm_to_the_control_plane_cancels_the_job(make_cluster, events, release):
    cluster = make_cluster()
    control_plane = cluster.start_control_plane(JOB, held(events, release))
    cluster.start_task_manager("first")
    cluster.start_task_manager("second")
    cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first events")
    control_plane.popen.send_signal(signal.SIGTERM)
    assert cluster.wait_ended() == {"control_plane": 3, "first": 0, "second": 0}
    assert errors(control_plane.log_path.read_text()) == []


def test_a_task_manager_whose_control_plane_stays_away(make_cluster, events, release):
    """It goes on with its job for the time that it was given, and longer than one without a job."""
    cluster = make_cluster(task_managers=1)
    control_plane = cluster.start_control_plane(JOB, held(events, release))
    cluster.wait_for(lambda _: True, "the first status")
    waits = {"taskManager.connect_timeout_s": 0.1, "taskManager.reconnect_timeout_s": 2}
    process = cluster.start_task_manager("first", settings={"taskManager.operator_quota": 20, **waits})
    cluster.wait_for(lambda status: status["totals"]["events_in"] > 0, "events")
    control_plane.popen.kill()
    process.wait_for_text("what runs here goes on (for at most 2 s)")
    assert process.wait() == 1
    (error,) = [line for line in process.log_path.read_text().splitlines() if "task_manager: error:" in line]
    assert f"no control plane answered at 127.0.0.1:{cluster.grpc_port} for 2 s" in error
