"""Ranges of Kafka's partitions in Spark's tasks: Weir's reader reads and decodes them, as on a task manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from weir.spark.kafka_offsets import RANGE_COLUMNS
from weir.spark.marks import partition_number
from weir.spark.task_steps import TaskSteps
from weir.spark.tasks import Told, run_task
from weir.specs.kafka import KafkaRangeSpec, KafkaSpec


@dataclass(frozen=True)
class RangesTask:
    """What Spark calls in each task of a stream that reads Kafka; it is sent there.

    Attributes:
        steps: the source.
        tell: of records that are put aside.
    """

    steps: TaskSteps
    tell: Told

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the records."""
        for batch in batches:
            for place in zip(*(batch.column(name).to_pylist() for name in RANGE_COLUMNS), strict=True):
                yield from run_task(self._over(*place), partition_number(), (), self.tell)

    def _over(self, topic: str, number: int, first: int, stop: int) -> TaskSteps:
        """The same source over a range."""
        node = self.steps.node
        assert isinstance(node.spec, KafkaSpec), "no other source has ranges"
        found = KafkaRangeSpec.of(node.spec, topic, number, first, stop)
        return replace(self.steps, node=replace(node, spec=found))
