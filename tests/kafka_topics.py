"""Topics of a real Kafka, for tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic


def make_topics(bootstrap: str, *names: str, partitions: int = 3) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        made.result(30)


def read_committed(
    bootstrap: str, topic: str, done: Callable[[int], bool], timeout_s: float = 60
) -> dict[int, list[bytes]]:
    """Values by partition, in order, until ``done`` says of their number that these are all."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.subscribe([topic])
    found = defaultdict(list)
    while not done(sum(map(len, found.values()))):
        message = consumer.poll(timeout_s)
        assert message is not None, f"only {sum(map(len, found.values()))} committed records"
        assert message.error() is None, message.error()
        found[message.partition()].append(message.value())
    consumer.close()
    return found
