"""The thread in which an author's source runs: it reads ahead, so that rows that are yielded one by one are gathered.

What waits for the next row is this thread. The subtask takes what is there, and sleeps until there is more.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from weir import threads
from weir.operators.sources.files.own_copies import own_copy

Result = TypeVar("Result")


class Kind(Enum):
    """What came of a split."""

    #: ``(rows, position)`` with a list of rows, which can be joined with others.
    ROWS = "rows"
    #: Anything else that was yielded.
    OTHER = "other"
    #: Arguments of ``DeadLetters.reject``.
    LETTER = "letter"
    END = "end"
    #: What was raised.
    ERROR = "error"


class Entry(NamedTuple):
    """An event of a split, and the number of its rows."""

    kind: Kind
    value: Any = None
    rows: int = 0


@dataclass(eq=False)
class SplitAhead:
    """A split that is read ahead; used by :class:`SourceThread`, under its lock."""

    begin: Callable[[], Iterator[Any]]
    iterator: Iterator[Any] | None = None
    entries: deque[Entry] = field(default_factory=deque)
    rows: int = 0
    #: The thread reads on; if not, it is asked to when its entries have been taken.
    is_wanted: bool = False


@dataclass(eq=False)
class Call(Generic[Result]):
    """Work for the thread."""

    work: Callable[[], Result]
    is_done: bool = False
    _result: list[Result] = field(default_factory=list)
    _error: BaseException | None = None

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._result.append(self.work())
        except BaseException as error:
            self._error = error

    def result(self) -> Result:
        """What came of it, once it is done; raises what the work has raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class SourceThread:
    """Used by one subtask's thread; :meth:`reject` is for the author's code, which runs in this one."""

    def __init__(self, name: str, wake: Callable[[], None], rows_max: int) -> None:
        """Start it.

        Args:
            name: of the thread.
            wake: ends a sleep of the subtask; called by any thread.
            rows_max: rows of a split that may be there and not taken; what is yielded at a time is never divided.
        """
        self.rows_max = rows_max
        self._wake = wake
        self._condition = threads.condition()
        self._calls: deque[Call[Any]] = deque()
        self._splits: list[SplitAhead] = []
        self._current: SplitAhead | None = None
        #: The subtask has found nothing, and is to be woken when there is something.
        self._sleeps = False
        self._ends = False
        threads.start(self._run, name)

    # --- called by the subtask ---

    def submit(self, work: Callable[[], Result]) -> Call[Result]:
        """Let the thread do something between two rows; it wakes the subtask when that is done."""
        call = Call(work)
        with self._condition:
            self._calls.append(call)
            self._condition.notify_all()
        return call

    def call(self, work: Callable[[], Result]) -> Result:
        """Do work in the thread, as :meth:`submit` asks for it, and wait."""
        call = self.submit(work)
        with self._condition:
            self._condition.wait_for(lambda: call.is_done)
        return call.result()

    def add(self, begin: Callable[[], Iterator[Any]]) -> SplitAhead:
        """A split, which ``begin`` reads; called in the thread."""
        split = SplitAhead(begin)
        with self._condition:
            self._splits.append(split)
        return split

    def take(self, split: SplitAhead, rows_max: int) -> list[Entry]:
        """What came of a split: entries with rows, or one of another kind; nothing if there is nothing yet.

        All rows up to so many; more if more were yielded at a time. Letters come alone, too.
        """
        taken: list[Entry] = []
        with self._condition:
            entries = split.entries
            rows = 0
            while entries and (
                not taken or (entries[0].kind is Kind.ROWS and rows + entries[0].rows <= rows_max)
            ):
                taken.append(entries.popleft())
                rows += taken[-1].rows
                if taken[-1].kind is not Kind.ROWS:
                    break
            split.rows -= rows
            last = entries[-1] if entries else taken[-1] if taken else None
            if not split.is_wanted and (last is None or _goes_on(last)) and split.rows < self.rows_max:
                split.is_wanted = True
                self._condition.notify_all()
        if taken and taken[-1].kind in (Kind.END, Kind.ERROR):
            with self._condition:
                self._splits.remove(split)
        return taken

    def sleeps(self) -> bool:
        """The subtask is going to sleep until something comes; False: something is there."""
        with self._condition:
            self._sleeps = not any(split.entries for split in self._splits)
            return self._sleeps

    def close(self, work: Callable[[], None], wait_s: float) -> bool:
        """Let the thread do this as its last work; False: it is in the author's code since, and left to itself."""
        call = self.submit(work)
        with self._condition:
            self._ends = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: call.is_done, wait_s)
            if not call.is_done:
                return False
        call.result()
        return True

    # --- called in the thread ---

    def reject(
        self, source: str, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        """Reject a record, as ``DeadLetters.reject``: the subtask is told between the rows before and after it."""
        split = self._current
        if split is None:
            return
        with self._condition:
            split.entries.append(Entry(Kind.LETTER, (source, position, reason, raw, length_bytes)))

    def iterators(self) -> Sequence[Iterator[Any]]:
        """Return the iterators of the splits that have not ended."""
        return [split.iterator for split in self._splits if split.iterator is not None]

    def _run(self) -> None:
        threads.works_on_rows()
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                call = self._calls.popleft() if self._calls else None
                split = None if call is not None else self._next_split()
                if call is None and split is None:
                    return
            if call is not None:
                call.run()
                self._tell(call, None)
            elif split is not None:
                self._current = split
                entry = _read(split)
                self._current = None
                self._tell(entry, split)

    def _has_work(self) -> bool:
        return bool(self._calls) or self._ends or any(split.is_wanted for split in self._splits)

    def _next_split(self) -> SplitAhead | None:
        """The next one in turn that is to be read."""
        if self._ends:
            return None
        for number, split in enumerate(self._splits):
            if split.is_wanted:
                self._splits.append(self._splits.pop(number))
                return split
        return None

    def _tell(self, done: Call[Any] | Entry, split: SplitAhead | None) -> None:
        """Something is there; the subtask is woken if it sleeps for that, or has much to take."""
        with self._condition:
            is_full = False
            if isinstance(done, Call):
                done.is_done = True
                self._condition.notify_all()
            elif split is not None:
                split.entries.append(done)
                split.rows += done.rows
                is_full = split.rows >= self.rows_max
                split.is_wanted = _goes_on(done) and not is_full
            wakes, self._sleeps = self._sleeps or is_full, False
        if wakes:
            self._wake()


def _goes_on(entry: Entry) -> bool:
    """Return whether more may be asked for behind it: not after an end, nor where there is nothing now."""
    return entry.kind in (Kind.ROWS, Kind.LETTER) or (entry.kind is Kind.OTHER and entry.value is not None)


def _read(split: SplitAhead) -> Entry:
    try:
        if split.iterator is None:
            split.iterator = split.begin()
        item = next(split.iterator)
    except StopIteration:
        return Entry(Kind.END)
    except BaseException as error:
        return Entry(Kind.ERROR, error)
    if isinstance(item, tuple) and len(item) == 2:
        with contextlib.suppress(TypeError):
            kind = Kind.ROWS if isinstance(item[0], list) else Kind.OTHER
            # The author's code goes on before the subtask takes them, and may fill the same objects again.
            return Entry(kind, (own_copy(item[0]), own_copy(item[1])), len(item[0]))
    return Entry(Kind.OTHER, item)
