"""State in a real Cassandra: states of all kinds, while task managers die and the database restarts."""

import signal
from functools import partial

import pytest

import weir
from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from experiments.scaling import rescale
from tests.scenarios.losses import task_manager_of
from tests.scenarios.test_user_states import SETTINGS, STAGE, check

pytestmark = [pytest.mark.service, pytest.mark.scenario]

#: At a rate that two cores bear beside the database: most rows look into it, since the cache is small.
EVENTS, RATE = 3_000, 150


def wait_for_later_checkpoint(cluster):
    """Beside other tests, rows that were due while a cold database began again take it more than a minute."""
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) > latest, "a later checkpoint", 150)


def test_every_kind_of_state_in_a_database_that_restarts(
    make_cluster, tmp_path, write_events, cassandra_node
):
    """Each row once, with the states that a plain dict would have: over a rescale, two deaths and a late writer."""
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    release = tmp_path / "release"
    parameters = {"input": events, "output": tmp_path / "out", "release": release, "rate": RATE}
    settings = SETTINGS | {
        "taskManager.state_backend": "cassandra",
        "taskManager.cassandra.port": cassandra_node.port,
        "taskManager.cassandra.username": "cassandra",
        "taskManager.cassandra.password": "cassandra",
        # Every checkpoint is written: more to be late with.
        "taskManager.cassandra.apply_pause_ms_max": 0,
        # So small that keys leave the cache, and come back from the database.
        "taskManager.state_cache_bytes": 1 << 20,
        "controlPlane.restart_attempts": 20,
        # It is tried again soon after the database is back.
        "controlPlane.restart_delay_ms_max": 1_000,
    }
    # Rows come while the database dies, while a task manager sleeps, and when it wakes.
    keep_back(release, 0.8)
    cluster = make_cluster(settings=settings)
    cluster.start_control_plane("flow_states", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")

    later_checkpoint = partial(wait_for_later_checkpoint, cluster)

    def restarted(generation):
        cluster.wait_for(
            lambda status: status["generation"] > generation and status["state"] == "RUNNING", "a restart"
        )
        later_checkpoint()

    def counts(consistency):
        # It asks again where an owner is busy: on a full machine it may wait for the database.
        with weir.connect(f"127.0.0.1:{cluster.http_port}", patience_s=60) as job:
            found = job.state("states", "count").range(consistency=consistency)
        return dict(zip(found["key"], found["value"], strict=True))

    rescale(cluster, STAGE, 3)
    later_checkpoint()
    # The database has most of the rows: they are asked for, and not only what it has not got yet.
    before, now = counts("checkpoint"), counts("latest")
    assert all(now[key] >= count for key, count in before.items())
    keep_back(release, 0.6)
    cassandra_node.kill()
    cluster.wait_for(
        lambda _: "Cassandra at" in cluster.http("GET", "/state/states/count")[1].get("error", ""),
        "an answer that says what is away",
    )
    generation = cluster.status()["generation"]
    task_manager_of(cluster, STAGE).popen.kill()
    cassandra_node.start()
    restarted(generation)
    # This one is replaced while it sleeps, and applies late what it knows to be complete.
    keep_back(release, 0.4)
    sleeper = task_manager_of(cluster, STAGE)
    sleeper.popen.send_signal(signal.SIGSTOP)
    restarted(cluster.status()["generation"])
    later_checkpoint()
    keep_back(release, 0.2)
    sleeper.popen.send_signal(signal.SIGCONT)
    later_checkpoint()
    rescale(cluster, STAGE, 1)
    later_checkpoint()
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check(tmp_path / "out", EVENTS)
