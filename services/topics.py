"""Samples in topics: the jobs that ship with Weir have something to read as soon as the broker runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from services.errors import ServiceError

_TIMEOUT_S = 60.0
#: Between two attempts to queue a line.
_ROOM_S = 0.1


def fill(bootstrap: str, topic: str, path: Path) -> int:
    """Make a topic of the lines of a file, a record each; returns their number. One that is there stays as it is: 0.

    Raises:
        ServiceError: the file cannot be read, or the broker does not take the lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"{path} cannot be read: {error}") from error
    try:
        # It answers as long as it lives.
        admin = AdminClient(_settings(bootstrap))
        admin.create_topics([NewTopic(topic)])[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return 0
        raise ServiceError(f"topic {topic} at {bootstrap}: {error.args[0].str()}") from error
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message | None) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(_settings(bootstrap))
    for line in lines:
        _queue(producer, topic, line, note)
    left = producer.flush(_TIMEOUT_S) + len(failed)
    if left:
        reason = f" ({failed[0].str()})" if failed else ""
        raise ServiceError(
            f"topic {topic} at {bootstrap} has not taken {left} of {len(lines)} lines{reason}; delete the topic before "
            "you fill it again"
        )
    return len(lines)


def _settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Of a client that tells warnings and errors only, and not what it drops at its end."""
    return {"bootstrap.servers": bootstrap, "log_level": 4}


def _queue(
    producer: Producer, topic: str, line: str, note: Callable[[KafkaError | None, Message | None], None]
) -> None:
    """Hand a line to the client, when its queue has room; tells ``note`` at once if it does not take it."""
    while True:
        try:
            producer.produce(topic, line, on_delivery=note)
            return
        except BufferError:
            producer.poll(_ROOM_S)
        except KafkaException as error:
            note(error.args[0], None)
            return
