"""A job whose keyed stage is rescaled, and the task managers of those that take part."""

import signal
import time

from experiments.cluster import FINAL_STATES
from experiments.soak import JOB
from experiments.soak_check import check_output, write_events

EVENTS, RATE = 20_000, 800
#: A stopped process must not lose its lease before the test has done its part, and a killed one soon.
SETTINGS = {"taskManager.operator_quota": 20, "controlPlane.lease_timeout_ms": 5000}
HYBRID = {**SETTINGS, "taskManager.useMigrate": "false"}
LOCAL = {**SETTINGS, "taskManager.useHybrid": "false"}
#: The background migration takes many seconds.
SLOW = {**SETTINGS, "taskManager.migration_bytes_per_second": 65_536}
BALLAST_BYTES = 3_000
KEYED_STAGE = 1


def write_rows(directory):
    """The events that the job counts."""
    return write_events(directory / "events.jsonl", EVENTS, 300, 6)


def start_job(make_cluster, events, tmp_path, release, settings, ballast_bytes=0):
    """Starts the job on two task managers; a third one has room and nothing else."""
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
