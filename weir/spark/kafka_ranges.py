"""Ranges of Kafka's partitions in Spark's tasks: Weir's reader reads and decodes them, as on a task manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from weir.spark.kafka_offsets import RANGE_COLUMNS
from weir.spark.reading_task import ReadingTask
from weir.specs.kafka import KafkaRangeSpec, KafkaSpec


class RangesTask(ReadingTask):
    """What Spark calls in each task that reads Kafka."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the records."""
        for batch in batches:
            for place in zip(*(batch.column(name).to_pylist() for name in RANGE_COLUMNS), strict=True):
                yield from self.read(self._range(*place))

    def _range(self, topic: str, number: int, first: int, stop: int) -> KafkaRangeSpec:
        """The same source over a range."""
        spec = self.steps.node.spec
        assert isinstance(spec, KafkaSpec), "no other source has ranges"
        return KafkaRangeSpec.of(spec, topic, number, first, stop)
