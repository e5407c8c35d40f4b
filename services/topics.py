"""Samples in topics: the jobs that ship with Weir have something to read as soon as the broker runs."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from services.errors import ServiceError

_TIMEOUT_S = 60.0


def fill(bootstrap: str, topic: str, path: Path) -> int:
    """Make a topic of the lines of a file, a record each; returns their number. One that is there stays as it is: 0.

    Raises:
        ServiceError: the file cannot be read, or the broker does not take the lines.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"{path} cannot be read: {error}") from error
    try:
        # It answers as long as it lives.
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic)])[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return 0
        raise ServiceError(f"topic {topic} at {bootstrap}: {error.args[0].str()}") from error
    producer = Producer({"bootstrap.servers": bootstrap})
    for line in lines:
        producer.produce(topic, line)
    if left := producer.flush(_TIMEOUT_S):
        raise ServiceError(f"topic {topic} at {bootstrap} has not taken {left} of {len(lines)} lines")
    return len(lines)
