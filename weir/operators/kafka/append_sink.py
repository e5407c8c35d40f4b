"""The Kafka sink that writes each row at least once."""

from __future__ import annotations

import pyarrow as pa

from weir.author.operator import OperatorContext
from weir.author.sink import Sink
from weir.operators.kafka.producing import RecordProducer
from weir.specs.kafka import KafkaSinkSpec


class KafkaAppendSink(Sink):
    """Guarantee: at least once. After a restart, rows since the last complete checkpoint are sent again."""

    def __init__(self, spec: KafkaSinkSpec) -> None:
        self._spec = spec

    def open(self, context: OperatorContext) -> None:
        """Connect; nothing is sent yet."""
        self._producer = RecordProducer(self._spec, context.operator_name)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the client."""
        self._producer.produce(batch)

    def flush(self) -> None:
        """Return when the brokers have them."""
        self._producer.flush()
