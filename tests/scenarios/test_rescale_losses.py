"""kill -9 of each party in each phase of a rescale: the job fails and says where, or goes on with right results.

A phase is held by stopping a process (SIGSTOP) that it needs, or by state that takes a while to move.
"""

import signal
import time

import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak import JOB
from experiments.soak_check import check_output, check_rows_so_far, write_events

pytestmark = pytest.mark.scenario

EVENTS, RATE = 20_000, 800
#: A stopped process must not lose its lease before the test has done its part, and a killed one soon.
SETTINGS = {"taskManager.operator_quota": 20, "controlPlane.lease_timeout_ms": 5000}
HYBRID = {**SETTINGS, "taskManager.useMigrate": "false"}
LOCAL = {**SETTINGS, "taskManager.useHybrid": "false"}
#: The background migration takes many seconds.
SLOW = {**SETTINGS, "taskManager.migration_bytes_per_second": 65_536}
BALLAST_BYTES = 3_000
KEYED_STAGE = 1


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return write_events(tmp_path_factory.mktemp("losses") / "events.jsonl", EVENTS, 300, 6)


@pytest.fixture
def job(make_cluster, events, tmp_path, release):
    """Starts the job on two task managers; a third one has room and nothing else."""

    def start(settings, ballast_bytes=0):
        cluster = make_cluster(settings=settings)
        parameters = {
            "input": events,
            "output": tmp_path / "out",
            "rate": RATE,
            "ballast_bytes": ballast_bytes,
            "release": release,
        }
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        names = [cluster.start_task_manager(name).name for name in ("a", "b", "c")]
        status = cluster.wait_for(
            lambda status: (
                len(status["task_managers"]) == 3
                and any(size_bytes(path) for path in (tmp_path / "out").glob(".part-*"))
            ),
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


def size_bytes(path):
    """Of a file that may get its visible name meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def address(cluster, name):
    return f"127.0.0.1:{cluster.processes[name].port}"


def host(cluster, stage):
    """The name of the task manager of a stage's first subtask."""
    place = cluster.status()["stages"][stage]["subtasks"][0]["task_manager"]
    return next(name for name in cluster.processes if place == address(cluster, name))


def send(cluster, name, number):
    cluster.processes[name].popen.send_signal(number)


def request(cluster, stage, parallelism=2):
    code, body = cluster.http("POST", f"/scale?stage={stage}&parallelism={parallelism}")
    assert code == 202, body
    return body["url"]


def wait_phase(cluster, url, *phases):
    deadline_s = time.monotonic() + 120
    while (report := cluster.http("GET", url)[1])["phase"] not in phases:
        assert time.monotonic() < deadline_s, str(report)
        time.sleep(0.005)
    return report


def check_failed(cluster, *parts, states=("FAILED",)):
    """The job fails, with a cause that names all of this; gives it."""
    status = cluster.wait_for(lambda status: status["state"] in {*states, *FINAL_STATES}, "the failure")
    assert status["state"] in states
    for part in parts:
        assert part in status["cause"]
    for sign in ("Traceback", "bug", "\n"):
        assert sign not in status["cause"]
    return status["cause"]


def check_goes_on(cluster, events, tmp_path):
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check_output(events, tmp_path / "out")


class Parties:
    """The task managers of the parties to a rescale of a keyed stage from 1 to 2 subtasks, each on its own."""

    def __init__(self, cluster):
        self.cluster = cluster
        hosts = [host(cluster, stage) for stage in range(5)]
        # The first one has the ballast.
        self.stage = next(stage for stage in (KEYED_STAGE, 3, 4) if hosts[stage] != hosts[stage - 1])
        self.names = {"upstream": hosts[self.stage - 1], "old": hosts[self.stage], "new": cluster.idle}
        self.stopped = set()

    def stop(self, party):
        send(self.cluster, self.names[party], signal.SIGSTOP)
        self.stopped.add(party)

    def go_on(self, *parties):
        for party in self.stopped & set(parties):
            send(self.cluster, self.names[party], signal.SIGCONT)
            self.stopped.remove(party)

    def kill(self, party):
        send(self.cluster, self.names[party], signal.SIGKILL)
        self.stopped.discard(party)
        self.go_on("upstream", "old", "new")


def hold(parties, phase):
    """Begin a rescale that does not leave this phase, because of who is stopped; gives its page."""
    cluster = parties.cluster
    if phase != "MIGRATING":
        parties.stop("new" if phase == "DEPLOYING" else "old")
    url = request(cluster, parties.stage)
    # From phase to phase: an earlier one needs who is to be stopped in a later one.
    if phase in ("REROUTING", "HANDING_OVER"):
        wait_phase(cluster, url, "PREPARING")
        parties.stop("upstream")
        parties.go_on("old")
    if phase == "HANDING_OVER":
        wait_phase(cluster, url, "REROUTING")
        parties.stop("old")
        parties.go_on("upstream")
    wait_phase(cluster, url, phase)
    return url


PHASES = ["DEPLOYING", "PREPARING", "REROUTING", "HANDING_OVER", "MIGRATING"]


@pytest.mark.parametrize("party", ["old", "new", "upstream"])
@pytest.mark.parametrize("phase", PHASES)
def test_kill_of_a_party(job, events, tmp_path, release, phase, party):
    cluster = job(SLOW, BALLAST_BYTES if phase == "MIGRATING" else 0)
    parties = Parties(cluster)
    url = hold(parties, phase)
    parties.kill(party)
    report = wait_phase(cluster, url, "FAILED", "ABORTED", "COMPLETE")
    if party == "new" and phase in ("DEPLOYING", "PREPARING"):
        # It may have prepared itself before it was killed, so that the others went on without waiting for it.
        assert report["phase"] == "ABORTED" or phase == "PREPARING"
        if report["phase"] == "ABORTED":
            assert (
                "could not be deployed" in report["cause"]
                or address(cluster, cluster.idle) in report["cause"]
            )
            release.touch()
            check_goes_on(cluster, events, tmp_path)
            return
    # That it fails is certain from here on; other tests wait for the end of the lost one's lease.
    cause = check_failed(cluster, address(cluster, parties.names[party]), states=("FAILING", "FAILED"))
    # What was taken back, or done, before the loss was noticed, is not its cause.
    assert f"rescale 1 of stage {parties.stage}" in cause or report["phase"] != "FAILED", cause
    cluster.stop()
    assert check_rows_so_far(events, tmp_path / "out") > 0


@pytest.mark.parametrize("party", ["old", "new"])
def test_kill_of_an_owner_while_state_is_shipped(job, events, tmp_path, party):
    cluster = job(LOCAL, BALLAST_BYTES)
    parties = Parties(cluster)
    hold(parties, "HANDING_OVER")
    parties.kill(party)
    check_failed(cluster, address(cluster, parties.names[party]), f"rescale 1 of stage {parties.stage}")
    assert check_rows_so_far(events, tmp_path / "out") > 0


def test_a_task_manager_that_has_nothing_but_state(job):
    """Hybrid without migration: being drained, it has no subtask any more, and its state is still being fetched."""
    cluster = job({**HYBRID, "taskManager.migration_bytes_per_second": 65_536}, ballast_bytes=BALLAST_BYTES)
    victim, place = cluster.without_source, address(cluster, cluster.without_source)
    assert cluster.http("POST", f"/drain?task_manager={place}")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/drains")[1][0]["groups_left"] > 0, "the fetch")
    code, body = cluster.http("POST", "/scale?stage=2&parallelism=2")
    assert (code, place in body["error"]) == (409, True)
    send(cluster, victim, signal.SIGKILL)
    check_failed(cluster, place)


@pytest.mark.parametrize("drain_timeout_s", [600, 2])
def test_a_task_manager_that_leaves_before_it_is_empty(job, events, tmp_path, drain_timeout_s):
    """At a second SIGTERM, or when the drain takes too long: the job fails and says so, with nothing wrong written."""
    settings = {**HYBRID, "taskManager.migration_bytes_per_second": 65_536}
    cluster = job({**settings, "taskManager.drain_timeout_s": drain_timeout_s}, BALLAST_BYTES)
    victim = cluster.processes[cluster.without_source]
    victim.popen.terminate()
    if drain_timeout_s > 60:
        victim.wait_for_text("a second signal stops at once")
        victim.popen.terminate()
    assert victim.wait() == 0
    place = address(cluster, cluster.without_source)
    check_failed(cluster, place, "it was not empty: it did not wait for the end of its drain")
    assert ("not empty after taskManager.drain_timeout_s" in victim.log_path.read_text()) == (
        drain_timeout_s == 2
    )
    assert check_rows_so_far(events, tmp_path / "out") > 0


def test_a_short_stop_of_every_party(job, events, tmp_path, release):
    """Processes that come back before their leases end do no harm."""
    cluster = job({**SETTINGS, "controlPlane.lease_timeout_ms": 20_000}, ballast_bytes=100)
    for number, name in enumerate(("a", "b", "c")):
        send(cluster, name, signal.SIGSTOP)
        url = request(cluster, KEYED_STAGE, 2 - number % 2)
        time.sleep(0.7)
        send(cluster, name, signal.SIGCONT)
        wait_phase(cluster, url, "COMPLETE")
    release.touch()
    check_goes_on(cluster, events, tmp_path)


def test_cancel_during_a_rescale(job):
    cluster = job(SLOW, ballast_bytes=BALLAST_BYTES)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "REROUTING", "HANDING_OVER", "MIGRATING")
    assert cluster.http("POST", "/cancel")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end")
    assert (status["state"], status["cause"]) == ("CANCELLED", "")
    assert wait_phase(cluster, url, "FAILED")["cause"]
