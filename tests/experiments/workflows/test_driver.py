"""What a launch sends: each command once, those of a workflow in order and in one partition, at the rate."""

import json
import time
from collections import defaultdict
from itertools import chain

import pytest

import weir.log
from experiments.log_cluster import LogCluster
from experiments.workflows.commands import Encoder
from experiments.workflows.driver import Launch, LaunchError, rounds, run_launch
from experiments.workflows.job import INPUT_TOPIC
from weir.errors import WeirError

PARTITIONS = 3


def test_the_order_is_that_of_the_state_benchmark():
    kinds = [("StartWf", 2), ("StartTask", 0), ("CompleteTask", 0), ("StartTask", 1), ("CompleteTask", 1)]
    assert list(rounds(2)) == kinds
    assert Launch(7, 0, 2).commands == 7 * len(kinds)


def test_workflows_are_divided_without_rest():
    launch = Launch(10, 0, 1, prefix="p")
    parts = [launch.ids(partition, PARTITIONS) for partition in range(PARTITIONS)]
    assert sorted(chain.from_iterable(parts)) == sorted(f"p-{number}" for number in range(10))


def test_records_are_json():
    encoder = Encoder(["a-0", "a-1", "a-2"])
    started = [json.loads(record) for record in encoder.records("StartTask", 4, 1, 3)]
    assert started == [{"kind": "StartTask", "workflow": f"a-{number}", "task": 4} for number in (1, 2)]
    done = [json.loads(record) for record in encoder.completions(5, 2, [b"xyz"])]
    assert done == [{"kind": "CompleteTask", "workflow": "a-2", "task": 5, "payload": "xyz"}]


def test_two_launches_have_two_prefixes():
    assert Launch(1, 1).prefix != Launch(1, 1).prefix


@pytest.mark.scenario
@pytest.mark.parametrize("payload", ["compressible", "random"])
def test_a_launch_is_in_the_log_once(tmp_path, payload):
    launch = Launch(workflows=20, payload_bytes=70, tasks=3, rate=400, drivers=2, payload=payload)
    with LogCluster(tmp_path / "log", brokers=1) as brokers:
        weir.log.create_topic(brokers.addresses, INPUT_TOPIC, partitions=PARTITIONS, replication=1)
        began_s = time.monotonic()
        done = run_launch(launch, "weir", brokers.addresses, PARTITIONS, print)
        assert time.monotonic() - began_s >= launch.commands / launch.rate * 0.8
        assert (done.commands, done.acknowledged, done.payload) == (launch.commands, launch.commands, payload)
        found = defaultdict(list)
        for partition in range(PARTITIONS):
            records = weir.log.Reader(brokers.addresses, topic=INPUT_TOPIC, partition=partition)
            for command in (json.loads(record.data) for record in records):
                found[command["workflow"], partition].append((command["kind"], command["task"]))
                if command["kind"] == "CompleteTask":
                    assert len(command["payload"]) == launch.payload_bytes
    assert len(found) == launch.workflows
    assert all(commands == list(rounds(launch.tasks)) for commands in found.values())


@pytest.mark.scenario
def test_what_is_not_confirmed_is_told(tmp_path, monkeypatch):
    """The broker dies in the midst of a launch, and nobody brings it back."""
    monkeypatch.setattr("experiments.workflows.senders.DELIVERY_TIMEOUT_S", 3.0)
    # Told for the first time after half a second, when most is still to be sent, and at its pace.
    monkeypatch.setattr("experiments.workflows.driver._TOLD_EVERY_S", 0.25)
    launch = Launch(workflows=200, payload_bytes=100, tasks=50, rate=5_000)
    with LogCluster(tmp_path / "log", brokers=1) as brokers:
        weir.log.create_topic(brokers.addresses, INPUT_TOPIC, partitions=1, replication=1)
        told = []

        def say(line):
            if not told:
                brokers.kill(1)
            told.append(line)

        with pytest.raises(WeirError) as refused:
            run_launch(launch, "weir", brokers.addresses, 1, say)
    assert isinstance(refused.value, LaunchError)
    assert "were not confirmed" in str(refused.value)
