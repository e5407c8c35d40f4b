"""Reads one partition of the log in a thread, since that waits for the broker; keeps records until they are taken."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from weir import threads
from weir.errors import ConnectionLostError, InputError, WeirError
from weir.log.reader import Reader
from weir.operators.log.records import Records, joined

log = logging.getLogger(__name__)

#: How often it is told that no broker leads.
TOLD_EVERY_S = 10.0
#: Bytes of records that wait to be taken.
_WAITING_BYTES_MAX = 8 << 20


class PartitionThread:
    """Begins to read at once. One thread calls the methods.

    Args:
        reader: follows the partition.
        name: of the source and the partition, for messages.
        wake: called when records have come and none waited, and when reading has ended.
    """

    def __init__(self, reader: Reader, name: str, wake: Callable[[], None]) -> None:
        self._reader, self._name, self._wake = reader, name, wake
        self._room = threading.Condition()
        self._waiting: deque[Records] = deque()
        self._bytes = 0
        self._is_closed = False
        #: What reading has ended with.
        self.failure: WeirError | None = None
        threads.start(self._run, f"log reader {name}")

    @property
    def has_records(self) -> bool:
        """Return whether records wait."""
        return bool(self._waiting)

    @property
    def position(self) -> int:
        """Offset before which all records wait, or were taken."""
        return self._reader.position

    def take(self, count_max: int) -> Records | None:
        """The next records, at most so many; None: none wait."""
        taken: list[Records] = []
        with self._room:
            while self._waiting and count_max > 0:
                part = self._waiting.popleft()
                if len(part) > count_max:
                    self._waiting.appendleft(part.part(count_max, len(part)))
                    part = part.part(0, count_max)
                taken.append(part)
                count_max -= len(part)
                self._bytes -= len(part.data)
            self._room.notify()
        return joined(taken) if taken else None

    def close(self) -> None:
        """Let the thread end; does not wait for it."""
        with self._room:
            self._is_closed = True
            self._room.notify()
        self._reader.close()

    def _run(self) -> None:
        next_offset = self._reader.position
        while not self._is_closed:
            try:
                for batch in self._reader.batches():
                    records = Records.of(batch, next_offset)
                    next_offset = batch.first_offset + batch.count
                    self._put(records)
            except ConnectionLostError as error:
                if not self._is_closed:
                    log.warning("%s: the log is awaited: %s", self._name, error)
            except WeirError as error:
                self._end(error)
                return
            except Exception as error:
                # Such as bytes that cannot be decompressed.
                self._end(InputError(f"{self._name}: {type(error).__name__}: {error}"))
                return

    def _put(self, records: Records) -> None:
        with self._room:
            while self._bytes >= _WAITING_BYTES_MAX and not self._is_closed:
                self._room.wait()
            wakes = not self._waiting
            self._waiting.append(records)
            self._bytes += len(records.data)
        if wakes:
            self._wake()

    def _end(self, error: WeirError) -> None:
        if not self._is_closed:
            self.failure = error
            self._wake()
