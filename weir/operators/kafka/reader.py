"""The Kafka source: partitions are splits, offsets their positions; the rest is that of sources that users write.

Guarantee: every committed record once, also after restarts with other subtasks, since the offsets are in checkpoints.
A snapshot is theirs and has the ids of topics, too, in hexadecimal digits (older ones have none)::

    "topics": {"words": "0123456789abcdef0123456789abcdef"}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext
from weir.errors import InputError
from weir.operators.kafka.partitions import BEGINNING, RECORDS_MAX, KafkaPartitions, Partition
from weir.operators.kafka.records import Message, RecordDecoder
from weir.operators.sources.files.positions import SourceCounts
from weir.operators.sources.user.offset_reader import OffsetReader, OffsetSource
from weir.specs.kafka import KafkaSpec

#: Records that a paced source takes of one partition before it looks at the next: all shall advance.
_PACED_RECORDS = 256


class KafkaReader(OffsetReader):
    """Reads one subtask's partitions."""

    def __init__(self, spec: KafkaSpec, records: KafkaSource | None = None) -> None:
        self._records = records or KafkaSource(spec)
        super().__init__(spec, self._records)
        #: Offsets in the latest snapshot.
        self._noted: dict[Partition, int] = {}

    def _open_input(self, context: OperatorContext) -> None:
        """Open the input, and find out where partitions begin: from now on that is in checkpoints."""
        super()._open_input(context)
        _check_starts(self._records.spec, self._records.found, context.operator_name)
        for split in self._open_splits:
            split.position = self._records.partitions.start_of(_partition(split.split))

    def _resume(self, same: bool, indices: tuple[int, ...]) -> None:
        """Go on from a checkpoint, and look whether its offsets mean what they meant."""
        super()._resume(same, indices)
        ids = {
            topic: name
            for value in self._context.restored.values()
            if value is not None
            for topic, name in value.get("topics", {}).items()
        }
        remade = self._records.partitions.made_anew(ids)
        for split in (*self._open_splits, *self._waiting):
            partition = _partition(split.split)
            if partition[0] in remade:
                split.position = self._records.partitions.start_anew(partition)
                split.skip = split.checked = 0

    def _next_batch(self) -> pa.RecordBatch | None:
        if self._records.partitions.has_found():
            self._next_discovery_us = 0
        return super()._next_batch()

    def commit(self, checkpoint_id: int) -> None:
        """Let tools that watch the lag of the group see how far the latest checkpoint is."""
        self._records.partitions.note_positions(self._noted)

    def _position(self, counts: SourceCounts) -> Json:
        value = super()._position(counts)
        value["topics"] = dict(self._records.partitions.topic_ids.known)
        self._noted = {
            _partition(split[1]): split[2] for split in value["splits"] if split[2] not in (None, BEGINNING)
        }
        return value


class KafkaSource(OffsetSource):
    """A split is ``{"topic": ..., "partition": ...}``, a position the offset of the next record."""

    partitions: KafkaPartitions

    def __init__(self, spec: KafkaSpec) -> None:
        super().__init__(spec.on_bad_record)
        self.spec = spec
        self._records_max = RECORDS_MAX if spec.rate is None else _PACED_RECORDS
        self._found: list[Partition] | None = None
        self._ready: set[Partition] = set()

    def open(self, context: OperatorContext) -> None:
        """Connect."""
        super().open(context)
        self._decoder = RecordDecoder(self.spec, RECORDS_MAX, f"source {context.operator_name}")
        self.partitions = KafkaPartitions(self.spec, context.operator_name, context.clock)

    @property
    def found(self) -> Sequence[Partition]:
        """Return all partitions, as the brokers said last."""
        return self._found or ()

    @override
    def fetch(self) -> bool:
        self._ready = self.partitions.fetch()
        return bool(self._ready)

    @override
    def has_records(self, split: Json) -> bool:
        return _partition(split) in self._ready

    @override
    def ends(self) -> Mapping[str, int]:
        return {_place(*each): end for each, end in self.partitions.ends().items()}

    @override
    def reached(self, split: Json, position: int) -> int:
        return self.partitions.reached(_partition(split), position)

    @override
    def place(self, split: Json) -> str:
        return _place(*_partition(split))

    def splits(self) -> Sequence[Json]:
        """Every partition that there is, as far as brokers have answered: only the first call waits for them."""
        if self._found is None:
            self._found = self.partitions.partitions()
        elif (found := self.partitions.pop_found()) is not None:
            self._found = found
        else:
            self.partitions.ask_for_partitions()
        return [{"topic": topic, "partition": number} for topic, number in self._found]

    @override
    def read(self, split: Json, position: Json) -> Iterator[tuple[pa.RecordBatch, Json] | None]:
        partition = _partition(split)
        # Those that were there when the job began have a position: all of a partition that turns up later is read.
        self.partitions.add(partition, BEGINNING if position is None else position)
        try:
            while True:
                records = self.take(partition)
                if records:
                    rows, bad = self._decoder.decode(records)
                    self.note_read(split, np.array([each.offset() for each in records], dtype=np.int64), bad)
                    yield rows, records[-1].offset() + 1
                elif self.has_ended(partition):
                    return
                else:
                    yield None
        finally:
            self.partitions.remove(partition)

    def take(self, partition: Partition) -> Sequence[Message]:
        """The next records of a partition, of those that wait."""
        return self.partitions.take(partition, self._records_max)

    def has_ended(self, partition: Partition) -> bool:
        """Return whether nothing more is read of a partition."""
        return self.spec.bounded and self.partitions.has_ended(partition)

    def close(self) -> None:
        """Release the client."""
        if hasattr(self, "partitions"):
            self.partitions.close()


def _check_starts(spec: KafkaSpec, found: Sequence[Partition], step: str) -> None:
    """Refuse offsets of partitions that are not there: nobody would begin at them, and nobody would be told.

    Raises:
        InputError: names the first one, and what there is.
    """
    for topic, number, offset in spec.start if isinstance(spec.start, tuple) else ():
        if (topic, number) not in found:
            # Kafka numbers the partitions of a topic from 0 on, without a gap.
            count = sum(name == topic for name, _ in found)
            there = f"its partitions are 0 to {count - 1}" if count else "the topic is not there"
            raise InputError(
                f"source {step}: start has offset {offset} for partition {number} of topic {topic}, which is not at "
                f"{spec.bootstrap}: {there}; correct start"
            )


def _place(topic: str, number: int) -> str:
    return f"{topic}[{number}]"


def _partition(split: Json) -> Partition:
    return split["topic"], split["partition"]
