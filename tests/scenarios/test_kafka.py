"""From a real Kafka to a real Kafka: each record is counted once, and seen once by those who read committed ones."""

import itertools
import json
import random
from collections import defaultdict
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from experiments.chaos import ChaosSettings
from experiments.cluster import FINAL_STATES
from experiments.kafka_chaos import run_kafka_chaos
from experiments.processes import ClusterError
from experiments.soak import rescale
from services import jars
from tests.effort import cases
from tests.kafka_topics import make_topics, read_committed
from tests.weir.operators.kafka.late_requests import (
    ADD_PARTITIONS,
    END_TXN,
    FIRST_SLOT,
    OFFSET_COMMIT,
    PRODUCE,
    LateRequests,
)

pytestmark = [pytest.mark.scenario, pytest.mark.service]

#: There at the beginning, and produced again after each event, so that rows come after it however long it took.
RECORDS, WORDS = 20_000, 50


def test_each_record_is_counted_and_written_once_through_rescales_and_the_loss_of_a_task_manager(
    kafka_bootstrap, run_disturbed
):
    bootstrap = kafka_bootstrap
    make_topics(bootstrap, "words", "counts")
    producer = Producer({"bootstrap.servers": bootstrap})
    numbers = itertools.count()
    wanted = 0

    def supply():
        for number in itertools.islice(numbers, RECORDS):
            word = f"word-{number % WORDS}"
            value = json.dumps({"word": word, "number": number, "at": 1_700_000_000_000 + number})
            producer.produce("words", value, word)
            producer.poll(0)
        assert producer.flush(60) == 0

    def end(cluster):
        nonlocal wanted
        # Partitions move between subtasks of the source.
        rescale(cluster, 0, 3)
        # What comes after the last event that disturbed the job.
        wanted = cluster.status()["totals"]["events_out"] + 2_000
        supply()

    supply()
    parameters = {"bootstrap": bootstrap, "source": "words", "target": "counts"}
    run_disturbed(
        "flow_kafka", parameters, stages=[1], parallelisms=(3, 2), rows=2_000, end=end, supply=supply
    )
    found = read_committed(bootstrap, "counts", lambda count: count >= wanted)
    counts = defaultdict(list)
    for rows in found.values():
        for row in map(json.loads, rows):
            counts[row["word"]].append(row["count"])
            assert row["number"] % WORDS == int(row["word"].removeprefix("word-"))
    assert len(counts) == WORDS
    for word, numbers in counts.items():
        # Nothing is lost, nothing comes twice, and the order of a key is kept.
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), word
        assert numbers == sorted(numbers), word
    # Tools that watch the lag of the group see how far it is.
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "counting"})) as group:
        places = group.committed([TopicPartition("words", number) for number in range(3)], timeout=30)
    assert sum(place.offset for place in places) >= wanted // 2


def test_nothing_is_lost_or_doubled_while_brokers_and_processes_are_killed(tmp_path, environment, forks):
    if missing := jars.missing_program():
        pytest.skip(missing)
    # These faults: a broker, two task managers, the control plane, rescales of source and count.
    settings = ChaosSettings(duration_s=9, every_s=1.5, seed=57, rate=500)
    result = run_kafka_chaos(tmp_path / "run", settings, print, environment, forks.popen)
    assert result.faults >= 3
    assert result.generations > 1
    assert (result.lost, result.duplicated, result.out_of_order, result.wrong_counts) == (0, 0, 0, 0), (
        result.first_wrong
    )


def test_a_network_that_hands_requests_over_late_loses_and_doubles_nothing(
    kafka_broker, make_cluster, tmp_path, release
):
    """Each late request comes when a later transaction of the same id is open; its own was ended long before."""
    bootstrap, _, _, ports = kafka_broker
    make_topics(bootstrap, "late", partitions=1)
    # More than come before the last request is late on a busy machine; what is left then comes at once.
    rows, dice = cases(40_000, 100_000), random.Random(64)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(rows)))
    settings = {
        "controlPlane.checkpoint_interval_ms": 300,
        "controlPlane.checkpoint_pause_ms": 100,
        "controlPlane.restart_attempts": 20,
    }
    cluster = make_cluster(settings=settings, task_managers=1)
    with LateRequests(*ports) as network:
        parameters = {
            "input": tmp_path / "rows.jsonl",
            "rate": 300,
            "bootstrap": f"127.0.0.1:{ports[0]}",
            "target": "late",
            "release": release,
        }
        cluster.start_control_plane("flow_kafka_late", parameters, exit_when_finished=False)
        cluster.start_task_manager("first")
        # An end, a mark and another end at first.
        for number in range(cases(3, 8)):
            kind = dice.choice([END_TXN, END_TXN, OFFSET_COMMIT])
            # The others are used while commits are late only: on a slow machine that may be once, and never again.
            network.keep_next(kind, FIRST_SLOT)
            network.wait_until_kept()
            # Among the rows of the id's next transaction, or between its mark and its end.
            rows_first = [ADD_PARTITIONS, *[PRODUCE] * dice.randrange(2, 9)]
            network.deliver_before(*(rows_first if kind == END_TXN else [END_TXN, OFFSET_COMMIT, END_TXN]))
            try:
                status = cluster.wait_for(
                    lambda status, number=number: (
                        network.answered() > number or status["state"] in FINAL_STATES
                    ),
                    "the end of later transactions",
                )
            except ClusterError as error:
                error.add_note(network.passed())
                raise
            # A job that has failed sends nothing any more.
            assert status["state"] not in FINAL_STATES, status["cause"]
        release.touch()
        status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    found = read_committed(bootstrap, "late", lambda count: count >= rows)
    assert [json.loads(value)["id"] for value in found[0]] == list(range(rows))


def test_topics_without_a_row_since_a_savepoint_are_idle_and_the_last_rows_of_a_join_are_told(
    kafka_bootstrap, make_cluster, tmp_path
):
    """Each time the job is stopped before its sources are idle, and no row comes after the start."""
    make_topics(kafka_bootstrap, "join-left", "join-right")
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    parameters = {"bootstrap": kafka_bootstrap, "output": tmp_path / "out"}
    settings = {"controlPlane.checkpoint_interval_ms": 300, "controlPlane.checkpoint_pause_ms": 100}

    def told():
        parts = sorted((tmp_path / "out").glob("part-*"))
        return [json.loads(line)["id"] for part in parts for line in part.read_text().splitlines()]

    arguments = []
    for number in range(cases(2, 3)):
        cluster = make_cluster(settings=settings, task_managers=1)
        cluster.start_control_plane("flow_kafka_join", parameters, arguments=arguments)
        cluster.start_task_manager("first")
        cluster.wait_for(lambda _, number=number: told() == list(range(number)), "the rows of the last time")
        # In turn: where both are idle, the later one would make the earlier one late.
        for read, (side, at) in enumerate((("left", 1_000), ("right", 10_000)), 2 * number + 1):
            row = {"id": number if side == "left" else -1, "at": 20_000 * (number + 1) + at}
            producer.produce(f"join-{side}", json.dumps(row), partition=number)
            assert producer.flush(30) == 0
            cluster.wait_for(lambda status, read=read: status["totals"]["events_in"] >= read, "the row")
        savepoint = cluster.directory / "savepoints" / "last"
        assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
        cluster.wait_ended()
        arguments = ["--from-savepoint", str(savepoint)]
