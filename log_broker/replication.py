"""Streams from the leader of a partition to its followers: what each end does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.partition import PartitionReplica
from log_broker.peers import Peers
from log_broker.waiting import EOF, STREAM_ENDED, end, listening, start
from weir.errors import InvalidTransitionError
from weir.protocol.log.entries import DamagedEntryError
from weir.rpc import log_pb2
from weir.rpc.log_wire import split_blob, with_blob

log = logging.getLogger("log_broker.replication")

_CHUNK_BYTES = 1 << 20
#: Sent to a follower and not yet answered for.
_IN_FLIGHT_BYTES_MAX = 8 << 20
_RETRY_S = 0.05


class FollowerStream:
    """Sends a leader's log to one follower, for as long as one epoch is led."""

    def __init__(self, replica: PartitionReplica, follower_id: int, address: str, peers: Peers) -> None:
        self._replica = replica
        self._follower_id = follower_id
        self.address = address
        self._peers = peers
        self.epoch = replica.machine.leading_epoch
        self._next_offset = 0
        #: Ends and sizes of what is under way.
        self._under_way: list[tuple[int, int]] = []
        self._in_flight_bytes = 0

    @property
    def _leads(self) -> bool:
        return self._replica.machine.leading_epoch == self.epoch

    async def run(self) -> None:
        """Send until the epoch is over; begins anew when the stream breaks."""
        while self._leads:
            try:
                await self._stream()
            except STREAM_ENDED as error:
                # The last two: it has ended in order, as when the follower's disk is full, and something was written.
                log.debug("partition %s: broker %d: %s", self._replica.name, self._follower_id, error)
            except LogDamagedError as error:
                self._replica.damaged(error)
            except LogWriteError as error:
                # A segment cannot be opened at the moment.
                log.warning("partition %s: broker %d: %s", self._replica.name, self._follower_id, error)
            finally:
                self._replica.machine.follower_lost(self._follower_id)
            await asyncio.sleep(_RETRY_S)

    async def _stream(self) -> None:
        replica = self._replica
        call = self._peers.replicate(self.address)
        await call.write(
            log_pb2.ReplicateRequest(
                open=log_pb2.ReplicateOpen(
                    name=log_pb2.PartitionName(topic=replica.name.topic, partition=replica.name.partition),
                    epoch=self.epoch,
                    leader_id=replica.machine.broker_id,
                )
            ).SerializeToString()
        )
        first = await call.read()
        if first is EOF or not self._leads:
            call.cancel()
            return
        if first.promised_epoch:
            self._step_down(first.promised_epoch)
            return
        await call.write(self._first_request(first).SerializeToString())
        answers = start(self._take_answers(call), f"answers of broker {self._follower_id}")
        try:
            await self._send(call, answers)
        finally:
            call.cancel()
            await end(answers)

    def _step_down(self, epoch: int) -> None:
        # A full disk keeps nobody from giving up; the promise is told once it is stored.
        with contextlib.suppress(LogWriteError):
            self._replica.promise(epoch)

    def _first_request(self, first: Any) -> log_pb2.ReplicateRequest:
        """Say where the follower cuts its log, or begins anew because what would follow is no longer kept."""
        replica = self._replica
        cut = replica.machine.follower_opened(
            self._follower_id,
            first.incarnation,
            [(each.epoch, each.start_offset) for each in first.lineage],
            first.end_offset,
        )
        request = log_pb2.ReplicateRequest(commit_offset=replica.machine.commit_offset, has_cut=True)
        if cut < replica.log.first_offset:
            request.first_offset = cut = replica.log.first_offset
            request.snapshot = json.dumps(replica.log.first_start()).encode()
        request.cut_offset = self._next_offset = cut
        self._under_way.clear()
        self._in_flight_bytes = 0
        return request

    async def _send(self, call: Any, answers: asyncio.Task[None]) -> None:
        replica, ticks = self._replica, self._replica.ticks
        with listening(replica) as changed:
            while self._leads and not answers.done():
                changed.clear()
                chunk: list[bytes] = []
                end_offset = self._next_offset
                if self._in_flight_bytes < _IN_FLIGHT_BYTES_MAX:
                    chunk, end_offset = replica.log.read_parts(
                        self._next_offset, _CHUNK_BYTES, replica.machine.end_offset
                    )
                if not chunk:
                    if self._next_offset < replica.log.first_offset:
                        # Retention was faster than the follower.
                        return
                    if replica.ticks == ticks:
                        await changed.wait()
                        continue
                ticks = replica.ticks
                request = log_pb2.ReplicateRequest(
                    commit_offset=replica.machine.commit_offset,
                    start_offset=self._next_offset,
                ).SerializeToString()
                if chunk:
                    size = sum(map(len, chunk))
                    self._under_way.append((end_offset, size))
                    self._in_flight_bytes += size
                    self._next_offset = end_offset
                    request = with_blob(request, chunk)
                await call.write(request)

    async def _take_answers(self, call: Any) -> None:
        replica = self._replica
        while (reply := await call.read()) is not EOF:
            if reply.promised_epoch:
                self._step_down(reply.promised_epoch)
                return
            if not self._leads:
                # What it has of this epoch says nothing of a later one.
                return
            while self._under_way and self._under_way[0][0] <= reply.end_offset:
                self._in_flight_bytes -= self._under_way.pop(0)[1]
            before = replica.machine.commit_offset
            replica.machine.follower_has(self._follower_id, reply.durable_offset)
            if replica.machine.commit_offset != before or self._next_offset < replica.machine.end_offset:
                replica.changed()
        replica.changed()


async def follow(replica: PartitionReplica, opening: log_pb2.ReplicateOpen, context: Any) -> None:
    """Serve a stream from a leader until it ends, or a higher epoch was promised."""
    machine = replica.machine
    if not machine.accepts(opening.epoch):
        await context.write(log_pb2.ReplicateReply(promised_epoch=machine.promised_epoch))
        return
    replica.promise(opening.epoch)
    replica.stream_number += 1
    number = replica.stream_number
    lineage = [
        log_pb2.EpochStart(epoch=epoch, start_offset=offset) for epoch, offset in machine.lineage.starts
    ]
    await context.write(
        log_pb2.ReplicateReply(
            lineage=lineage, incarnation=machine.incarnation, end_offset=machine.end_offset
        )
    )
    # One of both writes: two writes at a time end the stream.
    is_told_later = replica.settings.durability == "fsync"
    teller: asyncio.Task[None] | None = None
    try:
        while (message := await context.read()) is not EOF:
            head, entries = split_blob(message)
            if machine.promised_epoch != opening.epoch:
                if teller is None:
                    await context.write(log_pb2.ReplicateReply(promised_epoch=machine.promised_epoch))
                # Otherwise the leader hears it when it begins again.
                return
            if number != replica.stream_number:
                return
            request = log_pb2.ReplicateRequest.FromString(head)
            _take(replica, request, entries)
            if request.has_cut:
                replica.changed()
            if is_told_later and request.has_cut:
                # Not before: what is cut off is durable, too, and the leader would count it.
                teller = start(_tell_durable(replica, opening.epoch, context), "answers to the leader")
            elif not is_told_later and (entries or request.has_cut):
                await context.write(_progress(replica))
    except LogDamagedError as error:
        replica.damaged(error)
    except (LogWriteError, DamagedEntryError, InvalidTransitionError) as error:
        # The leader begins again, from where this log ends then.
        log.warning(
            "partition %s: the stream from broker %d ends: %s", replica.name, opening.leader_id, error
        )
    finally:
        if teller is not None:
            await end(teller)


def _take(replica: PartitionReplica, request: log_pb2.ReplicateRequest, entries: bytes) -> None:
    if request.has_cut:
        if request.first_offset:
            replica.begin_at(request.first_offset, json.loads(request.snapshot))
        else:
            replica.cut(request.cut_offset)
    if entries:
        replica.append_entries(entries)
    replica.machine.learn_commit(request.commit_offset)


def _progress(replica: PartitionReplica) -> log_pb2.ReplicateReply:
    machine = replica.machine
    return log_pb2.ReplicateReply(end_offset=machine.end_offset, durable_offset=machine.durable_offset)


async def _tell_durable(replica: PartitionReplica, epoch: int, context: Any) -> None:
    told = -1
    with listening(replica) as changed:
        while True:
            changed.clear()
            if replica.machine.promised_epoch != epoch:
                # What is durable by now is another leader's, or its own: the old one would count it for its entries.
                return
            if replica.machine.durable_offset != told:
                told = replica.machine.durable_offset
                await context.write(_progress(replica))
            await changed.wait()
