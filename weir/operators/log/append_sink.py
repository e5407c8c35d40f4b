"""The sink of the replicated log that writes each row at least once."""

from __future__ import annotations

import pyarrow as pa

from weir.author.operator import OperatorContext
from weir.author.sink import Sink
from weir.errors import FailureKind, InputError, WeirError
from weir.log import Producer, Ticket
from weir.operators.log.errors import unreachable
from weir.operators.log.rows import RowEncoder
from weir.operators.log.topics import partition_count
from weir.specs.log import LogSinkSpec


class LogAppendSink(Sink):
    """Guarantee: at least once. After a restart, rows since the last complete checkpoint are sent again."""

    def __init__(self, spec: LogSinkSpec) -> None:
        self._spec = spec
        #: By partition; made when the first records go there.
        self._producers: dict[int, Producer] = {}
        self._tickets: list[Ticket] = []

    def open(self, context: OperatorContext) -> None:
        """Ask for the topic; nothing is sent yet."""
        self._who, self._clock = f"sink {context.operator_name}", context.clock
        count = partition_count(self._who, self._spec.bootstrap, self._spec.topic, context.clock)
        self._encoder = RowEncoder(self._spec, context.operator_name, count)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the producers; waits while they have too many without an answer."""
        for partition, ids, values in self._encoder.encode(batch):
            try:
                self._tickets.append(self._producer(partition).send_many(ids, values))
            except WeirError as error:
                raise self._failure(error) from error

    def flush(self) -> None:
        """Return when a majority of the brokers has the rows."""
        tickets, self._tickets = self._tickets, []
        try:
            for ticket in tickets:
                ticket.result()
        except WeirError as error:
            failure = self._failure(error)
            # Whatever it is, the rows may go through another time.
            failure.failure_kind = FailureKind.OUTAGE
            raise failure from error

    def close(self) -> None:
        """Disconnect."""
        for producer in self._producers.values():
            producer.close()

    def _producer(self, partition: int) -> Producer:
        if partition not in self._producers:
            self._producers[partition] = Producer(
                self._spec.bootstrap,
                topic=self._spec.topic,
                partition=partition,
                compression=self._spec.compression,
                clock=self._clock,
            )
        return self._producers[partition]

    def _failure(self, error: WeirError) -> InputError:
        return unreachable(self._who, self._spec.bootstrap, error)
