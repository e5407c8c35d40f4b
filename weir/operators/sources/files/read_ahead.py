"""Runs a :class:`weir.Source` in a thread of its own beside the subtask, and gathers rows that it yields one by one."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator
from itertools import accumulate

import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext, Poll, SourceReader
from weir.author.source import Rows, Source
from weir.errors import GraphError
from weir.operators.sources.files.own_copies import own_copy
from weir.operators.sources.paced.source_progress import DecodedRows
from weir.operators.sources.paced.source_thread import Call, Entry, Kind, SourceThread
from weir.operators.sources.user.user_source import UserSourceReader
from weir.operators.sources.user.user_splits import OpenSplit
from weir.specs import UserSourceSpec

log = logging.getLogger(__name__)

#: Where rows come all the time, they are taken so often.
_TURN_US = 5_000
#: Nothing that ends a sleep may be missed for longer.
_SLEEP_US_MAX = 500_000
#: Rows that are read ahead: so many at first, and at most so many or of so many bytes.
_ROWS_FIRST, _ROWS_MAX, _BYTES_MAX = 64, 1_000, 4 << 20
#: How long the end of a subtask waits for the author's code to return.
_CLOSE_S = 1.0


class _Letters:
    """What the author's source gets as its dead letters."""

    def __init__(self, thread: SourceThread) -> None:
        self.reject = thread.reject


class ReadAheadReader(UserSourceReader):
    """A reader ahead; where nothing can wake the subtask (jobs in one process), nothing is read ahead."""

    def __init__(self, spec: UserSourceSpec, source: Source) -> None:
        super().__init__(spec, source)
        self._thread: SourceThread | None = None
        self._listing: Call[list[Json]] | None = None
        self._listed_now: list[Json] | None = None
        #: How large rows are is known.
        self._is_measured = False

    @override
    def open(self, context: OperatorContext) -> None:
        if context.wake is not None:
            self._thread = SourceThread(f"source {context.operator_name}", context.wake, _ROWS_FIRST)
        super().open(context)

    def _open_source(self, context: OperatorContext) -> None:
        if self._thread is None:
            super()._open_source(context)
            return
        if context.dead_letters is not None:
            context = dataclasses.replace(context, dead_letters=_Letters(self._thread))
        self._thread.call(lambda: self._source.open(context))

    def close(self) -> None:
        """Close the user's source; where its code does not return, it is left to itself."""
        if self._thread is None:
            super().close()
        elif not self._thread.close(self._close_all, _CLOSE_S):
            log.warning(
                "source %s: read does not return; it is left behind, and closed when it does",
                self._context.operator_name,
            )

    def _close_all(self) -> None:
        assert self._thread is not None
        for iterator in self._thread.iterators():
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        self._source.close()

    # --- splits ---

    def _splits_now(self) -> list[Json]:
        listed, self._listed_now = self._listed_now, None
        if listed is not None:
            return listed
        return super()._splits_now() if self._thread is None else self._thread.call(super()._splits_now)

    def _discover(self) -> None:
        """Discover splits as the base class does, without waiting for the list while rows come."""
        is_first = not self._next_discovery_us
        if self._thread is None or self._discovery is None or is_first:
            super()._discover()
            return
        if self._listing is None and self._clock.now_us() >= self._next_discovery_us:
            self._listing = self._thread.submit(super()._splits_now)
        if self._listing is not None and self._listing.is_done:
            self._listed_now, self._listing = self._listing.result(), None
            super()._discover()

    # --- rows ---

    def _pull(self, split: OpenSplit, now_us: int) -> pa.RecordBatch | None:
        thread = self._thread
        if thread is None:
            return super()._pull(split, now_us)
        if split.ahead is None:
            place, begun = own_copy(split.split), own_copy(split.position)
            split.ahead = thread.add(lambda: iter(self._source.read(place, begun)))
        self._letters_bytes = self._letters_position()
        while True:
            # While some are taken as many more are read.
            rows_max = thread.rows_max if self._is_measured else 1
            taken = thread.take(split.ahead, min(self.rows_wanted, rows_max))
            if not taken:
                self._note_nothing(split)
                return None
            first = taken[0]
            if first.kind is Kind.LETTER:
                if self._context.dead_letters is not None:
                    self._context.dead_letters.reject(*first.value)
                continue
            if first.kind is Kind.ROWS:
                return self._take_in_all(split, taken)
            if first.kind is Kind.ERROR:
                raise first.value
            if first.kind is Kind.OTHER:
                return self._take_item(split, first.value, now_us)
            self._ended(split)
            return None

    def _take_in_all(self, split: OpenSplit, taken: list[Entry]) -> pa.RecordBatch | None:
        split.wait_us = split.wake_us = 0
        rows = [row for entry in taken for row in entry.value[0]] if len(taken) > 1 else taken[0].value[0]
        positions = [entry.value[1] for entry in taken]
        ends = list(accumulate(entry.rows for entry in taken))
        batch = self._take_in(split, rows, positions[-1], ends, positions)
        if batch is not None and self._thread is not None:
            row_bytes = max(batch.nbytes // batch.num_rows, 1)
            self._thread.rows_max = max(1, min(_ROWS_MAX, _BYTES_MAX // row_bytes))
            self._is_measured = True
        return batch

    def _take(self, rows: DecodedRows, count: int, next_poll_us: int) -> Poll:
        polled = super()._take(rows, count, next_poll_us)
        if self._thread is None or self._progress.schedule is not None or self._decoded_rows is not None:
            return polled
        # More comes while this is worked on: few rows at a time cost as much as many. A full queue wakes.
        is_full = count >= self._thread.rows_max
        return (
            polled if is_full else dataclasses.replace(polled, next_poll_us=self._clock.now_us() + _TURN_US)
        )

    def _nothing_now(self) -> Poll:
        if self._thread is None or (not self._open_splits and self._discovery is None):
            return super()._nothing_now()
        self._note_idle_splits()
        if not self._thread.sleeps() or (self._listing is not None and self._listing.is_done):
            return self._poll_of(None, 0, 0)
        now_us = self._clock.now_us()
        times_us = [split.wake_us for split in self._open_splits if split.wake_us > now_us]
        if self._discovery is not None and self._listing is None:
            times_us.append(self._next_discovery_us)
        next_us = min([now_us + _SLEEP_US_MAX, *times_us])
        return self._poll_of(None, 0, next_us if next_us > now_us else 0)


class _FunctionSource(Source):
    """A generator function ``read(position)`` as a source with one split."""

    def __init__(self, function: Callable[[Json], Iterator[tuple[Rows, Json] | None]]) -> None:
        self._function = function

    def read(self, split: Json, position: Json) -> Iterator[tuple[Rows, Json] | None]:
        return self._function(position)


def create_user_reader(spec: UserSourceSpec) -> SourceReader:
    """The reader of a user's source; for ``weir.operators.registry``.

    Raises:
        GraphError: the factory made something else, or a setting has no meaning for it.
    """
    if inspect.isgeneratorfunction(spec.factory):
        return ReadAheadReader(spec, _FunctionSource(spec.factory))
    if inspect.isasyncgenfunction(spec.factory) or inspect.iscoroutinefunction(spec.factory):
        raise GraphError("its function is async; read(position) is a plain generator, which may wait")
    made = spec.factory()
    if isinstance(made, Source):
        return ReadAheadReader(spec, made)
    if isinstance(made, SourceReader):
        return made
    raise GraphError(
        f"a UserSource's factory returned {type(made).__name__}, not a weir.Source (or a weir.SourceReader); "
        "give it the class, or a function that makes one"
    )
