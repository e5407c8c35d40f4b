"""How many records wait at the end of each partition, for those who watch a job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from weir import threads
from weir.clock import Clock

#: Brokers are asked where partitions end only so often.
_ASK_S = 5.0
log = logging.getLogger(__name__)


class SplitLags:
    """Compares how far partitions are read with where they end. One thread at a time calls it; it never waits.

    Args:
        find_ends: asks the brokers; returns the offset after the last record of each partition, by its place. A thread
            of its own calls it, and what it raises is no news to anybody: reading tells it.
        clock: for how old the answer is.
    """

    def __init__(self, find_ends: Callable[[], Mapping[str, int]], clock: Clock) -> None:
        self._find_ends, self._clock = find_ends, clock
        self._pool = threads.pool(1, "source-ends")
        self._asked: Future[Mapping[str, int]] | None = None
        self._ask_at_s = clock.monotonic_s()
        self._ends: Mapping[str, int] = {}
        self._is_closed = False

    def of(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Records at and after these offsets, as of the last answer, up to some seconds ago.

        Args:
            positions: by place; what no broker has told of yet is left out.
        """
        if self._is_closed:
            return {}
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if (error := asked.exception()) is None:
                self._ends = asked.result()
            else:
                log.debug("ends of partitions are not known: %s", error)
        now_s = self._clock.monotonic_s()
        if self._asked is None and now_s >= self._ask_at_s:
            self._ask_at_s = now_s + _ASK_S
            # Closed just now, by the thread that reads, it takes no work.
            with contextlib.suppress(RuntimeError):
                self._asked = self._pool.submit(self._find_ends)
        ends = self._ends
        return {place: max(ends[place] - offset, 0) for place, offset in positions.items() if place in ends}

    def close(self) -> None:
        """Ask no more; does not wait for an answer. Any thread may call it."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
