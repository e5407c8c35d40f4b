"""What transactional sinks share whose commits take long: a thread for them, and logs of their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import NEVER_US, LateDelivery, TimedOperator
from weir.operators.sinks.commits import Commits
from weir.operators.sinks.place_errors import unwritable
from weir.operators.sinks.places import Place
from weir.operators.sinks.row_logs import LOG_NAME
from weir.operators.sinks.two_phase import TwoPhaseSink


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
