"""The reader: committed records of one partition, in order."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc

from weir import threads
from weir.clock import Clock, SystemClock
from weir.errors import ConfigError, ConnectionLostError, InputError
from weir.log.batches import Record, RecordBatch, records_of
from weir.log.cluster import Cluster
from weir.log.errors import LogTruncatedError
from weir.protocol.log.entries import DamagedEntryError, entries_in
from weir.rpc import log_pb2, log_pb2_grpc

_RETRY_S = 0.05
#: A broker with nothing to send says so every second.
_SILENCE_S = 3.0
#: Behind all that there may ever be.
_NOWHERE = 1 << 62
_ID_MAX = 1 << 63


class _EndsBeforeError(Exception):
    """A leader does not have what it was asked for."""


class Reader:
    """Iterates over the records of one partition that are committed. Used by one thread.

    It goes on at another broker when the leader moves, behind the last record that it has given.
    """

    def __init__(
        self,
        brokers: str,
        *,
        topic: str,
        partition: int = 0,
        start: int = 0,
        start_ms: int = 0,
        start_id: int | None = None,
        follow: bool = False,
        buffer_bytes: int = 8 << 20,
        timeout_s: float = 30.0,
        misses_nothing: bool = False,
        latest: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            brokers: ``host:port`` of a broker, or of several with commas.
            topic: to read.
            partition: of the topic, from 0.
            start: offset of the first record wanted; those before it that are no longer kept are passed over.
            start_ms: instead: first records that were written at this time or later, ms since the epoch.
            start_id: instead: first records with this id or a greater one; some before them may come, too.
            follow: wait for more at the end; else end with what is committed when the reader begins.
            buffer_bytes: on their way to this reader; more wait at the broker.
            timeout_s: how long to look for a broker that leads.
            misses_nothing: end with an error where records from ``start`` on are no longer kept.
            latest: let a majority confirm first who leads, so that nothing is missed that anybody was told of before.
                Else a leader that was replaced, and has not heard of it, may answer with an older end. Takes as long
                as an acknowledgement, and one offset.
            clock: source of times.

        Raises:
            ConfigError: an offset, a time or an id is not possible.
            HandshakeError: an address is not of the form host:port.
        """
        _check_start(start, start_ms, start_id)
        self._cluster = Cluster(brokers)
        self._topic, self._partition = topic, partition
        #: Offset of the next record.
        self.position = start
        self._start_ms, self._start_id = start_ms, start_id
        self._follow = follow
        self._buffer_bytes = buffer_bytes
        self._timeout_s = timeout_s
        self._misses_nothing = misses_nothing
        self._latest = latest
        #: When a broker that leads has said anything last, in monotonic seconds.
        self._heard_s = 0.0
        self._clock = clock or SystemClock()
        #: Since when it has waited for a broker's word; None: it does not.
        self._waits_since_s: float | None = None
        self._is_closed = False
        self._call: grpc.Call | None = None
        self._is_at_end = False

    def __iter__(self) -> Iterator[Record]:
        """Yield records one by one; raises as :meth:`batches`."""
        for batch in self.batches():
            for record in batch.records():
                if record.offset >= self.position:
                    self.position = record.offset + 1
                    yield record

    def batches(self) -> Iterator[RecordBatch]:
        """Yield records in columns, batch by batch; the first one may begin before the offset that was asked for.

        Raises:
            ConnectionLostError: nobody has led the partition for ``timeout_s``.
            ConfigError: there is no such topic or partition.
            InputError: what came is not what was written.
            LogTruncatedError: with ``misses_nothing``, records were removed before they were read.
        """
        began_s = self._clock.monotonic_s()
        #: Since when the leader lacks what was asked for; None: it does not.
        lacks_since_s: float | None = None
        while not self._is_closed:
            try:
                for batch in self._stream(self._cluster.leader(self._topic, self._partition)):
                    lacks_since_s = None
                    yield batch
                if self._is_at_end:
                    return
                if self._is_late(max(began_s, self._heard_s)):
                    # Brokers say of each other again and again that they lead.
                    raise ConnectionLostError(
                        f"partition {self._topic}/{self._partition}: nobody leads at the moment"
                    )
            except grpc.RpcError as error:
                if self._is_closed:
                    return
                if self._is_late(max(began_s, self._heard_s)):
                    raise ConnectionLostError(f"the log does not answer: {error.details()}") from error
            except _EndsBeforeError as error:
                lacks_since_s = lacks_since_s or self._clock.monotonic_s()
                if self._is_late(lacks_since_s):
                    raise LogTruncatedError(str(error)) from None
            except ConnectionLostError:
                # Somebody who waits for rows has heard from a broker all the time.
                if self._is_late(max(began_s, self._heard_s)):
                    raise
            threads.sleep(_RETRY_S)

    def _is_late(self, since_s: float) -> bool:
        return self._clock.monotonic_s() > since_s + self._timeout_s

    def _stream(self, address: str) -> Iterator[RecordBatch]:
        credits: queue.SimpleQueue[int] = queue.SimpleQueue()
        stub = log_pb2_grpc.LogBrokerStub(self._cluster.channel(address))
        self._call = call = stub.Read(self._requests(credits))
        is_over = threads.event()
        threads.start(lambda: self._watch(call, is_over), "log reader watch")
        try:
            while (reply := self._next(call)) is not None:
                if reply.leader_address:
                    return
                self._heard_s = self._clock.monotonic_s()
                if reply.HasField("bounds"):
                    self._check_bounds(reply.bounds)
                self._is_at_end = reply.is_end
                if not reply.entries:
                    continue
                yield from self._batches_in(reply.entries)
                # What the caller has taken for them is no silence of the broker.
                self._heard_s = self._clock.monotonic_s()
                credits.put(len(reply.entries))
        finally:
            is_over.set()
            credits.put(0)
            self._call = None
            call.cancel()

    def _next(self, call: Iterator[log_pb2.ReadReply]) -> log_pb2.ReadReply | None:
        """Wait for the next message; None: there is none any more."""
        self._waits_since_s = self._clock.monotonic_s()
        try:
            return next(call, None)
        finally:
            self._waits_since_s = None

    def _watch(self, call: grpc.Call, is_over: threads.Event) -> None:
        """End a call whose broker is silent: it stands still or is cut off, and another one may lead by now.

        It looks once in some seconds: where the next look cannot find more silence than is allowed, there is none.
        """
        left_s = _SILENCE_S
        while not is_over.wait(left_s):
            since_s = self._waits_since_s
            left_s = _SILENCE_S if since_s is None else since_s + _SILENCE_S - self._clock.monotonic_s()
            if left_s <= 0:
                call.cancel()
                return

    def _batches_in(self, entries: bytes) -> Iterator[RecordBatch]:
        try:
            for entry in entries_in(entries):
                self._check_gap(entry.envelope.offset)
                # From here on the place is known exactly.
                self._start_ms, self._start_id = 0, None
                if not entry.header.is_control and entry.end_offset > self.position:
                    yield records_of(entries, entry)
                self.position = max(self.position, entry.end_offset)
        except DamagedEntryError as error:
            raise InputError(f"partition {self._topic}/{self._partition}: {error}") from error

    @property
    def _knows_place(self) -> bool:
        return not self._start_ms and self._start_id is None

    def _check_bounds(self, bounds: log_pb2.ReadBounds) -> None:
        if self._misses_nothing and self._knows_place:
            self._check_gap(bounds.first_offset)
            if self.position > bounds.commit_offset:
                # Or it is an old leader that has not heard yet that it was replaced.
                raise _EndsBeforeError(
                    f"partition {self._topic}/{self._partition} ends at offset {bounds.commit_offset}, before "
                    f"{self.position}: what was there is lost, or the log was made anew"
                )

    def _check_gap(self, offset: int) -> None:
        if self._misses_nothing and self._knows_place and offset > self.position:
            raise LogTruncatedError(
                f"partition {self._topic}/{self._partition} begins at offset {offset} now, and {self.position} is the "
                "next one to read: retention has removed records that were not read"
            )

    def bounds(self) -> tuple[int, int]:
        """Ask the leader for the first offset that is kept, and the one behind the last record.

        Raises as :meth:`batches`, which goes on as if nothing was asked.
        """
        began_s, trouble = self._clock.monotonic_s(), ConnectionLostError("nobody leads the partition")
        name = log_pb2.PartitionName(topic=self._topic, partition=self._partition)
        opening = log_pb2.ReadRequest(open=log_pb2.ReadOpen(name=name, start_offset=_NOWHERE))
        while True:
            try:
                address = self._cluster.leader(self._topic, self._partition)
                stub = log_pb2_grpc.LogBrokerStub(self._cluster.channel(address))
                for reply in stub.Read(iter([opening]), timeout=self._timeout_s):
                    if reply.HasField("bounds") and not reply.leader_address:
                        return reply.bounds.first_offset, reply.bounds.commit_offset
            except grpc.RpcError as error:
                trouble = ConnectionLostError(f"the log does not answer: {error.details()}")
            except ConnectionLostError as error:
                trouble = error
            # Also where a broker says again and again that another one leads.
            if self._is_late(began_s):
                raise trouble
            threads.sleep(_RETRY_S)

    def _requests(self, credits: queue.SimpleQueue[int]) -> Iterator[log_pb2.ReadRequest]:
        opening = log_pb2.ReadOpen(
            name=log_pb2.PartitionName(topic=self._topic, partition=self._partition),
            start_offset=self.position,
            start_ms=self._start_ms,
            by_id=self._start_id is not None,
            start_id=self._start_id or 0,
            follow=self._follow,
            is_latest=self._latest,
        )
        yield log_pb2.ReadRequest(open=opening, credit_bytes=self._buffer_bytes)
        while size := credits.get():
            yield log_pb2.ReadRequest(credit_bytes=size)

    def close(self) -> None:
        """End the iteration, from another thread too."""
        self._is_closed = True
        call = self._call
        if call is not None:
            call.cancel()
        self._cluster.close()


def _check_start(start: int, start_ms: int, start_id: int | None) -> None:
    for name, value in (("start", start), ("start_ms", start_ms)):
        if not 0 <= value < _NOWHERE:
            raise ConfigError(f"{name}={value} is not possible: use 0 or more")
    if start_id is not None and not -_ID_MAX <= start_id < _ID_MAX:
        raise ConfigError(f"start_id={start_id} is not possible: ids are int64")
