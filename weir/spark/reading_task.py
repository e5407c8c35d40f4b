"""Weir's readers in tasks of Spark, which brings what is to be read: lines, or ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from weir.spark.marks import partition_number
from weir.spark.task_steps import TaskSteps
from weir.spark.tasks import Told, run_task
from weir.specs import SourceSpec


@dataclass(frozen=True)
class ReadingTask:
    """A source that Spark calls in each task; it is sent there.

    Attributes:
        steps: the source.
        tell: of records that are put aside.
    """

    steps: TaskSteps
    tell: Told

    def read(self, spec: SourceSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the source with other settings, which say what this task reads."""
        node = replace(self.steps.node, spec=spec)
        return run_task(replace(self.steps, node=node), partition_number(), (), self.tell)
