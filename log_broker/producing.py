"""Streams of producers to the leader of a partition."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from log_broker.errors import LogWriteError
from log_broker.partition import PartitionReplica
from log_broker.waiting import EOF, end, listening, start
from weir.protocol.log.entries import (
    PRODUCER_EPOCH_MAX,
    DamagedEntryError,
    Header,
    check_batch,
    checksum,
    read_header,
)
from weir.protocol.log.producers import IN_FLIGHT_BATCHES_MAX, Verdict
from weir.rpc import log_pb2
from weir.rpc.log_wire import split_blob

#: Verdicts after which a batch is in the log.
_THERE = (Verdict.APPEND, Verdict.DUPLICATE, Verdict.WRITTEN)
_OK, _REJECTED, _UNKNOWN = log_pb2.ANSWER_OK, log_pb2.ANSWER_REJECTED, log_pb2.ANSWER_UNKNOWN


class _Waiting(NamedTuple):
    """A batch without an answer yet."""

    sequence: int
    #: -1: it is refused, once it is sure that this broker leads.
    offset: int
    end_offset: int
    #: Nobody knows its offset any more.
    is_forgotten: bool = False


class ProducerStream:
    """Takes the batches of one producer; answers in their order, each once it is as safe as the producer wants."""

    def __init__(self, replica: PartitionReplica, opening: log_pb2.ProduceOpen, context: Any) -> None:
        self._replica = replica
        self._opening = opening
        self._context = context
        self._epoch = replica.machine.leading_epoch
        #: Of the producer.
        self._producer_epoch = 0
        self._waiting: deque[_Waiting] = deque()
        self._room = asyncio.Event()
        #: Told at the end of the stream, behind all answers; None: it goes on.
        self._last: log_pb2.ProduceReply | None = None

    @property
    def _leads(self) -> bool:
        return self._replica.machine.leading_epoch == self._epoch

    async def run(self) -> None:
        """Serve the stream until the producer ends it, this broker no longer leads, or a batch cannot be taken."""
        if not await self._open():
            return
        with listening(self._replica) as changed:
            answers = start(self._answer(changed), "answers to a producer")
            try:
                while self._last is None and (message := await self._context.read()) is not EOF:
                    self._take(message)
                    changed.set()
                    while len(self._waiting) >= IN_FLIGHT_BATCHES_MAX and not answers.done():
                        self._room.clear()
                        await self._room.wait()
                if self._last is None:
                    self._last = log_pb2.ProduceReply()
                changed.set()
                await answers
            finally:
                await end(answers)

    async def _open(self) -> bool:
        """Answer the opening; False: there is nothing to take."""
        opening, replica = self._opening, self._replica
        known = replica.log.producers.epoch_of(opening.producer_id)
        epoch = opening.producer_epoch
        if epoch and epoch < known:
            message = (
                f"producer {opening.producer_id}: epoch {epoch} was replaced by {known}; "
                "another process uses this id"
            )
            if await self._is_committed(replica.confirm()):
                await self._context.write(log_pb2.ProduceReply(is_fenced=True, message=message))
            return False
        if not epoch and max(known, opening.last_epoch) >= PRODUCER_EPOCH_MAX:
            message = f"producer {opening.producer_id} has no epoch left; use another producer_id"
            await self._context.write(log_pb2.ProduceReply(is_fenced=True, message=message))
            return False
        next_sequence = 0
        self._producer_epoch = epoch
        if not epoch:
            epoch, end_offset = replica.take_over_producer(opening.producer_id, opening.last_epoch)
            self._producer_epoch = epoch
            if not await self._is_committed(end_offset):
                return False
        elif opening.acks == log_pb2.ACKS_ALL:
            next_sequence = replica.log.producers.next_sequence(opening.producer_id, epoch)
            if next_sequence and not await self._is_committed(replica.machine.end_offset):
                return False
        opened = log_pb2.ProduceOpened(producer_epoch=epoch, next_sequence=next_sequence)
        await self._context.write(log_pb2.ProduceReply(opened=opened))
        return True

    async def _is_committed(self, end_offset: int) -> bool:
        """Wait until all before an offset is committed; False: this broker no longer leads, and has said so."""
        machine = self._replica.machine
        with listening(self._replica) as changed:
            while self._leads and machine.commit_offset < end_offset:
                changed.clear()
                await changed.wait()
        if not self._leads:
            opened = log_pb2.ProduceOpened(leader_address="unknown")
            await self._context.write(log_pb2.ProduceReply(opened=opened))
        return self._leads

    def _take(self, message: bytes) -> None:
        head, batch = split_blob(message)
        crc = log_pb2.ProduceRequest.FromString(head).batch_crc
        if not self._leads:
            self._last = log_pb2.ProduceReply(message="this broker no longer leads")
            return
        try:
            header = read_header(batch)
            if checksum(batch) != crc:
                raise DamagedEntryError("a batch came with another checksum than it was sent with")
            self._check(header, len(batch))
            appended = self._replica.append_batch(batch, crc)
            if appended.verdict not in _THERE:
                self._waiting.append(_Waiting(header.sequence, -1, self._replica.confirm()))
        except LogWriteError as error:
            # Not written; the producer tries again until its deadline, and there may be room then.
            self._last = log_pb2.ProduceReply(message=str(error))
            return
        except DamagedEntryError as error:
            self._last = log_pb2.ProduceReply(message=str(error))
            return
        if appended.verdict in _THERE:
            is_forgotten = appended.verdict is Verdict.WRITTEN
            self._waiting.append(
                _Waiting(header.sequence, appended.offset, appended.end_offset, is_forgotten)
            )
            return
        self._last = log_pb2.ProduceReply(
            answers=[log_pb2.BatchAnswer(sequence=header.sequence, kind=_REJECTED)],
            is_fenced=appended.verdict is Verdict.FENCED,
            message=f"producer {header.producer_id}, batch {header.sequence}: {appended.verdict.value}",
        )

    def _check(self, header: Header, batch_bytes: int) -> None:
        """Refuse what this producer may not send: every reader would meet it."""
        check_batch(header, batch_bytes)
        sender = header.producer_id, header.producer_epoch
        if sender != (self._opening.producer_id, self._producer_epoch):
            raise DamagedEntryError(
                f"a batch of producer {header.producer_id} and epoch {header.producer_epoch} came in the stream of "
                f"producer {self._opening.producer_id} and epoch {self._producer_epoch}"
            )

    def _safe_offset(self) -> int:
        """Return the offset before which all may be acknowledged."""
        machine = self._replica.machine
        if self._opening.acks == log_pb2.ACKS_ALL:
            return machine.commit_offset
        return machine.durable_offset if self._opening.acks == log_pb2.ACKS_LEADER else machine.end_offset

    async def _answer(self, changed: asyncio.Event) -> None:
        waiting = self._waiting
        while True:
            changed.clear()
            if not self._leads:
                # First of all: what is committed at these offsets from now on may be another leader's.
                await self._give_up()
                return
            safe = self._safe_offset()
            answers = []
            while waiting and waiting[0].end_offset <= (
                safe if waiting[0].offset >= 0 else self._replica.machine.commit_offset
            ):
                each = waiting.popleft()
                if each.offset < 0:
                    # The last message of the stream says it.
                    continue
                answers.append(
                    log_pb2.BatchAnswer(
                        sequence=each.sequence,
                        kind=_OK,
                        offset=each.offset,
                        is_offset_forgotten=each.is_forgotten,
                    )
                )
            if answers:
                self._room.set()
                await self._context.write(log_pb2.ProduceReply(answers=answers))
                continue
            if self._last is not None and not waiting:
                await self._context.write(self._last)
                return
            await changed.wait()

    async def _give_up(self) -> None:
        """Say of all that is left that it may be written or not."""
        answers = [log_pb2.BatchAnswer(sequence=each.sequence, kind=_UNKNOWN) for each in self._waiting]
        self._waiting.clear()
        self._room.set()
        self._last = log_pb2.ProduceReply()
        # The producer leaves at this message, so that the stream ends, also if nothing was under way.
        await self._context.write(
            log_pb2.ProduceReply(answers=answers, message="this broker no longer leads")
        )
