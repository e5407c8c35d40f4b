"""Partitions of the log that a subtask reads: a thread waits for the records of each, and the subtask takes them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import closing

from weir.clock import Clock
from weir.errors import FailureKind, InputError, WeirError
from weir.log.errors import LogTruncatedError
from weir.log.reader import Reader
from weir.operators.log.errors import unreachable
from weir.operators.log.partition_thread import TOLD_EVERY_S, PartitionThread
from weir.operators.log.records import Records
from weir.operators.log.topics import ANSWER_TIMEOUT_S, partition_count
from weir.specs.log import LogSpec

log = logging.getLogger(__name__)

#: Records that are given out at a time.
RECORDS_MAX = 16_384
#: On their way from the brokers, of each partition.
_UNDER_WAY_BYTES = 4 << 20


class LogPartitions:
    """Reads partitions from given offsets on. All methods are called by one thread.

    Args:
        spec: of the source.
        step: its name, for messages.
        clock: for time-outs.
        wake: called, by any thread, when records have come and there were none; None: nobody sleeps.
    """

    def __init__(self, spec: LogSpec, step: str, clock: Clock, wake: Callable[[], None] | None) -> None:
        self._spec, self._step, self._clock = spec, step, clock
        self._wake = wake or (lambda: None)
        self._partitions: dict[int, PartitionThread] = {}

    def count(self) -> int:
        """How many partitions the topic has.

        Raises:
            InputError: there is no such topic, or no broker answers, which is waited for.
        """
        return partition_count(f"source {self._step}", self._spec.bootstrap, self._spec.topic, self._clock)

    def end_of(self, partition: int) -> int:
        """Offset behind the last record, now; raises as :meth:`count`."""
        with self._explained():
            return self._bounds(partition)[1]

    def start_of(self, partition: int) -> int:
        """Offset at which to begin to read a partition; raises as :meth:`count`."""
        start = self._spec.start
        if start == "latest":
            return self.end_of(partition)
        if isinstance(start, int):
            return self._first_since(partition, start)
        given = dict(start) if isinstance(start, tuple) else {}
        if partition in given:
            return given[partition]
        with self._explained():
            return self._bounds(partition)[0]

    def _first_since(self, partition: int, time_ms: int) -> int:
        with self._explained():
            end = self.end_of(partition)
            with closing(self._reader(partition, start_ms=max(time_ms, 1))) as reader:
                # The broker's index tells only about where it is.
                for batch in reader.batches():
                    if batch.append_ms >= time_ms:
                        return batch.first_offset
            return end

    def add(self, partition: int, offset: int) -> None:
        """Read a partition, too, from this offset on."""
        reader = self._reader(partition, start=offset, follow=True, misses_nothing=True)
        name = f"source {self._step}: {self._spec.topic}[{partition}]"
        self._partitions[partition] = PartitionThread(reader, name, self._wake)

    def remove(self, partition: int) -> None:
        """Read it no more."""
        self._partitions.pop(partition).close()

    def fetch(self) -> set[int]:
        """Which partitions have records that wait.

        Raises:
            InputError: a partition cannot be read any further, whatever happens.
        """
        ready = set()
        for number, partition in list(self._partitions.items()):
            if partition.failure is not None and not partition.has_records:
                self._go_on(number, partition)
            if partition.has_records:
                ready.add(number)
        return ready

    def take(self, partition: int, count_max: int) -> Records | None:
        """The next records of a partition that wait; None: none do."""
        return self._partitions[partition].take(count_max)

    def position(self, partition: int) -> int:
        """Offset of the next record, if none waits: behind entries without records, too."""
        return self._partitions[partition].position

    def reached(self, partition: int, position: int) -> int:
        """The offset before which all records were taken, at or after a position; any thread may ask."""
        found = self._partitions.get(partition)
        # Some entries have no records.
        return position if found is None or found.has_records else max(position, found.position)

    def close(self) -> None:
        """End all reading."""
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()

    def _go_on(self, number: int, partition: PartitionThread) -> None:
        """Reading has ended: at the records that are left, or with an error."""
        failure = partition.failure
        assert failure is not None
        if not isinstance(failure, LogTruncatedError):
            wrong = self._failure(failure)
            # If this is so for good, the next deployment says it, and the job ends.
            wrong.failure_kind = FailureKind.OUTAGE
            raise wrong
        name = f"source {self._step}: {self._spec.topic}[{number}]"
        if self._spec.on_truncation == "fail":
            mend = ", or correct start" if isinstance(self._spec.start, tuple) else ""
            raise InputError(
                f"{name} does not have offset {partition.position}, at which to go on ({failure}); go on with "
                f'on_truncation="earliest" or "latest", or start without the checkpoint{mend}'
            )
        with self._explained():
            first, end = self._bounds(number)
        offset = end if self._spec.on_truncation == "latest" else first
        log.warning("%s: %s; goes on at offset %d", name, failure, offset)
        partition.close()
        del self._partitions[number]
        self.add(number, offset)

    def _bounds(self, partition: int) -> tuple[int, int]:
        with closing(self._reader(partition)) as reader:
            return reader.bounds()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except WeirError as error:
            raise self._failure(error) from error

    def _failure(self, error: WeirError) -> InputError:
        return unreachable(f"source {self._step}", self._spec.bootstrap, error)

    def _reader(self, partition: int, **settings: object) -> Reader:
        return Reader(
            self._spec.bootstrap,
            topic=self._spec.topic,
            partition=partition,
            buffer_bytes=_UNDER_WAY_BYTES,
            timeout_s=TOLD_EVERY_S if settings.get("follow") else ANSWER_TIMEOUT_S,
            clock=self._clock,
            **settings,  # type: ignore[arg-type]  # of the constructor
        )
