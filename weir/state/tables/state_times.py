"""The times by which the states of one operator expire.

Two watermarks count. By the highest one that the operator or a former owner of its key groups has seen, what has
expired stays expired where no row has its own time. Other rows and timers may be behind that, if they are of another
subtask's key groups or waited in a checkpoint: what is deleted goes by :attr:`StateTimes.passed_ms`, which none of them
is behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from weir.clock import Clock, SystemClock
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.state.tables.stamps import UNDATED
from weir.state.ttl import TtlTime


class TimedState(Protocol):
    """What the times of an operator need of each of its states: ``weir.state.tables.expiry.Expiry``."""

    @property
    def oldest_ms(self) -> int:
        """Entries of earlier times have expired."""

    def set_now(self, now_ms: int, stamp: int) -> None:
        """A row of this time is processed; what it writes is of the time ``stamp``."""

    def forget_rows(self) -> None:
        """Go by the time of the watermark again."""


class StateTimes:
    """The times of one operator in one subtask; called by its thread."""

    def __init__(self) -> None:
        """The machine's clock, and no watermark yet."""
        self._clock: Clock = SystemClock()
        #: The highest watermark that the operator, or a former owner of its key groups, has seen.
        self.watermark_ms = WATERMARK_MIN_MS
        #: The watermark that no row or timer that is still to come is behind.
        self.passed_ms = WATERMARK_MIN_MS
        #: What fires because of this watermark still finds what is about to expire; what it writes is of this time.
        self.arriving_ms = WATERMARK_MIN_MS
        #: By state name: when it first knew the time.
        self._since_ms: dict[str, int] = {}
        #: By state name: entries of earlier times had expired before the job was changed.
        self._first_ms: Mapping[str, int] = {}
        #: By state name.
        self._of_states: dict[str, TimedState] = {}
        #: States that go by event time.
        self._event_states: set[str] = set()
        self._expiries: list[TimedState] = []
        #: Rows, or timers, are processed, each at its own time.
        self.is_in_rows = False
        #: The lowest time of these; what expires after it may be there for some of them.
        self.lowest_ms = WATERMARK_MIN_MS
        #: Of rows that are processed together: hashes of their keys, ascending, and the time of each; uint64 and int64.
        self._hashes = np.empty(0, dtype=np.uint64)
        self._times_ms = np.empty(0, dtype=np.int64)
        #: The time of what is written, where that is another.
        self._writes_ms = self._times_ms
        #: All of these, once they were asked for one by one.
        self._by_hash: dict[int, tuple[int, int]] = {}

    def begin(
        self, clock: Clock, restored: Iterable[Mapping[str, Any]], first_ms: Mapping[str, int] | None = None
    ) -> None:
        """Take the clock, and go on where checkpoints end, before states are opened.

        Args:
            clock: for processing time.
            restored: results of :meth:`to_json`, of all subtasks then.
            first_ms: by name of a state that had a TTL before the job was changed: what is older had expired.
        """
        self._clock = clock
        self._first_ms = first_ms or {}
        passed = []
        for kept in restored:
            watermark_ms = kept["watermark_ms"]
            passed.append(kept.get("passed_ms", watermark_ms))
            if watermark_ms is not None:
                self.note_watermark(watermark_ms)
            for name, since_ms in kept["since_ms"].items():
                self.note_since(name, since_ms)
        self.passed_ms = WATERMARK_MIN_MS if None in passed else min(passed, default=WATERMARK_MIN_MS)

    def to_json(self) -> dict[str, Any]:
        """Return what the snapshot of the operator keeps."""
        known, passed = (None if at == WATERMARK_MIN_MS else at for at in (self.watermark_ms, self.passed_ms))
        first_ms = {name: expiry.oldest_ms for name, expiry in sorted(self._of_states.items())}
        return {
            "watermark_ms": known,
            **({} if passed == known else {"passed_ms": passed}),
            "since_ms": dict(sorted(self._since_ms.items())),
            "first_ms": {name: time_ms for name, time_ms in first_ms.items() if time_ms != UNDATED},
        }

    def add(self, name: str, time: TtlTime, expiry: TimedState) -> None:
        """A state with a TTL is opened."""
        self._of_states[name] = expiry
        if time == "event":
            self._event_states.add(name)
            self._expiries.append(expiry)
        now_ms = self.now_ms(time)
        if now_ms is not None and name not in self._since_ms:
            self._since_ms[name] = now_ms

    def announce(self, watermark_ms: int) -> None:
        """The watermark is about to rise: timers fire first."""
        if self.arriving_ms < watermark_ms < WATERMARK_MAX_MS:
            self.arriving_ms = watermark_ms

    def advance(self, watermark_ms: int) -> None:
        """The watermark has risen, and what was due has fired; that of the end of all input is no time."""
        if self.passed_ms < watermark_ms < WATERMARK_MAX_MS:
            self.passed_ms = watermark_ms
        self.note_watermark(watermark_ms)

    def note_watermark(self, watermark_ms: int) -> None:
        """Take note of a watermark that this subtask or another one has seen."""
        if self.watermark_ms < watermark_ms < WATERMARK_MAX_MS:
            self.watermark_ms = watermark_ms
            for name in self._event_states - self._since_ms.keys():
                self._since_ms[name] = watermark_ms

    # --- each row at its own time ---

    @property
    def go_by_rows(self) -> bool:
        """Whether a state minds the times of rows."""
        return bool(self._expiries)

    def enter_rows(self, lowest_ms: int) -> None:
        """Rows, or timers, are about to be processed one after the other, the earliest of them at this time."""
        self.is_in_rows, self.lowest_ms = True, lowest_ms

    def enter_keys(
        self, hashes: np.ndarray, times_ms: np.ndarray, writes_ms: np.ndarray | None = None
    ) -> None:
        """Rows, or timers, of distinct keys are about to be processed together.

        Args:
            hashes: of their keys; uint64.
            times_ms: the time of each; int64.
            writes_ms: the time of what each writes, if that is another; int64.
        """
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._times_ms = hashes[order], times_ms[order]
        self._writes_ms = self._times_ms if writes_ms is None else writes_ms[order]
        self._by_hash = {}
        self.enter_rows(int(times_ms.min()))

    def move(self, now_ms: int, write_ms: int | None = None) -> None:
        """The next of them has this time; what it writes is of ``write_ms``, if that is another."""
        for expiry in self._expiries:
            expiry.set_now(now_ms, now_ms if write_ms is None else write_ms)

    def move_to(self, key_hash: int) -> None:
        """As :meth:`move`, to the time of a key's rows; see :meth:`enter_keys`."""
        if not self.goes_by_keys:
            return
        if not self._by_hash:
            times = zip(self._times_ms.tolist(), self._writes_ms.tolist(), strict=True)
            self._by_hash = dict(zip(self._hashes.tolist(), times, strict=True))
        self.move(*self._by_hash.get(key_hash, (self.watermark_ms, self.watermark_ms)))

    @property
    def goes_by_keys(self) -> bool:
        """Whether rows, or timers, of several keys are processed together, each at its own time."""
        return bool(len(self._hashes))

    def of_keys(self, hashes: np.ndarray, otherwise_ms: int, *, writes: bool = False) -> np.ndarray:
        """The time of each key (int64); ``otherwise_ms`` of those that have no rows; see :meth:`enter_keys`.

        ``writes``: the time of what each writes.
        """
        if not len(self._hashes):
            return np.full(len(hashes), otherwise_ms)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        times_ms = self._writes_ms if writes else self._times_ms
        return np.where(self._hashes[at] == hashes, times_ms[at], otherwise_ms)

    def leave_rows(self) -> None:
        """Go by the time of the watermark again."""
        self.is_in_rows = False
        self._hashes, self._by_hash = self._hashes[:0], {}
        for expiry in self._expiries:
            expiry.forget_rows()

    def since_ms(self, name: str) -> int:
        """When a state first knew the time; UNDATED: it does not yet."""
        return self._since_ms.get(name, UNDATED)

    def first_ms(self, name: str) -> int:
        """Entries of a state of earlier times had expired before the job was changed; UNDATED: none is known to."""
        return self._first_ms.get(name, UNDATED)

    def note_since(self, name: str, since_ms: int) -> None:
        """A state knew the time then, perhaps elsewhere."""
        self._since_ms[name] = min(since_ms, self._since_ms.get(name, since_ms))

    def now_ms(self, time: TtlTime) -> int | None:
        """Milliseconds since the epoch; None: there was no watermark yet."""
        if time == "processing":
            return self._clock.now_us() // 1000
        return None if self.watermark_ms == WATERMARK_MIN_MS else self.watermark_ms
