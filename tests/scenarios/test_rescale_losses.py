"""kill -9 of each party in each phase of a rescale: the job fails and says where, or goes on with right results.

A phase is held by stopping a process (SIGSTOP) that it needs, or by state that takes a while to move.
"""

import signal
import time

import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak import JOB
from experiments.soak_check import check_output, write_events

pytestmark = pytest.mark.scenario

EVENTS, RATE = 7_000, 800
#: A stopped process must not lose its lease before the test has done its part.
SETTINGS = {"taskManager.operator_quota": 20, "controlPlane.lease_timeout_ms": 4000}
LOCAL = {**SETTINGS, "taskManager.useHybrid": "false"}
HYBRID = {**SETTINGS, "taskManager.useMigrate": "false"}
#: The background migration takes seconds.
SLOW = {**SETTINGS, "taskManager.migration_bytes_per_second": 65_536}
KEYED_STAGE, SINK_STAGE = 1, 5


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return write_events(tmp_path_factory.mktemp("losses") / "events.jsonl", EVENTS, 300, 6)


@pytest.fixture
def job(make_cluster, events, tmp_path):
    """Starts the job on two task managers; a third one has room and nothing else."""

    def start(settings, ballast_bytes=0):
        cluster = make_cluster(settings=settings)
        parameters = {
            "input": events,
            "output": tmp_path / "out",
            "rate": RATE,
            "ballast_bytes": ballast_bytes,
        }
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        names = [cluster.start_task_manager(name).name for name in ("a", "b", "c")]
        status = cluster.wait_for(
            lambda status: len(status["task_managers"]) == 3 and status["totals"]["events_out"] > 300,
            "three task managers and the first results",
        )
        # The two that came first have everything.
        used = {item["task_manager"] for stage in status["stages"] for item in stage["subtasks"]}
        cluster.idle = next(name for name in names if address(cluster, name) not in used)
        cluster.without_source = next(
            name
            for name in names
            if address(cluster, name) in used
            and address(cluster, name) != status["stages"][0]["subtasks"][0]["task_manager"]
        )
        return cluster

    return start


def address(cluster, name):
    return f"127.0.0.1:{cluster.processes[name].port}"


def host(cluster, stage):
    """The name of the task manager of a stage's first subtask."""
    place = cluster.status()["stages"][stage]["subtasks"][0]["task_manager"]
    return next(name for name in cluster.processes if place == address(cluster, name))


def send(cluster, name, number):
    cluster.processes[cluster.idle if name == "new" else name].popen.send_signal(number)


def request(cluster, stage, parallelism=2):
    code, body = cluster.http("POST", f"/scale?stage={stage}&parallelism={parallelism}")
    assert code == 202, body
    return body["url"]


def wait_phase(cluster, url, *phases):
    deadline_s = time.monotonic() + 15
    while (report := cluster.http("GET", url)[1])["phase"] not in phases:
        assert time.monotonic() < deadline_s, str(report)
        time.sleep(0.002)
    return report


def check_failed(cluster, *parts):
    """The job fails, with a cause that names all of this."""
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the failure", 20)
    assert status["state"] == "FAILED"
    for part in parts:
        assert part in status["cause"]
    assert "Traceback" not in status["cause"]
    assert "bug" not in status["cause"]


def check_goes_on(cluster, events, tmp_path):
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end", 40)
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check_output(events, tmp_path / "out")


def test_new_owner_while_it_is_deployed(job, events, tmp_path):
    cluster = job(SETTINGS)
    send(cluster, "new", signal.SIGSTOP)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "DEPLOYING")
    send(cluster, "new", signal.SIGKILL)
    report = wait_phase(cluster, url, "ABORTED")
    assert "could not be deployed" in report["cause"]
    check_goes_on(cluster, events, tmp_path)


def test_new_owner_while_owners_are_prepared(job, events, tmp_path):
    cluster = job(SETTINGS)
    old = host(cluster, 4)
    send(cluster, old, signal.SIGSTOP)
    url = request(cluster, 4)
    wait_phase(cluster, url, "PREPARING")
    send(cluster, "new", signal.SIGKILL)
    wait_phase(cluster, url, "ABORTED", "ABORTING")
    send(cluster, old, signal.SIGCONT)
    assert address(cluster, cluster.idle) in wait_phase(cluster, url, "ABORTED")["cause"]
    check_goes_on(cluster, events, tmp_path)


@pytest.mark.parametrize("party", ["old", "new"])
def test_owners_while_state_is_shipped(job, party):
    cluster = job(LOCAL, ballast_bytes=3_000)
    old = host(cluster, KEYED_STAGE)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "HANDING_OVER")
    send(cluster, old if party == "old" else "new", signal.SIGKILL)
    check_failed(cluster, f"rescale 1 of stage {KEYED_STAGE}", "HANDING_OVER")


@pytest.mark.parametrize("party", ["upstream", "new"])
def test_parties_while_upstream_switches(job, party):
    cluster = job(SETTINGS)
    upstream = host(cluster, SINK_STAGE - 1)
    send(cluster, upstream, signal.SIGSTOP)
    url = request(cluster, SINK_STAGE)
    wait_phase(cluster, url, "REROUTING")
    send(cluster, upstream if party == "upstream" else "new", signal.SIGKILL)
    if party == "new":
        wait_phase(cluster, url, "FAILED", "REROUTING")
        send(cluster, upstream, signal.SIGCONT)
    check_failed(cluster, f"rescale 1 of stage {SINK_STAGE}", "REROUTING")


@pytest.mark.parametrize("party", ["old", "new"])
def test_owners_while_state_follows(job, party):
    cluster = job(SLOW, ballast_bytes=3_000)
    old = host(cluster, KEYED_STAGE)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "MIGRATING")
    send(cluster, old if party == "old" else "new", signal.SIGKILL)
    check_failed(cluster, f"rescale 1 of stage {KEYED_STAGE}", "MIGRATING")


def test_a_task_manager_that_has_nothing_but_state(job):
    """Hybrid without migration: being drained, it has no subtask any more, and its state is still being fetched."""
    cluster = job({**HYBRID, "taskManager.migration_bytes_per_second": 65_536}, ballast_bytes=3_000)
    victim, place = cluster.without_source, address(cluster, cluster.without_source)
    assert cluster.http("POST", f"/drain?task_manager={place}")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/drains")[1][0]["groups_left"] > 0, "the fetch", 20)
    code, body = cluster.http("POST", "/scale?stage=2&parallelism=2")
    assert (code, place in body["error"]) == (409, True)
    send(cluster, victim, signal.SIGKILL)
    check_failed(cluster, place)


def test_a_short_stop_of_every_party(job, events, tmp_path):
    """Processes that come back before their leases end do no harm."""
    cluster = job({**SETTINGS, "controlPlane.lease_timeout_ms": 8000}, ballast_bytes=100)
    for number, name in enumerate(("a", "b", "c")):
        send(cluster, name, signal.SIGSTOP)
        url = request(cluster, KEYED_STAGE, 2 - number % 2)
        time.sleep(0.7)
        send(cluster, name, signal.SIGCONT)
        wait_phase(cluster, url, "COMPLETE")
    check_goes_on(cluster, events, tmp_path)


def test_cancel_during_a_rescale(job):
    cluster = job(SLOW, ballast_bytes=3_000)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "REROUTING", "HANDING_OVER", "MIGRATING")
    assert cluster.http("POST", "/cancel")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end", 15)
    assert (status["state"], status["cause"]) == ("CANCELLED", "")
    assert wait_phase(cluster, url, "FAILED")["cause"]
