"""Topics of Kafka as a source of Spark, without a package of it: Spark keeps offsets, Weir reads the records.

Spark asks for the offsets in a process of its own, beside the driver. Of a stream it notes them in the checkpoints of
the query before a trigger begins. Tasks get ranges of them, see :mod:`weir.spark.kafka_ranges`; a trigger that is run
again gets the same ones. Offsets have, by topic and partition, where the first trigger that reads it begins, and where
this one ends::

    {"bids": {"0": [0, 17], "1": [0, 4]}}

So also what "latest" meant is known to a query that is started again before its first trigger was done. Checkpoints of
earlier versions, of Spark's connector, have only where it ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from weir.clock import SystemClock
from weir.errors import InputError
from weir.specs.kafka import KafkaSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: By topic and partition where reading begins, and where it has come to.
Offsets: TypeAlias = "dict[str, dict[str, list[int]]]"
#: Columns of a range of a partition, as tasks get it.
RANGE_COLUMNS = ("_topic", "_number", "_first", "_stop")
_RANGE_DDL = "`_topic` STRING, `_number` INT, `_first` BIGINT, `_stop` BIGINT"
#: Of a partition that is read from the first record on that is there.
_BEGINNING = -2
#: Brokers are asked so often at most: Spark would do it 100 times a second.
_ASK_S = 0.1


@dataclass(frozen=True, order=True)
class Range:
    """Offsets of one partition: from ``first`` on, before ``stop``."""

    topic: str
    number: int
    first: int
    stop: int


def noted(offsets: Mapping[str, Mapping[str, Any]] | None) -> Offsets:
    """Return the offsets that Spark has from a checkpoint; None: there is none yet."""
    return {
        topic: {
            number: each if isinstance(each, list) else [_BEGINNING, each] for number, each in numbers.items()
        }
        for topic, numbers in (offsets or {}).items()
    }


def advanced(before: Offsets, now: Mapping[tuple[str, int], tuple[int, int]]) -> Offsets:
    """Return the offsets after a trigger.

    Args:
        before: those that it begins at.
        now: by partition the offset at which to begin where it is not known yet, and its end.
    """
    found = {topic: dict(numbers) for topic, numbers in before.items()}
    for (topic, number), (first, stop) in now.items():
        known = found.setdefault(topic, {}).get(str(number))
        if known is None:
            found[topic][str(number)] = [first, max(first, stop)]
        elif stop != known[1]:
            found[topic][str(number)] = [known[0], stop]
    return found


def ranges(step: str, spec: KafkaSpec, before: Offsets, after: Offsets) -> list[Range]:
    """Return what a trigger reads.

    Raises:
        InputError: a partition ends before what was read of it, and the source does not say what to do then.
    """
    found = []
    for topic, numbers in after.items():
        for number, (first, stop) in numbers.items():
            start = before.get(topic, {}).get(number, (0, first))[1]
            if stop < start:
                if spec.on_truncation == "fail":
                    raise InputError(
                        f"source {step}: {topic}[{number}] ends at offset {stop}, and was read to {start}: the topic "
                        'was made anew, or cut off; go on with on_truncation="earliest" or "latest", or start without '
                        "the checkpoint"
                    )
                start = _BEGINNING if spec.on_truncation == "earliest" else stop
            if start < stop and stop > 0:
                found.append(Range(topic, int(number), start, stop))
    return sorted(found)


def range_frames(spark: SparkSession, step: str, spec: KafkaSpec, *, in_stream: bool) -> DataFrame:
    """A frame with a row of :data:`RANGE_COLUMNS` for each range, in a partition of its own."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    # All sessions of a JVM share these names; checkpoints have none of them.
    shown = f"weir_kafka_{secrets.token_hex(8)}"

    def read(partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        each = partition.value
        yield each.topic, each.number, each.first, each.stop

    class Batch(DataSourceReader):
        """What Spark asks for a batch: all records that there are."""

        def partitions(self) -> Sequence[InputPartition]:
            asking = _Asking(step, spec)
            try:
                found = ranges(step, spec, {}, asking.latest({}))
            finally:
                asking.close()
            return [InputPartition(each) for each in found]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return read(partition)

    class Stream(DataSourceStreamReader):
        """What Spark asks for each trigger."""

        def __init__(self) -> None:
            self._asking = _Asking(step, spec)

        def initialOffset(self) -> dict[str, Any]:
            return {}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
            return self._asking.latest(noted(start))

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            return [InputPartition(each) for each in ranges(step, spec, noted(start), noted(end))]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return read(partition)

        def stop(self) -> None:
            self._asking.close()

    class Ranges(DataSource):
        """Source of one step alone: the class has the settings in it, which no log shall tell as those of options."""

        @classmethod
        def name(cls) -> str:
            return shown

        def schema(self) -> str:
            return _RANGE_DDL

        def reader(self, schema: Any) -> DataSourceReader:
            return Batch()

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Stream()

    spark.dataSource.register(Ranges)
    source = spark.readStream if in_stream else spark.read
    return source.format(shown).load()


class _Asking:
    """Asks the brokers for offsets; connects when it is asked first, since Spark sends it between processes."""

    def __init__(self, step: str, spec: KafkaSpec) -> None:
        self._step, self._spec = step, spec
        self._partitions: Any = None
        self._asked_s = -_ASK_S

    def latest(self, before: Offsets) -> Offsets:
        """The offsets after all records that there are."""
        from weir.operators.kafka.partitions import KafkaPartitions

        clock = SystemClock()
        time.sleep(max(0.0, self._asked_s + _ASK_S - clock.monotonic_s()))
        self._asked_s = clock.monotonic_s()
        if self._partitions is None:
            self._partitions = KafkaPartitions(self._spec, self._step, clock)
        now = {}
        for partition in self._partitions.partitions():
            topic, number = partition
            is_known = str(number) in before.get(topic, {})
            # Those that turn up later are read whole.
            first = self._partitions.start_of(partition) if not before else _BEGINNING
            now[partition] = (0 if is_known else first, self._partitions.end_of(partition))
        return advanced(before, now)

    def close(self) -> None:
        """Release the client."""
        if self._partitions is not None:
            self._partitions.close()
            self._partitions = None
