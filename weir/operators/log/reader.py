"""The source of the replicated log: partitions are splits, offsets their positions.

Guarantee: every committed record once, also after restarts with other subtasks, since the offsets are in checkpoints.
A split is ``{"topic": "words", "partition": 0}``, and of a bounded source has its end, too: ``"stop": 1234``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError
from weir.log.admin import log_status
from weir.operators.log.partitions import RECORDS_MAX, LogPartitions
from weir.operators.log.records import RecordDecoder
from weir.operators.sources.user.offset_reader import OffsetReader, OffsetSource
from weir.specs.log import LogSpec

#: Records that a paced source takes of one partition before it looks at the next: all shall advance.
_PACED_RECORDS = 256


class LogReader(OffsetReader):
    """Reads one subtask's partitions."""

    def __init__(self, spec: LogSpec) -> None:
        self._records = _LogSource(spec)
        super().__init__(spec, self._records)

    def _open_input(self, context: OperatorContext) -> None:
        """Find out where partitions begin, besides what the base class does: from now on that is in checkpoints."""
        super()._open_input(context)
        for split in self._open_splits:
            split.position = self._records.partitions.start_of(split.split["partition"])


class _LogSource(OffsetSource):
    """A position is the offset of the next record."""

    partitions: LogPartitions

    def __init__(self, spec: LogSpec) -> None:
        super().__init__(spec.on_bad_record)
        self.spec = spec
        self._records_max = RECORDS_MAX if spec.rate is None else _PACED_RECORDS
        self._ready: set[int] = set()

    def open(self, context: OperatorContext) -> None:
        """Connect nothing yet."""
        super().open(context)
        self._decoder = RecordDecoder(self.spec, RECORDS_MAX, f"source {context.operator_name}")
        self.partitions = LogPartitions(self.spec, context.operator_name, context.clock, context.wake)

    @override
    def splits(self) -> Sequence[Json]:
        count = self.partitions.count()
        for number, offset in self.spec.start if isinstance(self.spec.start, tuple) else ():
            if number >= count:
                raise InputError(
                    f"source {self._context.operator_name}: start has offset {offset} for partition {number} of topic "
                    f"{self.spec.topic}: its partitions are 0 to {count - 1}; correct start"
                )
        splits: list[Json] = [{"topic": self.spec.topic, "partition": number} for number in range(count)]
        if self.spec.bounded:
            for split in splits:
                split["stop"] = self.partitions.end_of(split["partition"])
        return splits

    @override
    def fetch(self) -> bool:
        self._ready = self.partitions.fetch()
        return bool(self._ready)

    @override
    def has_records(self, split: Json) -> bool:
        return split["partition"] in self._ready

    @override
    def ends(self) -> Mapping[str, int]:
        return {
            f"{each.topic}[{each.partition}]": each.commit_offset
            for each in log_status(self.spec.bootstrap).partitions
            if each.topic == self.spec.topic
        }

    @override
    def reached(self, split: Json, position: int) -> int:
        return self.partitions.reached(split["partition"], position)

    @override
    def place(self, split: Json) -> str:
        return f"{split['topic']}[{split['partition']}]"

    @override
    def read(self, split: Json, position: Json) -> Iterator[tuple[pa.RecordBatch, Json] | None]:
        partition = split["partition"]
        stop = split.get("stop") if self.spec.bounded else None
        if self.spec.bounded and stop is None:
            # The checkpoint is of a job that followed: this one ends where the partition ends now.
            stop = self.partitions.end_of(partition)
        self.partitions.add(partition, position)
        try:
            while stop is None or position < stop:
                # Before the records are taken: what it stands for waits by then.
                reached = self.partitions.position(partition)
                records = self.partitions.take(partition, self._records_max)
                if records is not None and stop is not None and records.offsets[-1] >= stop:
                    records = records.part(0, int((records.offsets < stop).sum()))
                    reached = stop
                if records:
                    rows, bad = self._decoder.decode(records, partition)
                    self.note_read(split, records.offsets, bad)
                    position = int(records.offsets[-1]) + 1
                    yield rows, position
                elif stop is not None and reached >= stop:
                    # Behind the last record there are entries without any.
                    return
                else:
                    yield None
        finally:
            self.partitions.remove(partition)

    def close(self) -> None:
        """End all reading."""
        if hasattr(self, "partitions"):
            self.partitions.close()
