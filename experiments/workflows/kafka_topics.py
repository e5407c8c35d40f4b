"""Topics of a Kafka, and a sender of commands to one; loaded only where Kafka is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from weir.errors import ConfigError, ConnectionLostError

_TIMEOUT_S = 60.0
_POLL_S = 0.01
#: Of librdkafka: records without an answer make ``send`` wait beyond these.
_PROPERTIES = {
    "linger.ms": 5,
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "queue.buffering.max.kbytes": 64 << 10,
}


def make_topic(bootstrap: str, topic: str, partitions: int) -> bool:
    """Create a topic; returns whether it was not there.

    Raises:
        ConfigError: it is there with another number of partitions.
        ConnectionLostError: the brokers do not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(topic, partitions, -1)])[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise ConnectionLostError(
                f"Kafka at {bootstrap}: topic {topic}: {error.args[0].str()}"
            ) from error
        there = len(admin.list_topics(topic, _TIMEOUT_S).topics[topic].partitions)
        if there != partitions:
            raise ConfigError(
                f"topic {topic} has {there} partitions, not {partitions}: reset, or say so"
            ) from None
        return False
    return True


def delete_topics(bootstrap: str, *topics: str) -> None:
    """Delete topics, and return when the brokers have forgotten them.

    Raises:
        ConnectionLostError: the brokers do not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic, deleted in admin.delete_topics(list(topics), operation_timeout=_TIMEOUT_S).items():
        try:
            deleted.result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConnectionLostError(
                    f"Kafka at {bootstrap}: topic {topic}: {error.args[0].str()}"
                ) from error


class KafkaSender:
    """See ``senders.Sender``."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, **_PROPERTIES})
        self.acknowledged = 0
        self.failures: list[str] = []

    def send(self, partition: int, records: Sequence[bytes]) -> None:
        """See ``senders.Sender``."""
        produce, note = self._producer.produce, self._note
        for record in records:
            while True:
                try:
                    produce(self._topic, record, partition=partition, on_delivery=note)
                    break
                except BufferError:
                    self._producer.poll(_POLL_S)
        self._producer.poll(0)

    def close(self) -> None:
        """See ``senders.Sender``."""
        left = self._producer.flush(_TIMEOUT_S)
        if left:
            self.failures.append(f"{left} records have no answer after {_TIMEOUT_S:g} s")

    def _note(self, error: Any, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))
