"""What a producer gives for a record: the promise of an answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from weir.clock import Clock
from weir.errors import WeirError


class Batch:
    """Records that are sent together; all of them get one answer."""

    __slots__ = (
        "_lock",
        "_waiting",
        "body",
        "buffers",
        "deadline_ms",
        "error",
        "ids",
        "is_done",
        "offset",
        "sequence",
        "size_bytes",
    )

    def __init__(self, deadline_ms: int) -> None:
        """``deadline_ms``: on the producer's clock; of the first record."""
        self.ids: Any = []
        self.buffers: Any = []
        #: Made already, by ``send_many``.
        self.body: Any = None
        #: The only place in the producer's order that it may have; None: the next one.
        self.sequence: int | None = None
        self.size_bytes = 0
        self.deadline_ms = deadline_ms
        self.is_done = False
        self.offset = -1
        self.error: WeirError | None = None
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []

    def finish(self, offset: int, error: WeirError | None = None) -> None:
        """Wake all who wait."""
        with self._lock:
            self.offset, self.error, self.is_done = offset, error, True
            waiting, self._waiting = self._waiting, []
        # Nobody sends them again.
        self.ids = self.buffers = self.body = None
        for each in waiting:
            each.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the answer; False: it has not come in time."""
        if self.is_done:
            return True
        bell = threading.Lock()
        bell.acquire()
        with self._lock:
            if self.is_done:
                return True
            self._waiting.append(bell)
        if bell.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return True
        with self._lock:
            # Else whoever asks again and again would leave one each time.
            if bell in self._waiting:
                self._waiting.remove(bell)
            return self.is_done


class Ticket:
    """The answer to one record, or to all records of one ``send_many``, once it comes."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> int:
        """Wait until the record is as safe as the producer's ``acks`` says; returns its offset.

        With ``acks="none"`` it is -1: nobody says where the record is.

        Args:
            timeout_s: how long to wait; None: until the producer's ``delivery_timeout_s`` is over.

        Raises:
            LogRejectedError: it was surely not written.
            LogUnknownError: nobody said in time whether it was written.
            FencedError: another process has taken the producer's id over.
            TimeoutError: the answer may still come.
        """
        batch = self._batch
        if not batch.is_done and not batch.wait(timeout_s):
            raise TimeoutError(f"no answer from the log within {timeout_s} s; it may still come")
        if batch.error is not None:
            raise batch.error
        return batch.offset + self._index if batch.offset >= 0 else -1


class ManyTicket(Ticket):
    """The answer to records that went in several batches."""

    __slots__ = ("_batches", "_clock")

    def __init__(self, batches: Sequence[Batch], clock: Clock) -> None:
        super().__init__(batches[0], 0)
        self._batches = batches
        self._clock = clock

    @property
    def is_done(self) -> bool:
        """Whether all answers are there."""
        return all(batch.is_done for batch in self._batches)

    def result(self, timeout_s: float | None = None) -> int:
        """Wait for all; returns the offset of the first record. Raises as :meth:`Ticket.result`."""
        until_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        for batch in self._batches:
            # Of all together.
            left_s = None if until_s is None else max(until_s - self._clock.monotonic_s(), 0.0)
            if not batch.is_done and not batch.wait(left_s):
                raise TimeoutError(f"no answer from the log within {timeout_s} s; it may still come")
            if batch.error is not None:
                raise batch.error
        return super().result(timeout_s)
