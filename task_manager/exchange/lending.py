"""A link's thread lends its connection to the only subtask that reads from it, which then needs nobody to wake it.

A thread that reads a message of ten rows and hands it over costs about as much as the rows do. A consumer that knows
when rows come (``Pace.round_s``) reads them itself, with what it gets from subtasks of its own process. Meanwhile the
link's thread sleeps. It goes on as soon as the consumer waits otherwise, or has not looked for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from task_manager.exchange.inbox import Inbox
from task_manager.exchange.sockets import FrameReader
from weir.errors import HandshakeError

#: A consumer that has not looked for so long has something else to do; nobody else waits for what comes.
_LENT_S = 0.2


class Lending:
    """The reader of one link. The link's thread calls :meth:`lend`, a consumer's thread all else."""

    def __init__(self, reader: FrameReader, take: Callable[[bytes, pa.Buffer | None], None]) -> None:
        """``take`` is called with each frame, by the thread that reads it."""
        self._reader = reader
        self._take = take
        #: Guards the reader while it is lent, and all that follows; wakes the link's thread.
        self._condition = threading.Condition(threading.Lock())
        self._is_lent, self._was_used = False, False
        #: What ended the reading of the consumer; told by the link's thread.
        self._error: Exception | None = None
        #: How many channels lead to the consumer.
        self.channels = 0

    def lend(self, inbox: Inbox, channels: int) -> None:
        """Let the consumer of an inbox read until it gives the reader back, or forgets it; called after whole frames.

        Raises:
            OSError: the connection is broken.
            HandshakeError: what came is not a frame.
        """
        with self._condition:
            self._is_lent, self.channels = True, channels
            if inbox.lend(self):
                self._was_used = True
                while self._is_lent and self._was_used:
                    self._was_used = False
                    self._condition.wait(_LENT_S)
            self._is_lent = False
            inbox.take_back(self)
        if self._error is not None:
            raise self._error

    def read(self, wait_s: float) -> None:
        """Take the frames that are here, or come in so many seconds; nothing if it is not lent any more."""
        with self._condition:
            if not self._is_lent:
                return
            self._was_used = True
            try:
                if self._reader.read_some(wait_s):
                    while (frame := self._reader.take_whole()) is not None:
                        self._take(*frame)
            except (OSError, HandshakeError) as error:
                self._error = error
            # The rest of a large frame may take long.
            if self._error is not None or self._reader.has_ended or not self._reader.is_empty:
                self._end()

    def give_back(self) -> None:
        """Let the link's thread read again."""
        with self._condition:
            self._end()

    def _end(self) -> None:
        self._is_lent = False
        self._condition.notify()
