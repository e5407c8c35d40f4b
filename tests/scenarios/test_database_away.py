"""A real Cassandra that a job loses: it is waited for, visibly, or ends the job; each row counts once."""

import signal

import pytest

from experiments.cluster import FINAL_STATES
from tests.scenarios.losses import task_manager_of
from tests.scenarios.test_user_states import SETTINGS, STAGE, check
from tests.weir.state.cassandra.cable import Cable

pytestmark = [pytest.mark.service, pytest.mark.scenario]

EVENTS, RATE = 2_000, 200
JOB = "flow_states"


@pytest.fixture
def settings(cassandra_node):
    return SETTINGS | {
        "taskManager.state_backend": "cassandra",
        "taskManager.cassandra.port": cassandra_node.port,
        "taskManager.cassandra.username": "cassandra",
        "taskManager.cassandra.password": "cassandra",
        "taskManager.cassandra.apply_pause_ms_max": 0,
        "taskManager.cassandra.give_up_after_ms": 4_000,
        "controlPlane.restart_delay_ms_max": 1_000,
        "controlPlane.restart_attempts": 20,
    }


@pytest.fixture
def parameters(tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    return {"input": events, "output": tmp_path / "out", "release": tmp_path / "release", "rate": RATE}


@pytest.fixture
def cable(cassandra_node):
    cable = Cable(cassandra_node.port)
    yield cable
    cable.cut()


def test_a_database_that_is_away_is_waited_for_and_who_looks_is_told(
    make_cluster, settings, parameters, cable, tmp_path
):
    """In the midst of its checkpoints; then its task manager dies, too. One that restarts: ``test_cassandra.py``."""
    address = f"127.0.0.1:{cable.port}"
    settings |= {"taskManager.cassandra.port": cable.port}
    cluster = make_cluster(settings=settings, task_managers=1)
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    first = cluster.start_task_manager("first")
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")
    cable.cut()

    def told(status):
        return [manager["waits_for"] for manager in status["task_managers"] if manager["waits_for"]]

    (line,) = told(cluster.wait_for(told, "a status that says what is waited for"))
    assert f"Cassandra at {address} does not answer" in line
    log = first.log_path.read_text()
    assert f"Cassandra at {address} cannot" in log
    assert "trying again, rows wait" in log
    # All keys are cached: rows go on until two complete checkpoints are not applied.
    task_manager_of(cluster, STAGE).popen.kill()
    second = cluster.start_task_manager("second")
    cause = cluster.wait_for(lambda status: address in status["restart_cause"], "a cause", 150)[
        "restart_cause"
    ]
    assert f"Cassandra at {address} does not answer; see whether it runs" in cause
    cable.mend()
    cluster.wait_for(lambda status: status["state"] == "RUNNING", "the job to go on", 150)
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 150)
    assert (status["state"], status["cause"], told(status)) == ("FINISHED", "", [])
    assert second.alive()
    check(tmp_path / "out", EVENTS)


def test_a_database_that_is_stopped_ends_the_job_if_so_set_and_a_later_start_goes_on(
    make_cluster, settings, parameters, cassandra_node, tmp_path
):
    """It does not answer at the first start, nor later in the middle of the job."""
    address = f"127.0.0.1:{cassandra_node.port}"
    fails = {"taskManager.cassandra.when_away": "fail", "taskManager.cassandra.dml_timeout_ms": 2_000}
    cluster = make_cluster(settings=settings | fails, task_managers=1)
    begun = 0

    def start():
        nonlocal begun
        begun += 1
        task_manager = cluster.start_task_manager(f"task_manager_{begun}")
        return cluster.start_control_plane(JOB, parameters, name=f"control_plane_{begun}"), task_manager

    def ended(control_plane):
        """The one error of one that ended because of the database."""
        assert control_plane.popen.wait(150) == 1
        (last,) = [line for line in control_plane.log_path.read_text().splitlines() if " ERROR " in line]
        assert f"Cassandra at {address}" in last
        assert "; see whether it runs" in last
        return last

    cassandra_node.pause(signal.SIGSTOP)
    try:
        control_plane, _ = start()
        ended(control_plane)
        cassandra_node.pause(signal.SIGCONT)
        cassandra_node.wait_for_role()
        control_plane, _ = start()
        cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "checkpoints", 150)
        cassandra_node.pause(signal.SIGSTOP)
        last = ended(control_plane)
    finally:
        cassandra_node.pause(signal.SIGCONT)
    # Once, and by the name of the step.
    assert last.count("timed out") <= 1
    # A busy machine may have begun a new deployment meanwhile, whose refusal ends the job then.
    log = control_plane.log_path.read_text()
    assert any("step" in line and f"Cassandra at {address}" in line for line in log.splitlines()), log
    (tmp_path / "release").touch()
    control_plane, _ = start()
    assert control_plane.popen.wait(150) == 0
    assert "goes on from its checkpoint" in control_plane.log_path.read_text()
    check(tmp_path / "out", EVENTS)
