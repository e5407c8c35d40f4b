"""Positions that are committed for tools that look at the lag of a group, and what is said where they are not."""

import json
import threading
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

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


def test_what_waits_is_told_without_a_group_and_ends_of_transactions_do_not_count(
    kafka_bootstrap, topic, tmp_path
):
    writer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": uuid.uuid4().hex})
    writer.init_transactions(30)
    for numbers in ((1, 2), (3, 4, 5)):
        writer.begin_transaction()
        for number in numbers:
            writer.produce(topic, json.dumps({"id": number}), partition=0)
        writer.commit_transaction(30)
    reading = Reading(kafka_bootstrap, topic, tmp_path).read(5)
    place = f"{topic}[0]"
    assert until(lambda: reading.poll() and reading.reader.lags == {place: 0})
    produce(kafka_bootstrap, topic, 6, 7)
    assert until(lambda: reading.reader.lags == {place: 2})
    reading.read(7)
    assert until(lambda: reading.poll() and reading.reader.lags == {place: 0})
    reading.stop()
    assert reading.reader.lags == {}


def until(condition):
    """Look at it for a minute."""
    for _ in range(6_000):
        if condition():
            return True
        threading.Event().wait(0.01)
    return False
