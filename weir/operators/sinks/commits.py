"""Commits of complete checkpoints in a thread beside the subtask's: a broker that dies is awaited for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait


class Commits:
    """Make one call after the other, in the order of the checkpoints; a failure is the last of them.

    The subtask's thread calls the methods.

    Args:
        commit: makes everything visible up to a checkpoint; called with the latest one that is complete.
    """

    def __init__(self, commit: Callable[[int], None]) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._complete_id = 0
        self._under_way: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a commit is under way."""
        with self._lock:
            return self._under_way is not None and not self._under_way.done()

    @property
    def has_failed(self) -> bool:
        """Return whether :meth:`check` raises."""
        ended = self._under_way
        return ended is not None and ended.done() and ended.exception() is not None

    def begin(self, checkpoint_id: int) -> None:
        """A checkpoint is complete; returns at once.

        Raises:
            Exception: what an earlier commit has failed with.
        """
        self.check()
        with self._lock:
            self._complete_id = max(self._complete_id, checkpoint_id)
            if self._under_way is not None and not self._under_way.done():
                return
            self._under_way = Future()
            # Not joined: it may wait for calls that never return, and ends with the process.
            threading.Thread(target=self._run, args=(self._under_way,), name="commit", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when nothing is under way, or after so long."""
        with self._lock:
            under_way = self._under_way
        if under_way is not None:
            wait([under_way], timeout_s)

    def check(self) -> None:
        """Raise what a commit has failed with: the job has to begin again."""
        ended = self._under_way
        if ended is not None and ended.done():
            ended.result()

    def forget(self) -> None:
        """Whoever called :meth:`wait` has committed what was left: no failure counts any more."""
        with self._lock:
            self._under_way = None

    def _run(self, under_way: Future[None]) -> None:
        """The thread: until nothing is left to commit, or it fails."""
        try:
            while True:
                with self._lock:
                    complete_id = self._complete_id
                self._commit(complete_id)
                with self._lock:
                    if self._complete_id == complete_id:
                        under_way.set_result(None)
                        return
        except BaseException as error:
            under_way.set_exception(error)
