"""The workload of a workflow engine on real processes: all is right at the end, whoever dies or moves meanwhile."""

import json
import threading
import time
from collections import Counter

import pytest

import weir
import weir.log
from experiments.log_cluster import LogCluster
from experiments.soak import rescale
from experiments.workflows.driver import Launch, run_launch
from experiments.workflows.job import ENGINE, INPUT_TOPIC, REJECTED_TOPIC
from experiments.workflows.metrics import every_metric, total, workflow_windows
from experiments.workflows.senders import LogSender
from tests.scenarios.losses import lose_task_manager

pytestmark = pytest.mark.scenario

PARTITIONS = 2
LAUNCH = Launch(workflows=40, payload_bytes=300, tasks=6, rate=130, drivers=2, payload="random")
ENGINE_STAGE = 1
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
}
#: What is refused, with the reason; sent when all else was.
STRAYS = [
    ("StartWf", 0, 8, "duplicate"),
    ("CompleteTask", 1, 3, "duplicate"),
    ("StartTask", 2, 6, "no such task"),
    ("CompleteTask", 3, 9, "task out of order"),
    ("StartTask", None, 0, "unknown workflow"),
    ("Stop", 4, 0, "unknown command"),
]


@pytest.fixture
def brokers(tmp_path):
    with LogCluster(tmp_path / "log", brokers=1, lease_ms=5_000) as brokers:
        for topic, partitions in ((INPUT_TOPIC, PARTITIONS), (REJECTED_TOPIC, 1)):
            weir.log.create_topic(brokers.addresses, topic, partitions=partitions, replication=1)
        yield brokers.addresses


def name_of(number):
    return f"{LAUNCH.prefix}-{number}" if number is not None else "nobody"


def send_strays(addresses):
    out = LogSender(addresses, INPUT_TOPIC, range(PARTITIONS))
    for kind, number, task, _ in STRAYS:
        command = {"kind": kind, "workflow": name_of(number), "task": task}
        out.send((number or 0) % PARTITIONS, [json.dumps(command).encode()])
    out.close()
    assert out.acknowledged == len(STRAYS)


def wait_for_windows(address, holds, timeout_s=120):
    until_s = time.monotonic() + timeout_s
    while not holds(found := total(workflow_windows(address, 100))):
        assert time.monotonic() < until_s, found
        time.sleep(0.2)
    return found


def check_states(address):
    with weir.connect(address) as job:
        runs = dict(job.state(ENGINE, "task_runs").range(consistency="latest").iter_rows())
        steps = dict(job.state(ENGINE, "step").range(consistency="latest").iter_rows())
        completed = job.state(ENGINE, "completed_ms").range(consistency="latest").height
    expected = {name_of(number) for number in range(LAUNCH.workflows)}
    assert set(runs) == set(steps) == expected
    assert completed == LAUNCH.workflows
    assert set(steps.values()) == {1 + 2 * LAUNCH.tasks}
    for items in runs.values():
        assert [item["key"] for item in items] == list(range(LAUNCH.tasks))
        before_ms = None
        for run in (item["value"] for item in items):
            assert len(run["payload"]) == LAUNCH.payload_bytes
            assert run["launched_ms"] <= run["started_ms"] <= run["completed_ms"]
            assert before_ms in (None, run["launched_ms"])
            before_ms = run["completed_ms"]


def check_refusals(addresses):
    records = weir.log.Reader(addresses, topic=REJECTED_TOPIC, partition=0)
    rows = [json.loads(record.data) for record in records]
    found = Counter((row["kind"], row["workflow"], row["task"], row["reason"]) for row in rows)
    assert found == Counter((kind, name_of(number), task, reason) for kind, number, task, reason in STRAYS)


@pytest.mark.parametrize("timers", ["engine", "sweep"])
def test_all_is_right_at_the_end(brokers, make_cluster, timers):
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"bootstrap": brokers, "timers": timers, "timer_delay_ms": 500, "sweep_every_ms": 1_000}
    cluster.start_control_plane("experiments.workflows.job", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    sending = threading.Thread(
        target=run_launch, args=(LAUNCH, "weir", brokers, PARTITIONS, print), daemon=True
    )
    sending.start()
    cluster.wait_for(lambda status: status["totals"]["events_in"] >= 50, "the first commands")
    rescale(cluster, ENGINE_STAGE, 2)
    lose_task_manager(cluster, ENGINE_STAGE)
    address = f"127.0.0.1:{cluster.http_port}"
    sending.join(120)
    send_strays(brokers)
    starts = LAUNCH.workflows * LAUNCH.tasks
    sums = wait_for_windows(
        address,
        lambda sums: (
            sums["messages_processed"] >= LAUNCH.commands + len(STRAYS) and sums["timers_fired"] >= starts
        ),
    )
    expected = {
        "messages_processed": LAUNCH.commands + len(STRAYS),
        "workflow_starts": LAUNCH.workflows,
        "workflow_completes": LAUNCH.workflows,
        "task_starts": starts,
        "task_completes": starts,
        "timers_fired": starts,
        "rejected": len(STRAYS),
    }
    assert {name: sums[name] for name in expected} == expected
    check_states(address)
    metrics = every_metric(address)
    assert sum(value for name, value in metrics.items() if "weir_store_puts_total" in name) > 0
    assert cluster.http("POST", f"/stop?savepoint={cluster.directory / 'savepoints' / 'end'}")[0] == 202
    cluster.wait_for(lambda status: status["state"] == "STOPPED", "the end")
    check_refusals(brokers)
