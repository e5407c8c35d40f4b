"""The producer: gathers records into batches and sends them to the leader of one partition."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from weir.clock import Clock, SystemClock, monotonic_ms
from weir.errors import ConfigError
from weir.log.batches import packed_body
from weir.log.cluster import Cluster
from weir.log.errors import LogRejectedError
from weir.log.producer_link import ProducerLink
from weir.log.queue import BatchQueue
from weir.log.tickets import Batch, ManyTicket, Ticket
from weir.protocol.log.entries import BATCH_BYTES_MAX, COMPRESSIONS, RECORD_OVERHEAD_BYTES
from weir.protocol.log.producers import IN_FLIGHT_BATCHES_MAX
from weir.rpc import log_pb2

_ACKS = {"none": log_pb2.ACKS_NONE, "0": log_pb2.ACKS_NONE, "1": log_pb2.ACKS_LEADER, "all": log_pb2.ACKS_ALL}
_RECORD_BYTES_MAX = BATCH_BYTES_MAX - (64 << 10)
_PRODUCER_IDS = 1 << 64


class Producer:
    """Sends records to one partition, in order. Safe for several threads; use it as a context manager.

    Records of one producer are in the partition in the order in which they were sent, each once, whatever fails
    meanwhile; what each ``acks`` can lose is in ``docs/log.md``.
    """

    def __init__(
        self,
        brokers: str,
        *,
        topic: str,
        partition: int = 0,
        acks: str | int = "all",
        linger_ms: float = 0.0,
        batch_bytes: int = 1 << 20,
        compression: str = "none",
        in_flight_max: int = 5,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_s: float = 30.0,
        producer_id: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Find the partition's leader; returns once the topic is known to be there.

        Args:
            brokers: ``host:port`` of a broker, or of several with commas.
            topic: to send to.
            partition: of the topic, from 0.
            acks: "all": answered once a majority that includes the leader has it; 1: the leader; 0: nobody, tickets are
                done when their batch was sent.
            linger_ms: how long a record may wait for others to share its batch.
            batch_bytes: a batch with so many bytes, as it is sent, goes at once. Where earlier batches have compressed
                well, it may hold up to 4 MiB of records.
            compression: "none", "lz4" or "zstd", of each batch as a whole.
            in_flight_max: batches that are under way at a time, up to 64.
            buffer_bytes: of records without an answer; more makes ``send`` wait.
            delivery_timeout_s: how long a record is tried, sent again if need be.
            producer_id: to go on as an earlier producer, which is fenced; None: a new one.
            clock: source of times.

        Raises:
            ConfigError: a value is not possible, or there is no such topic.
            ConnectionLostError: no broker has answered within ``delivery_timeout_s``.
        """
        _check(str(acks), compression, in_flight_max, batch_bytes)
        if producer_id is not None and not 0 < producer_id < _PRODUCER_IDS:
            raise ConfigError(f"producer_id={producer_id} is not possible: use 1 to 2**64 - 1")
        self._clock = clock or SystemClock()
        self._compression = compression
        self._timeout_ms = int(delivery_timeout_s * 1000)
        self._cluster = Cluster(brokers)
        self._queue = BatchQueue(
            self._clock, linger_ms / 1000, buffer_bytes, min(batch_bytes, BATCH_BYTES_MAX // 2)
        )
        self._link = ProducerLink(
            self._cluster,
            self._queue,
            self._clock,
            topic=topic,
            partition=partition,
            acks=_ACKS[str(acks)],
            compression=compression,
            in_flight_max=in_flight_max,
            producer_id=secrets.randbits(63) | 1 if producer_id is None else producer_id,
            takes_over=producer_id is not None,
        )
        self._lock = self._queue.lock
        self._open: Batch | None = None
        self._cluster.await_leader(topic, partition, delivery_timeout_s, self._clock)
        self._link.start()

    def send(self, record_id: int, data: bytes) -> Ticket:
        """Put a record into the next batch; waits only while ``buffer_bytes`` are without an answer.

        Args:
            record_id: any int64; readers can look for it.
            data: the record.

        Raises:
            LogRejectedError: it is too large, or the producer is closed.
            FencedError: another process has taken the producer's id over.
        """
        queue = self._queue
        size = len(data) + RECORD_OVERHEAD_BYTES
        if size > _RECORD_BYTES_MAX:
            raise LogRejectedError(
                f"a record of {len(data)} bytes is too large: it may have "
                f"{_RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES}"
            )
        with self._lock:
            batch = queue.open
            # A large record is not refused because of those before it.
            while batch is None or batch.size_bytes + size > _RECORD_BYTES_MAX:
                queue.cut()
                batch = queue.begin(monotonic_ms(self._clock) + self._timeout_ms)
            index = len(batch.ids)
            batch.ids.append(record_id)
            batch.buffers.append(data)
            batch.size_bytes += size
            if batch.size_bytes >= queue.batch_bytes:
                queue.cut()
        return Ticket(batch, index)

    def send_many(self, ids: Sequence[int] | npt.NDArray[np.int64], buffers: Any) -> Ticket:
        """Send records in batches of their own, without work in Python for each; waits as :meth:`send`.

        Args:
            ids: one per record.
            buffers: bytes-like, one per record; or a ``pyarrow.BinaryArray`` without nulls.

        Raises:
            ValueError: there are no records, or not as many ids.
            TypeError: a record is not bytes-like, or its items are larger than a byte.
            LogRejectedError: a record is too large, or the producer is closed.
            FencedError: another process has taken the producer's id over.
        """
        if not len(buffers) or len(ids) != len(buffers):
            raise ValueError(
                f"{len(ids)} ids for {len(buffers)} records; there must be as many, and one at least"
            )
        # NumPy would take a range apart number by number.
        numbers = (
            np.arange(ids.start, ids.stop, ids.step, dtype=np.int64)
            if isinstance(ids, range)
            else np.asarray(ids, np.int64)
        )
        if hasattr(buffers, "buffers"):
            lengths, pieces = _arrow_columns(buffers)
        else:
            lengths, pieces = np.fromiter(map(len, buffers), np.uint32, len(buffers)), buffers
        if int(lengths.max()) > _RECORD_BYTES_MAX:
            raise LogRejectedError(
                f"a record of {int(lengths.max())} bytes is too large: it may have {_RECORD_BYTES_MAX}"
            )
        ends = np.cumsum(lengths, dtype=np.int64)
        batches, start, done = [], 0, 0
        while start < len(numbers):
            stop = max(int(np.searchsorted(ends, done + self._queue.batch_bytes, "right")), start + 1)
            if isinstance(pieces, memoryview):
                parts: Sequence[Any] = (pieces[done : int(ends[stop - 1])],)
            else:
                parts = pieces[start:stop]
            batch = Batch(monotonic_ms(self._clock) + self._timeout_ms)
            batch.size_bytes = int(ends[stop - 1]) - done + RECORD_OVERHEAD_BYTES * (stop - start)
            batch.body = body = packed_body(
                numbers[start:stop], lengths[start:stop], parts, self._compression
            )
            self._queue.packed(body.raw_bytes, len(body.content))
            self._queue.put(batch)
            batches.append(batch)
            start, done = stop, int(ends[stop - 1])
        return Ticket(batches[0], 0) if len(batches) == 1 else ManyTicket(batches, self._clock)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what waits for others, and wait until everything has an answer.

        Raises:
            TimeoutError: some have none after ``timeout_s``.
        """
        self._queue.flush(timeout_s)

    def close(self) -> None:
        """Wait until everything has an answer, which takes ``delivery_timeout_s`` at most; then disconnect."""
        self._queue.close()
        self._link.join()
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arrow_columns(array: Any) -> tuple[npt.NDArray[np.uint32], memoryview]:
    """Return lengths and bytes of a binary array, where they lie."""
    if str(array.type).removeprefix("large_") not in ("binary", "string"):
        raise TypeError(f"an array of {array.type} has no records; cast it to binary")
    if array.null_count:
        raise ValueError("records must not be null; drop them, or fill them with b''")
    width = np.int64 if str(array.type).startswith("large") else np.int32
    _, offsets, content = array.buffers()
    places = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    blob = memoryview(content)[int(places[0]) : int(places[-1])] if content is not None else memoryview(b"")
    return np.diff(places).astype(np.uint32), blob


def _check(acks: str, compression: str, in_flight_max: int, batch_bytes: int) -> None:
    if acks not in _ACKS:
        raise ConfigError(f'acks={acks!r} is not possible: use "all", 1 or 0')
    if compression not in COMPRESSIONS:
        raise ConfigError(
            f"compression={compression!r} is not possible: use one of {', '.join(COMPRESSIONS)}"
        )
    if not 0 < in_flight_max <= IN_FLIGHT_BATCHES_MAX:
        raise ConfigError(f"in_flight_max={in_flight_max} is not possible: use 1 to {IN_FLIGHT_BATCHES_MAX}")
    if batch_bytes < 1:
        raise ConfigError(f"batch_bytes={batch_bytes} is not possible: use 1 or more")
