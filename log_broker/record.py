"""The controller's record: what it holds, and how it is stored before anybody hears of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from log_broker.errors import LogDamagedError
from weir.errors import CheckpointError, SupersededError
from weir.protocol.log.control import PartitionRecord
from weir.protocol.log.entries import checksum
from weir.records.file_keeper import Keeper

log = logging.getLogger("log_broker.controller")

_AGAIN_S = 0.2
#: Whoever changes something is told that it is not stored after so long.
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class ControllerRecord:
    """Holds all that a controller has decided."""

    #: Settings by name.
    topics: dict[str, dict[str, Any]]
    #: Brokers that are to have nothing.
    drained: frozenset[int]
    partitions: list[PartitionRecord]

    def to_bytes(self) -> bytes:
        """Return the document, with its checksum before it."""
        document = {
            "topics": list(self.topics.values()),
            "drained": sorted(self.drained),
            "partitions": [each.to_json() for each in self.partitions],
        }
        body = json.dumps(document, separators=(",", ":")).encode()
        return b"%08x\n" % checksum(body) + body

    @classmethod
    def from_bytes(cls, data: bytes | None, place: str) -> ControllerRecord:
        """Read what :meth:`to_bytes` returned; None: a log begins.

        Raises:
            LogDamagedError: it is not what was written; ``place`` says where it was.
        """
        if data is None:
            return cls({}, frozenset(), [])
        crc, _, body = data.partition(b"\n")
        if crc != b"%08x" % checksum(body):
            raise LogDamagedError(f"{place} has another checksum than was written")
        document = json.loads(body)
        return cls(
            {each["topic"]: each for each in document["topics"]},
            frozenset(document.get("drained", ())),
            [PartitionRecord.from_json(each) for each in document["partitions"]],
        )


class RecordSaver:
    """Stores the newest record beside the event loop, again and again if need be. Used in that loop."""

    def __init__(self, keeper: Keeper, on_stored: Callable[[ControllerRecord], None]) -> None:
        """``on_stored`` is called with a copy of each record once it is stored, which others may hear of then."""
        self._keeper = keeper
        self._on_stored = on_stored
        self._wanted: bytes | None = None
        self._news = asyncio.Event()
        self._is_stored = asyncio.Event()
        self._is_stored.set()
        self._trouble = ""

    def want(self, record: ControllerRecord) -> None:
        """Store this one, rather than those before it that are not stored yet."""
        self._wanted = record.to_bytes()
        self._is_stored.clear()
        self._news.set()

    async def until_stored(self) -> str:
        """Wait until all that was wanted is stored; returns why it is not, if it takes long."""
        try:
            await asyncio.wait_for(self._is_stored.wait(), _PATIENCE_S)
        except TimeoutError:
            return (
                f"not stored yet, and tried again: {self._trouble or self._keeper.place + ' does not answer'}"
            )
        return ""

    async def run(self) -> None:
        """Store until cancelled.

        Raises:
            SupersededError: another controller leads.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            data = self._wanted
            if data is None:
                continue
            try:
                await asyncio.to_thread(self._keeper.save, data)
            except SupersededError:
                raise
            except CheckpointError as error:
                if str(error) != self._trouble:
                    log.error("nothing changes until the record can be stored: %s", error)
                self._trouble = str(error)
                self._news.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            self._trouble = ""
            if data is self._wanted:
                self._is_stored.set()
            self._on_stored(ControllerRecord.from_bytes(data, self._keeper.place))
