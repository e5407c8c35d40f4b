"""Marks: which transactions of a sink are committed, as offsets of consumer groups that only the sink uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from weir.clock import Clock, SystemClock
from weir.operators.kafka.bounded_calls import Waiting
from weir.operators.kafka.client_errors import unreachable
from weir.operators.kafka.client_log import client_log
from weir.specs.kafka import KafkaSinkSpec

_ANSWER_TIMEOUT_S = 30.0
#: For a coordinator that is asked whether it is there.
_LOOK_TIMEOUT_S = 0.5
#: While the brokers choose another coordinator.
_RENEWAL_S = 20.0
#: Groups that a producer takes one after the other, a new one after each outage of a broker.
GROUPS = 4
#: Properties that a user may set and a consumer does not know.
_PRODUCER_ONLY = ("linger.ms", "compression.type", "partitioner", "acks", "message.timeout.ms", "batch.size")


@dataclass(frozen=True, slots=True)
class Mark:
    """The number of a transaction as an offset of a consumer group: Kafka commits it with the records, or neither."""

    group: str
    topic: str
    value: int

    def offset(self) -> TopicPartition:
        """Return the mark as the client takes offsets."""
        return TopicPartition(self.topic, 0, self.value)


class Marks:
    """The marks of one subtask. One thread at a time calls it.

    A producer keeps who coordinates a group, also when that broker is gone for good (``bounded_calls``). So it sends
    its marks to another group after an outage; the largest mark of all groups counts.

    Args:
        spec: of the sink.
        step: its name, for messages.
        group: the first of the groups; the others are named after it.
        clock: for time-outs.
    """

    def __init__(self, spec: KafkaSinkSpec, step: str, group: str, clock: Clock | None = None) -> None:
        self._spec, self._group = spec, group
        self._clock = clock or SystemClock()
        self._who = f"sink {step}"
        self._consumers = {0: self._consumer_of(0)}

    def group_metadata(self, number: int) -> Any:
        """Return the metadata of one of the groups, for a producer; they are numbered from 0 on."""
        if number not in self._consumers:
            self._consumers[number] = self._consumer_of(number)
        return self._consumers[number].consumer_group_metadata()

    def latest(self) -> int:
        """The largest mark that is committed; -1: none is. No transaction of the group may be open.

        Raises:
            InputError: no broker answers.
        """
        return max(self._latest_of(number) for number in range(GROUPS))

    def coordinator_answers(self, number: int) -> bool:
        """Return whether the brokers have a coordinator of a group now, which its client here finds by itself."""
        try:
            self._consumers[number].committed([self._partition()], timeout=_LOOK_TIMEOUT_S)
        except KafkaException:
            return False
        return True

    def await_coordinator(self, number: int) -> None:
        """Return when the coordinator of a group answers, or has not for too long."""
        self.group_metadata(number)
        waiting = Waiting(
            f"{self._who}: Kafka at {self._spec.bootstrap}", "a coordinator is awaited", self._clock
        )
        ends_s = self._clock.monotonic_s() + _RENEWAL_S
        while not self.coordinator_answers(number) and self._clock.monotonic_s() < ends_s:
            waiting.tell_if_due()

    def close(self) -> None:
        """Release the clients."""
        for consumer in self._consumers.values():
            consumer.close()

    def _latest_of(self, number: int) -> int:
        consumer = self._consumers.get(number) or self._consumer_of(number)
        try:
            (found,) = consumer.committed([self._partition()], timeout=_ANSWER_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(self._who, self._spec.bootstrap, error.args[0]) from None
        finally:
            if number not in self._consumers:
                consumer.close()
        return max(-1, int(found.offset))

    def _consumer_of(self, number: int) -> Consumer:
        """A client in the group with this number, for questions only."""
        name = f"{self._group}#{number}" if number else self._group
        settings = {**self._spec.properties, "bootstrap.servers": self._spec.bootstrap, "group.id": name}
        kept = {key: value for key, value in settings.items() if key not in _PRODUCER_ONLY}
        return Consumer({**kept, "enable.auto.commit": False}, logger=client_log)

    def _partition(self) -> TopicPartition:
        return TopicPartition(self._spec.topic, 0)
