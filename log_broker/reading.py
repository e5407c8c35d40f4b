"""Streams to readers of a partition, from its leader."""

from __future__ import annotations

import asyncio
from typing import Any

from log_broker.partition import PartitionReplica
from log_broker.waiting import EOF, end, listening, start
from weir.rpc import log_pb2

_CHUNK_BYTES = 1 << 20
#: A reader hears so often from this broker, if there is nothing to send: else it looks for another leader.
_SILENCE_S = 1.0
#: While producers write, a reader waits so many times as long as its last chunk has taken.
_REST = 4.0
_REST_S_MAX = 0.05


class ReaderStream:
    """Sends what is committed, as far as the reader gives credit."""

    def __init__(self, replica: PartitionReplica, opening: log_pb2.ReadOpen, context: Any) -> None:
        self._replica = replica
        self._opening = opening
        self._context = context
        self._epoch = replica.machine.leading_epoch
        self._credit_bytes = 0
        self._is_over = False

    @property
    def _leads(self) -> bool:
        return self._replica.machine.leading_epoch == self._epoch

    async def run(self, credit_bytes: int) -> None:
        """Send until the reader goes, or the end is reached and more is not wanted.

        Raises:
            LogDamagedError: what is stored is not what was written.
            LogWriteError: the disk is full, so that nobody can confirm that this broker leads.
        """
        self._credit_bytes = credit_bytes
        replica = self._replica
        with listening(replica) as changed:
            credits = start(self._take_credit(changed), "credit of a reader")
            try:
                confirmed = replica.confirm() if self._opening.is_latest else 0
                machine = replica.machine
                while self._leads and not (machine.serves and machine.commit_offset >= confirmed):
                    changed.clear()
                    await changed.wait()
                commit = replica.machine.commit_offset
                await self._context.write(
                    log_pb2.ReadReply(
                        bounds=log_pb2.ReadBounds(
                            first_offset=replica.log.first_offset, commit_offset=commit
                        ),
                        leader_address="" if self._leads else "unknown",
                    )
                )
                await self._send(changed, None if self._opening.follow else commit)
            finally:
                await end(credits)

    def _begin(self) -> int:
        opening, log = self._opening, self._replica.log
        if opening.start_ms:
            return log.offset_at(opening.start_ms)
        if opening.by_id:
            return log.offset_of_id(opening.start_id)
        return max(opening.start_offset, log.first_offset)

    async def _send(self, changed: asyncio.Event, stop_offset: int | None) -> None:
        replica, offset = self._replica, self._begin()
        loop = asyncio.get_running_loop()
        tell_s = loop.time() + _SILENCE_S
        end_now = replica.machine.end_offset
        while self._leads and not self._is_over:
            changed.clear()
            commit = replica.machine.commit_offset
            stop = commit if stop_offset is None else min(stop_offset, commit)
            if stop_offset is not None and offset >= stop_offset:
                await self._context.write(log_pb2.ReadReply(is_end=True))
                return
            # What retention has removed meanwhile is passed over.
            offset = max(offset, replica.log.first_offset)
            began_s = loop.time()
            chunk, offset = (
                replica.log.read(offset, _CHUNK_BYTES, stop) if self._credit_bytes > 0 else (b"", offset)
            )
            if not chunk:
                # It is woken several times a second, whatever happens.
                await changed.wait()
                if loop.time() >= tell_s:
                    tell_s = loop.time() + _SILENCE_S
                    await self._context.write(log_pb2.ReadReply())
                continue
            tell_s = loop.time() + _SILENCE_S
            self._credit_bytes -= len(chunk)
            await self._context.write(log_pb2.ReadReply(entries=chunk))
            # Producers and followers come in between; while they write, a reader has a bounded share of the time.
            end_before, end_now = end_now, replica.machine.end_offset
            is_written = end_now != end_before
            await asyncio.sleep(min(_REST * (loop.time() - began_s), _REST_S_MAX) if is_written else 0)

    async def _take_credit(self, changed: asyncio.Event) -> None:
        while (request := await self._context.read()) is not EOF:
            self._credit_bytes += request.credit_bytes
            changed.set()
        self._is_over = True
        changed.set()
