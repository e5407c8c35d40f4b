"""The stream of a producer to the leader, made again when it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from weir import threads
from weir.clock import Clock, monotonic_ms
from weir.errors import ConnectionLostError, FencedError, WeirError
from weir.log.batches import Body, body_of
from weir.log.cluster import Cluster
from weir.log.errors import LogRejectedError, LogUnknownError
from weir.log.queue import BatchQueue
from weir.log.tickets import Batch
from weir.protocol.log.entries import MAY_HAVE_GAPS, checksum, extend_checksum, header_bytes
from weir.protocol.log.outbox import Outbox, Sent
from weir.rpc import log_pb2
from weir.rpc.log_wire import PRODUCE, as_it_is, produce_request

log = logging.getLogger("weir.log")

_RETRY_S = 0.02
_TAKE_S = 0.2
#: Of batches under way, whatever their number.
_IN_FLIGHT_BYTES_MAX = 16 << 20
#: A leader that is silent for so long is asked for anew: it may be paused or cut off.
_SILENCE_S = 1.0


class _Under:
    """A batch under way: how it goes over the wire, and whom its answer is for."""

    __slots__ = ("batch", "message")

    def __init__(self, batch: Batch, message: bytes) -> None:
        self.batch = batch
        self.message = message


class ProducerLink:
    """Has two threads: one waits for answers, and gRPC's asks for what is to be sent."""

    def __init__(
        self,
        cluster: Cluster,
        queue: BatchQueue,
        clock: Clock,
        *,
        topic: str,
        partition: int,
        acks: log_pb2.Acks,
        compression: str,
        in_flight_max: int,
        producer_id: int,
        takes_over: bool,
        first_sequence: int | None = None,
    ) -> None:
        """``first_sequence``: go on there in the producer's first epoch, and end for good at the first failure."""
        self._cluster = cluster
        self._queue = queue
        self._clock = clock
        self._topic, self._partition = topic, partition
        self._acks = acks
        self._flags = 0 if acks == log_pb2.ACKS_ALL else MAY_HAVE_GAPS
        self._compression = compression
        self._producer_id = producer_id
        self._takes_over = takes_over
        #: Held while the outbox is looked at or changed.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        #: Held by the generator of one stream while it takes and numbers a batch, so that none passes another.
        self._sending = threading.Lock()
        self._outbox: Outbox[_Under] = Outbox(
            in_flight_max, _IN_FLIGHT_BYTES_MAX, epoch=1, next_sequence=first_sequence or 0
        )
        #: Batches have their sequences already, so that nothing may be left out.
        self._is_numbered = first_sequence is not None
        #: Of the latest stream; the generator of an older one ends.
        self._stream_number = 0
        #: The latest stream was opened to take the id over.
        self._asked_to_take_over = False
        self._is_open = threading.Event()
        #: All batches before this one are committed, as the leader says; None: it was not heard yet.
        self.known_sequence: int | None = None
        self._heard_s = 0.0
        self._call: Any = None
        self._complaint = ""
        self._thread: threads.Running | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread = threads.start(self._run, "log producer")
        threads.start(self._watch, "log producer watch")

    def join(self) -> None:
        """Wait until the link has ended: the queue was closed and everything has an answer."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_SILENCE_S)
            if self._clock.monotonic_s() - self._heard_s > _SILENCE_S:
                # A leader that stands still would keep its stream open.
                self.stop()

    def stop(self) -> None:
        """End the stream; the queue has failed, so that no other one begins."""
        call = self._call
        if call is not None:
            call.cancel()

    @property
    def complaint(self) -> str:
        """Why the latest stream has ended, or none began; empty: none did."""
        return self._complaint

    @property
    def _is_over(self) -> bool:
        return (self._queue.is_closed and self._queue.is_empty) or self._queue.failure is not None

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._stream(self._cluster.leader(self._topic, self._partition))
            except grpc.RpcError as error:
                was_ended_here = error.code() is grpc.StatusCode.CANCELLED
                self._complaint = (
                    f"the leader is silent for more than {_SILENCE_S:g} s"
                    if was_ended_here
                    else f"the leader does not answer: {error.details()}"
                )
            except ConnectionLostError as error:
                self._complaint = str(error)
            except WeirError as error:
                self._fail(error)
                return
            with self._lock:
                self._stream_number += 1
                self._is_open.clear()
                self._outbox.disconnected()
                self._room.notify_all()
            # So that the generator of that stream ends.
            self._queue.wake()
            if not self._is_over:
                threads.sleep(_RETRY_S)

    def _stream(self, address: str) -> None:
        with self._lock:
            number, self._asked_to_take_over = self._stream_number, self._takes_over
        call = self._cluster.channel(address).stream_stream(
            PRODUCE, request_serializer=as_it_is, response_deserializer=log_pb2.ProduceReply.FromString
        )(self._requests(number))
        self._heard_s = self._clock.monotonic_s()
        self._call = call
        try:
            for reply in call:
                self._heard_s = self._clock.monotonic_s()
                if not self._take(reply):
                    return
        finally:
            self._call = None
            call.cancel()

    # -- what goes up

    def _requests(self, number: int) -> Iterator[bytes]:
        epoch = 0 if self._asked_to_take_over else self._outbox.epoch
        opening = log_pb2.ProduceOpen(
            name=log_pb2.PartitionName(topic=self._topic, partition=self._partition),
            producer_id=self._producer_id,
            producer_epoch=epoch,
            acks=self._acks,
            last_epoch=self._outbox.epoch if not epoch and self._outbox.next_sequence else 0,
        )
        yield log_pb2.ProduceRequest(open=opening).SerializeToString()
        while not self._is_open.wait(_TAKE_S):
            if number != self._stream_number or self._is_over:
                return
        while number == self._stream_number and not self._is_over:
            with self._sending:
                message = self._next(number)
            if message is not None:
                yield message

    def _next(self, number: int) -> bytes | None:
        with self._lock:
            if number != self._stream_number:
                return None
            sent = self._outbox.to_send()
            if sent is not None:
                return sent.item.message
            if self._takes_over or not self._outbox.has_room():
                self._room.wait(_TAKE_S)
                return None
        batch = self._queue.take(_TAKE_S)
        if batch is None or not self._number(batch):
            return None
        with self._lock:
            sent = self._outbox.to_send() if number == self._stream_number else None
        return None if sent is None else sent.item.message

    def _number(self, batch: Batch) -> bool:
        """Give a batch its place in the order and the form in which it is sent, now and again; False: it has none."""
        body: Body = batch.body
        if body is None:
            try:
                body = body_of(batch.ids, batch.buffers, self._compression)
            except (WeirError, TypeError, OverflowError) as error:
                self._queue.finished(batch, -1, LogRejectedError(f"records cannot be sent: {error}"))
                return False
            self._queue.packed(body.raw_bytes, len(body.content))
        batch.body = body
        with self._lock:
            failure = self._queue.failure
            if failure is not None:
                # Whatever is numbered before that is finished by ``_fail``.
                self._queue.finished(batch, -1, failure)
                return False
            if self._takes_over:
                # It belongs to the producer's next epoch, which the next stream begins.
                self._queue.put_back(batch)
                return False
            if batch.sequence is not None and batch.sequence != self._outbox.next_sequence:
                failure = LogRejectedError(
                    f"batch {batch.sequence} is not the next one, {self._outbox.next_sequence}"
                )
                self._queue.finished(batch, -1, failure)
                return False
            header = header_bytes(
                body.header(self._producer_id, self._outbox.epoch, self._outbox.next_sequence, self._flags)
            )
            message = produce_request(extend_checksum(checksum(header), body.content), header, body.content)
            # Even if the stream has ended meanwhile: then it goes on the next one.
            self._outbox.add(_Under(batch, message), len(message), batch.deadline_ms)
        if self._acks == log_pb2.ACKS_NONE:
            # Nobody is waited for; the answer only makes room.
            self._queue.finished(batch, -1)
        return True

    # -- what comes down

    def _take(self, reply: log_pb2.ProduceReply) -> bool:
        """Take one message; False: the stream is of no use any more."""
        if reply.HasField("opened"):
            if reply.opened.leader_address:
                self._complaint = f"partition {self._topic}/{self._partition}: nobody leads at the moment"
                return False
            self.known_sequence = reply.opened.next_sequence
            return self._begin(reply.opened.producer_epoch)
        for answer in reply.answers:
            self._answer(answer, reply)
        if reply.is_fenced:
            self._fail(FencedError(reply.message))
            return False
        if reply.message:
            self._complaint = reply.message
            return False
        return True

    def _begin(self, epoch: int) -> bool:
        with self._lock:
            if self._takes_over and not self._asked_to_take_over:
                # What was under way was given up meanwhile: in the same epoch its numbers would mean other records.
                return False
            if self._takes_over:
                self._outbox.begin_epoch(epoch)
                self._takes_over = False
        self._is_open.set()
        return True

    def _answer(self, answer: log_pb2.BatchAnswer, reply: log_pb2.ProduceReply) -> None:
        if answer.kind == log_pb2.ANSWER_UNKNOWN:
            # It is sent again on the next stream.
            return
        with self._lock:
            sent = self._outbox.answered(answer.sequence)
            self._room.notify_all()
        if sent is None or self._acks == log_pb2.ACKS_NONE:
            return
        if answer.kind == log_pb2.ANSWER_OK:
            self._queue.finished(sent.item.batch, -1 if answer.is_offset_forgotten else answer.offset)
            return
        kind: type[WeirError] = FencedError if reply.is_fenced else LogRejectedError
        # An earlier attempt may have written it.
        error = kind(reply.message) if sent.attempts == 1 else LogUnknownError(reply.message)
        self._queue.finished(sent.item.batch, -1, error)
        if self._is_numbered:
            self._fail(error)
            return
        self._give_up(error)

    def _give_up(self, error: WeirError) -> None:
        """Give up all that is under way: behind a batch that is absent it could not be sent in order."""
        with self._lock:
            lost = self._outbox.give_up()
            self._takes_over = True
        self._finish_lost(lost, error)

    def _finish_lost(self, lost: list[Sent[_Under]], error: WeirError) -> None:
        if self._acks != log_pb2.ACKS_NONE:
            for sent in lost:
                self._queue.finished(sent.item.batch, -1, error)
        with self._lock:
            self._room.notify_all()

    def _fail(self, error: WeirError) -> None:
        """End for good."""
        self._queue.fail(error)
        with self._lock:
            lost = self._outbox.give_up()
        unknown = LogUnknownError(f"{error}; what was under way may be written or not")
        self._finish_lost(lost, unknown)

    def _watch(self) -> None:
        """Look from time to time whether a leader is silent, and whether a batch has had its time."""
        while not self._is_over:
            threads.sleep(_TAKE_S / 2)
            with self._lock:
                lost = self._outbox.expired(monotonic_ms(self._clock))
                is_waited_for = not (self._is_open.is_set() or self._queue.is_empty)
                has_work = bool(self._outbox.unanswered) or is_waited_for
                if lost and not self._is_numbered:
                    # So that nothing of these comes later.
                    self._takes_over = True
            why = self._complaint or "no answer from the leader"
            error = LogUnknownError(f"not known to be written within the delivery timeout: {why}")
            self._finish_lost(lost, error)
            if self._is_numbered:
                if lost or self._queue.has_expired(monotonic_ms(self._clock)):
                    self._fail(error)
            else:
                late = LogRejectedError(f"not sent within the delivery timeout: {why}")
                for batch in self._queue.expired(monotonic_ms(self._clock)):
                    self._queue.finished(batch, -1, late)
            call, now_s = self._call, self._clock.monotonic_s()
            if call is not None and (lost or (has_work and now_s - self._heard_s > _SILENCE_S)):
                call.cancel()
            if not has_work:
                self._heard_s = now_s
