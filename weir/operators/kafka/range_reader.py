"""Reads the records of one partition between two offsets: what a task of Spark is given to read."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from weir.author.operator import Json
from weir.operators.kafka.partitions import Partition
from weir.operators.kafka.reader import KafkaReader, KafkaSource
from weir.operators.kafka.records import Message
from weir.specs.kafka import KafkaRangeSpec


class RangeReader(KafkaReader):
    """A reader of one partition that ends before an offset."""

    def __init__(self, spec: KafkaRangeSpec) -> None:
        super().__init__(spec, _RangeSource(spec))


class _RangeSource(KafkaSource):
    def __init__(self, spec: KafkaRangeSpec) -> None:
        super().__init__(spec)
        self._stop = spec.stop
        [(topic, number, _)] = spec.start if isinstance(spec.start, tuple) else ()
        self._found: list[Partition] = [(topic, number)]
        self._last = -1

    @override
    def splits(self) -> Sequence[Json]:
        # Whoever planned the range has asked the brokers for partitions.
        return [{"topic": topic, "partition": number} for topic, number in self._found]

    @override
    def take(self, partition: Partition) -> Sequence[Message]:
        taken = super().take(partition)
        if taken:
            self._last = taken[-1].offset()
        return [record for record in taken if record.offset() < self._stop]

    @override
    def has_ended(self, partition: Partition) -> bool:
        # The last offsets may be the ends of transactions, or of records that are gone: those behind tell, or the end.
        return max(self._last + 1, self.partitions.reached(partition, 0)) >= self._stop
