"""Batches between the threads that send records and the one that sends batches: bounded by bytes."""

from __future__ import annotations

import threading
from collections import deque

from weir.clock import Clock
from weir.errors import WeirError
from weir.log.errors import LogRejectedError
from weir.log.tickets import Batch

#: What a batch may hold, if compression makes it as small as it is to be.
_RAW_BYTES_MAX = 4 << 20


class BatchQueue:
    """Holds batches until they have an answer. ``lock`` is that of all of it."""

    def __init__(self, clock: Clock, linger_s: float, buffer_bytes: int, batch_bytes: int = 1 << 20) -> None:
        """Begin empty.

        Args:
            clock: source of times.
            linger_s: how long a record may wait for others.
            buffer_bytes: of records without an answer; more wait.
            batch_bytes: of a batch as it is sent.
        """
        #: A batch with so many bytes of records goes at once; more of them where they are known to compress well.
        self.batch_bytes = self._batch_bytes = batch_bytes
        self._clock = clock
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self.lock = threading.RLock()
        #: Waited on by whoever sends batches.
        self._work = threading.Condition(self.lock)
        #: Waited on by whoever sends records, or flushes.
        self._room = threading.Condition(self.lock)
        #: Records are put into it; None: the next one begins one.
        self.open: Batch | None = None
        self._open_since_s = 0.0
        self._ready: deque[Batch] = deque()
        self._bytes = 0
        self._unfinished = 0
        self._flushes = 0
        self._wakes = 0
        self.is_closed = False
        #: Why nothing can be sent any more.
        self.failure: WeirError | None = None

    def packed(self, raw_bytes: int, sent_bytes: int) -> None:
        """Note how small the latest batch has become; a small one is as much work for brokers as a large one."""
        likely_bytes = self._batch_bytes * raw_bytes // max(sent_bytes, 1)
        self.batch_bytes = max(self._batch_bytes, min(likely_bytes, _RAW_BYTES_MAX))

    # -- records; the caller of the first two has the lock

    def begin(self, deadline_ms: int) -> Batch:
        """Begin a batch; waits for room. Raises what ``send`` raises."""
        self._await_room()
        if self.open is not None:
            # Another thread has begun one meanwhile.
            return self.open
        self.open = Batch(deadline_ms)
        self._open_since_s = self._clock.monotonic_s()
        self._unfinished += 1
        self._work.notify()
        return self.open

    def cut(self) -> None:
        """Let the open batch go."""
        if self.open is not None:
            self._bytes += self.open.size_bytes
            self._ready.append(self.open)
            self.open = None
            self._work.notify()

    def put(self, batch: Batch) -> None:
        """Let a batch go that is whole, behind the open one; waits for room. Raises what ``send`` raises."""
        with self.lock:
            self._await_room()
            self.cut()
            self._unfinished += 1
            self._bytes += batch.size_bytes
            self._ready.append(batch)
            self._work.notify()

    def _await_room(self) -> None:
        while self._bytes >= self._buffer_bytes and not self.is_closed and self.failure is None:
            self._room.wait()
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise LogRejectedError("the producer is closed; make another one")

    # -- batches

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch once it may go; None: there is none yet."""
        with self.lock:
            if not self._ready:
                self._take_open(timeout_s)
            return self._ready.popleft() if self._ready else None

    def _take_open(self, timeout_s: float) -> None:
        until_s, wakes = self._clock.monotonic_s() + timeout_s, self._wakes
        while not self._ready and wakes == self._wakes:
            now_s = self._clock.monotonic_s()
            if self.open is not None:
                left_s = self._open_since_s + self._linger_s - now_s
                if left_s <= 0 or self._flushes or self.is_closed:
                    self.cut()
                    return
            else:
                left_s = until_s - now_s
            if now_s >= until_s:
                return
            self._work.wait(min(left_s, until_s - now_s))

    def put_back(self, batch: Batch) -> None:
        """Return a batch that :meth:`take` gave; it is the next one again."""
        with self.lock:
            self._ready.appendleft(batch)

    def wake(self) -> None:
        """Let :meth:`take` return, since there may be something else to do."""
        with self.lock:
            self._wakes += 1
            self._work.notify()

    def finished(self, batch: Batch, offset: int, error: WeirError | None = None) -> None:
        """Give a batch its answer, and its room to others."""
        with self.lock:
            self._bytes -= batch.size_bytes
            self._unfinished -= 1
            self._room.notify_all()
        batch.finish(offset, error)

    def fail(self, error: WeirError) -> None:
        """Give every batch that was not sent this answer, and every later record."""
        with self.lock:
            self.failure = error
            self.cut()
            batches = list(self._ready)
            self._ready.clear()
            self._room.notify_all()
        for batch in batches:
            self.finished(batch, -1, error)

    @property
    def is_empty(self) -> bool:
        """Return whether everything has an answer."""
        return self._unfinished == 0

    def expired(self, now_ms: int) -> list[Batch]:
        """Take batches out that were never sent and have had their time; the open one, too, if nobody leads."""
        with self.lock:
            self._cut_late(now_ms)
            late = []
            while self._ready and now_ms >= self._ready[0].deadline_ms:
                late.append(self._ready.popleft())
            return late

    def has_expired(self, now_ms: int) -> bool:
        """Return whether :meth:`expired` would take a batch out."""
        with self.lock:
            self._cut_late(now_ms)
            return bool(self._ready) and now_ms >= self._ready[0].deadline_ms

    def _cut_late(self, now_ms: int) -> None:
        if self.open is not None and now_ms >= self.open.deadline_ms:
            self.cut()

    def flush(self, timeout_s: float | None) -> None:
        """Send what waits, and wait until everything has an answer.

        Raises:
            TimeoutError: it has none in time.
        """
        with self.lock:
            self._flushes += 1
            self._work.notify()
            try:
                if not self._room.wait_for(lambda: self._unfinished == 0, timeout_s):
                    raise TimeoutError(f"{self._unfinished} batches have no answer after {timeout_s} s")
            finally:
                self._flushes -= 1

    def close(self) -> None:
        """Take no more records, and wait until everything has an answer."""
        with self.lock:
            self.is_closed = True
            self._work.notify()
            self._room.notify_all()
            self._room.wait_for(lambda: self._unfinished == 0)
