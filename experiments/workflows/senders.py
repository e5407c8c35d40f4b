"""What takes records to a log, and checks each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import weir.log
from weir.errors import WeirError


class Sender(Protocol):
    """Sends records to partitions of one topic, in order; for one thread."""

    #: Records that the log has confirmed so far.
    acknowledged: int
    #: Why others were not written, or may not have been.
    failures: list[str]

    def send(self, partition: int, records: Sequence[bytes]) -> None:
        """Send some; waits only while too many have no answer."""

    def close(self) -> None:
        """Wait for all answers."""


#: How long a command is tried before it counts as not confirmed.
DELIVERY_TIMEOUT_S = 30.0


class LogSender:
    """To the replicated log: a producer for each partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
        self._producers = {
            partition: weir.log.Producer(
                bootstrap,
                topic=topic,
                partition=partition,
                compression="lz4",
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
            )
            for partition in partitions
        }
        self._tickets: deque[tuple[int, weir.log.Ticket]] = deque()
        self._sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []

    def send(self, partition: int, records: Sequence[bytes]) -> None:
        """See :class:`Sender`."""
        ids = range(self._sent, self._sent + len(records))
        self._sent += len(records)
        self._tickets.append((len(records), self._producers[partition].send_many(ids, records)))
        while self._tickets and self._tickets[0][1].is_done:
            self._take()

    def close(self) -> None:
        """See :class:`Sender`."""
        while self._tickets:
            self._take()
        for producer in self._producers.values():
            producer.close()

    def _take(self) -> None:
        count, ticket = self._tickets.popleft()
        try:
            ticket.result()
            self.acknowledged += count
        except WeirError as error:
            self.failures.append(f"{count} records: {error}")


def sender(log: str, bootstrap: str, topic: str, partitions: Sequence[int]) -> Sender:
    """A sender to these partitions.

    Raises:
        WeirError: the brokers do not answer, or there is no such topic.
    """
    if log == "kafka":
        from experiments.workflows.kafka_topics import KafkaSender

        return KafkaSender(bootstrap, topic)
    return LogSender(bootstrap, topic, partitions)
