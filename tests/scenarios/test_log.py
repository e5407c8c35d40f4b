"""From the replicated log to the replicated log: each record is counted and written once, whoever dies meanwhile."""

import itertools
import json
import time
from collections import defaultdict

import numpy as np
import pytest

import weir.log
from experiments.log_cluster import LogCluster
from experiments.soak import rescale

pytestmark = pytest.mark.scenario

PARTITIONS, WORDS = 3, 50
#: There at the beginning, and written again after each event, so that rows come after it however long it took.
RECORDS = 4_000
START_MS = 1_700_000_000_000


@pytest.fixture
def brokers(tmp_path):
    with LogCluster(tmp_path / "log", lease_ms=2_000) as brokers:
        for topic in ("words", "counts"):
            weir.log.create_topic(brokers.addresses, topic, partitions=PARTITIONS)
        yield brokers


class Words:
    """Writes numbered records; those of a word are in one partition, in order."""

    def __init__(self, brokers):
        self.numbers = itertools.count()
        self.written = 0
        self._producers = [
            weir.log.Producer(brokers.addresses, topic="words", partition=partition, delivery_timeout_s=60)
            for partition in range(PARTITIONS)
        ]

    def write(self, count=RECORDS):
        """Return when the log has them."""
        by_partition = defaultdict(list)
        for number in itertools.islice(self.numbers, count):
            row = {"word": f"word-{number % WORDS}", "number": number, "at": START_MS + number}
            by_partition[number % WORDS % PARTITIONS].append((number, json.dumps(row).encode()))
        for partition, records in by_partition.items():
            ids, values = zip(*records, strict=True)
            self._producers[partition].send_many(np.array(ids), values).result()
        self.written += count


def counted(brokers):
    """All that was written so far: word, count and number in the order of each partition."""
    rows = []
    for partition in range(PARTITIONS):
        for record in weir.log.Reader(brokers.addresses, topic="counts", partition=partition):
            row = json.loads(record.data)
            assert record.id == row["number"]
            rows.append((row["word"], row["count"], row["number"]))
    return rows


def wait_for_counts(brokers, count, timeout_s=120):
    until_s = time.monotonic() + timeout_s
    while len(found := counted(brokers)) < count:
        assert time.monotonic() < until_s, f"{len(found)} rows of {count}"
        time.sleep(0.1)
    return found


def check(brokers, count):
    """Nothing is lost, nothing comes twice, and each word has its order: as plain Python counts."""
    by_word = defaultdict(list)
    for word, *places in counted(brokers):
        by_word[word].append(tuple(places))
    for word in range(WORDS):
        numbers = range(word, count, WORDS)
        assert by_word.pop(f"word-{word}") == list(enumerate(numbers, 1))
    assert not by_word


def stop(cluster, name):
    savepoint = cluster.directory / "savepoints" / name
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    cluster.wait_for(lambda status: status["state"] == "STOPPED", "the savepoint")
    return savepoint


def test_each_record_is_counted_and_written_once_whoever_dies(brokers, run_disturbed, make_cluster):
    words = Words(brokers)
    killed = []

    def supply():
        # Those that lead what is written, so that commits are under way.
        for number in killed:
            brokers.start(number)
            brokers.wait_until_whole("counts", is_level=False)
        killed[:] = [brokers.leader("counts", len(killed))]
        brokers.kill(killed[0])
        words.write()

    def end(cluster):
        # Partitions move between subtasks of the source.
        rescale(cluster, 0, 3)
        words.write()

    words.write()
    parameters = {"bootstrap": brokers.addresses, "source": "words", "target": "counts"}
    cluster = run_disturbed(
        "flow_log", parameters, stages=[1], parallelisms=(3, 2), rows=800, end=end, supply=supply
    )
    wait_for_counts(brokers, words.written // 2)
    savepoint = stop(cluster, "last")
    delivered = len(counted(brokers))
    words.write()
    # In another checkpoint store, with another number of subtasks.
    second = make_cluster(task_managers=1, settings={"controlPlane.checkpoint_interval_ms": 300})
    second.start_control_plane(
        "flow_log",
        parameters | {"parallelism": 3},
        arguments=["--from-savepoint", str(savepoint)],
        exit_when_finished=False,
    )
    second.start_task_manager("first")
    wait_for_counts(brokers, max(delivered + 1, words.written))
    stop(second, "end")
    check(brokers, words.written)
