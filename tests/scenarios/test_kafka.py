"""From a real Kafka to a real Kafka: each record is counted once, and seen once by those who read committed ones."""

import json
from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.kafka_topics import make_topics, read_committed

pytestmark = [pytest.mark.scenario, pytest.mark.service]

RECORDS, WORDS = 100_000, 50


def test_each_record_is_counted_and_written_once_through_rescales_and_the_loss_of_a_task_manager(
    kafka_bootstrap, run_disturbed
):
    bootstrap = kafka_bootstrap
    make_topics(bootstrap, "words", "counts")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        word = f"word-{number % WORDS}"
        value = json.dumps({"word": word, "number": number, "at": 1_700_000_000_000 + number})
        producer.produce("words", value, word)
        producer.poll(0)
    assert producer.flush(60) == 0
    wanted = 0

    def end(cluster):
        nonlocal wanted
        # What comes after the last event that disturbed the job.
        wanted = cluster.status()["totals"]["events_out"] + 2_000

    parameters = {"bootstrap": bootstrap, "source": "words", "target": "counts"}
    run_disturbed("flow_kafka", parameters, stage=1, parallelisms=(3, 2), rows=2_000, end=end)
    found = read_committed(bootstrap, "counts", lambda count: count >= wanted)
    latest = Counter()
    for rows in found.values():
        for row in map(json.loads, rows):
            latest[row["word"]] += 1
            # Nothing is lost, nothing comes twice, and the order of a key is kept.
            assert row["count"] == latest[row["word"]]
            assert row["number"] % WORDS == int(row["word"].removeprefix("word-"))
    assert len(latest) == WORDS
