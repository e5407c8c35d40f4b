"""Sinks of their own, as subtasks open them, and what readers of committed records see of them."""

import json

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

import weir
from weir.author.operator import OperatorContext
from weir.operators.registry import create_operator


def rows(*numbers, **more):
    return pa.RecordBatch.from_pylist(
        [{"id": number, **more, "_event_time_ms": 1, "_ingest_time_us": 1} for number in numbers]
    )


def sink(kafka_bootstrap, topic, directory, generation=1, restored=None, index=0, indices=(0,), **settings):
    operator = create_operator(weir.KafkaSink(topic, bootstrap=kafka_bootstrap, **settings))
    context = OperatorContext(
        "job", "out", 1, index, len(indices), generation=generation, durable_uri=str(directory),
        restored=restored or {}, subtask_indices=indices, is_sink=True,
    )  # fmt: skip
    operator.open(context)
    return operator


def delivered(kafka_bootstrap, topic, timeout_s=60, key=int):
    """Sorted ids that readers of committed records see, up to a record that is written after all else."""
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for partition in (0, 1):
        producer.produce(topic, b"null", partition=partition)
    assert producer.flush(30) == 0
    ended, found = [], []
    settings = {"bootstrap.servers": kafka_bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    # Of no group: to join one, and to leave it, takes longer than to read.
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in (0, 1)])
    while len(ended) < 2:
        message = consumer.poll(timeout_s)
        assert message is not None, "a transaction is still open"
        value = json.loads(message.value())
        ended.append(1) if value is None else found.append(value["id"])
    consumer.close()
    return sorted(found, key=key)


def through_json(value):
    return json.loads(json.dumps(value))
