"""Positions that are committed for tools that look at the lag of a group, and what is said where they are not."""

import threading
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.weir.operators.kafka.test_with_broker import Reading, produce

pytestmark = [pytest.mark.scenario, pytest.mark.service]


def committed(kafka_bootstrap, topic, group):
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    consumer.close()
    return found.offset


def read_and_commit(kafka_bootstrap, topic, tmp_path, group, has_come):
    produce(kafka_bootstrap, topic, 1, 2, 3)
    reading = Reading(kafka_bootstrap, topic, tmp_path, properties={"group.id": group}).read(3)
    reading.reader.snapshot()
    reading.reader.commit(1)
    for _ in range(3_000):
        reading.reader.poll(3)
        if has_come():
            break
        threading.Event().wait(0.01)
    reading.stop()


def test_a_group_of_the_sources_own_shows_how_far_it_is(kafka_bootstrap, topic, tmp_path):
    group = uuid.uuid4().hex
    read_and_commit(kafka_bootstrap, topic, tmp_path, group, lambda: True)
    assert committed(kafka_bootstrap, topic, group) == 3


def test_a_group_with_members_takes_no_positions_and_that_is_told(kafka_bootstrap, topic, tmp_path, caplog):
    group, is_member, is_over = uuid.uuid4().hex, threading.Event(), threading.Event()

    def take_part():
        consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group})
        consumer.subscribe([topic], on_assign=lambda *_: is_member.set())
        while not is_over.is_set():
            consumer.poll(0.1)
        consumer.close()

    member = threading.Thread(target=take_part)
    member.start()
    try:
        assert is_member.wait(60)
        read_and_commit(kafka_bootstrap, topic, tmp_path, group, lambda: "not committed" in caplog.text)
        assert f"source words: positions of group {group} are not committed (" in caplog.text
        assert "other consumers are in it: give the source a group.id of its own" in caplog.text
        assert committed(kafka_bootstrap, topic, group) < 0
    finally:
        is_over.set()
        member.join()
