"""What transactional sinks share whose commits take long: a thread for them, and logs of their rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import NEVER_US, LateDelivery, TimedOperator
from weir.operators.sinks.place_errors import unwritable
from weir.operators.sinks.places import Place
from weir.operators.sinks.row_logs import LOG_NAME
from weir.operators.sinks.two_phase import TwoPhaseSink


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


class LateCommitSink(TwoPhaseSink, TimedOperator, LateDelivery):
    """Base of sinks that commit in a thread of its own. What a commit fails with fails the subtask."""

    #: Where the row logs are; None: the job makes no checkpoints.
    _place: Place | None = None

    def __init__(self) -> None:
        self._commits = Commits(super().commit)

    @override
    def commit(self, checkpoint_id: int) -> None:
        if checkpoint_id == 0:
            # The last one is not late. What failed is tried again.
            self._commits.wait()
            super().commit(0)
            self._commits.forget()
        elif self._prepared:
            self._commits.begin(checkpoint_id)

    @override
    def await_commit(self) -> None:
        self._commits.wait()
        self._commits.check()

    @override
    def due_us(self) -> int:
        return 0 if self._commits.has_failed else NEVER_US

    @override
    def on_time(self) -> Iterable[pa.RecordBatch]:
        self._commits.check()
        return ()

    @override
    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        place = self._place
        if place is None:
            return
        with self._explained():
            for name in place.hidden():
                match = LOG_NAME.fullmatch(name)
                if match is not None and int(match[2]) < generation and name not in listed:
                    place.remove(name)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Tell what a row log cannot be written with."""
        try:
            yield
        except OSError as error:
            assert self._place is not None
            raise unwritable(error, self._place.location) from error
