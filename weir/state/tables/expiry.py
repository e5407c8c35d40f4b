"""When the entries of a state with a TTL expire, and the bytes that tell it. A promise: the tests have golden bytes.

=================  ==================================================================================================
cells              one more cell: the time of the last refresh, ms (int64). Its presence bit says that there is one
values, elements   ``80``, the time (int64, little endian), then the value as without a TTL
group clock        namespace ``ttl``, empty key: ``01``, the time and :attr:`Expiry.since_ms` (int64, little endian)
=================  ==================================================================================================

An entry without a time is *undated*: it was written before the state had a TTL, or before the first watermark. It
counts as written when this state first knew the time (``since_ms``), which checkpoints and group clocks keep.

What had expired when a job was changed stays so, whatever the TTL is now (``weir.protocol.checkpoints.horizons``): no
entry of before :attr:`Expiry.first_ms` is there, and none is written with such a time.

Event time never goes back: a restored operator goes on from the watermark of its checkpoint, and whoever takes over a
key group reads the clock that its former owner left there. So what has expired stays expired.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weir.clock import Clock, SystemClock
from weir.keys import hashing as weir_keys
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.ttl import Ttl, TtlTime
from weir.state.types import STAMP_BYTES, STAMPED

#: Stands for the time of an undated entry.
UNDATED = -(2**63)
CLOCK_NAMESPACE = b"ttl"
_CLOCK = struct.Struct("<Bqq")
_CLOCK_VERSION = 1
_STAMP = struct.Struct("<q")
#: See ``weir.state.tables.cells.accumulators``.
_TIMED_CELLS = np.dtype([("version", "u1"), ("presence", "u1"), ("value", "<i8"), ("time", "<i8")])


class StateTimes:
    """The times of one operator in one subtask; called by its thread."""

    def __init__(self) -> None:
        """The machine's clock, and no watermark yet."""
        self._clock: Clock = SystemClock()
        #: The highest watermark that the operator, or a former owner of its key groups, has seen.
        self.watermark_ms = WATERMARK_MIN_MS
        #: What fires because of this watermark still finds what is about to expire; what it writes is of this time.
        self.arriving_ms = WATERMARK_MIN_MS
        #: By state name: when it first knew the time.
        self._since_ms: dict[str, int] = {}
        #: By state name: entries of earlier times had expired before the job was changed.
        self._first_ms: Mapping[str, int] = {}
        #: By state name.
        self._of_states: dict[str, Expiry] = {}
        #: States that go by event time.
        self._event_states: set[str] = set()
        self._expiries: list[Expiry] = []
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
        for kept in restored:
            if kept["watermark_ms"] is not None:
                self.advance(kept["watermark_ms"])
            for name, since_ms in kept["since_ms"].items():
                self.note_since(name, since_ms)

    def to_json(self) -> dict[str, Any]:
        """For the snapshot of the operator."""
        known = None if self.watermark_ms == WATERMARK_MIN_MS else self.watermark_ms
        first_ms = {name: expiry.oldest_ms for name, expiry in sorted(self._of_states.items())}
        return {
            "watermark_ms": known,
            "since_ms": dict(sorted(self._since_ms.items())),
            "first_ms": {name: time_ms for name, time_ms in first_ms.items() if time_ms != UNDATED},
        }

    def add(self, name: str, time: TtlTime, expiry: Expiry) -> None:
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
        """The watermark has risen; that of the end of all input is no time."""
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
        """It is the time of the watermark again."""
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


class Expiry:
    """Tells which entries of one state have expired.

    The time stands still between :meth:`begin` and :meth:`end`, that is in a batch.

    Args:
        ttl: as declared.
        times: of the operator.
        name: of the state.
        backend: where the state lives.
        state_id: its number there.
        max_parallelism: number of key groups.
        groups: those that are owned now.
    """

    def __init__(
        self,
        ttl: Ttl,
        times: StateTimes,
        name: str,
        backend: StateBackend,
        state_id: int,
        max_parallelism: int,
        groups: Iterable[int],
    ) -> None:
        self.ttl = ttl
        #: By key group whether it is owned.
        self.owned = np.zeros(max_parallelism, dtype=np.bool_)
        self.owned[list(groups)] = True
        self._times = times
        self._name = name
        self._backend = backend
        self._state_id = state_id
        self._max_parallelism = max_parallelism
        #: Key groups whose clock in the store was not read since they came.
        self._unread = np.ones(max_parallelism, dtype=np.bool_)
        self._has_unread = True
        #: What the store has of those, where one read of all takes hardly longer than of a few.
        self._read_ahead: dict[int, bytes | None] = {}
        #: Entries of earlier times had expired before the job was changed; UNDATED: none is known to.
        self.first_ms = times.first_ms(name)
        #: What :attr:`cut_ms` is at least when the time is known.
        self._cut_ms_min = max(self.first_ms - 1, UNDATED + 1)
        times.add(name, ttl.time, self)
        self._is_frozen = False
        #: The time; UNDATED: it is not known yet.
        self.now_ms = UNDATED
        #: The time of what is written now.
        self.stamp = self.first_ms
        #: What begins with it is a value of now.
        self.prefix = STAMPED + _STAMP.pack(self.stamp)
        #: Entries of this time and of earlier ones have expired, and whether undated ones have.
        self.cut_ms = self._cut_of(UNDATED)
        self.is_undated_expired = UNDATED < self.since_ms <= self.cut_ms
        #: The time of the watermark, while rows have others.
        self._watermark_now_ms = UNDATED

    @property
    def is_in_rows(self) -> bool:
        """Whether each row that is processed has its own time here."""
        return self._times.is_in_rows and self.ttl.time == "event"

    def set_now(self, now_ms: int, stamp: int) -> None:
        """It is the turn of a row of this time, which may be earlier than that of the row before."""
        self.now_ms, self.stamp = now_ms, max(stamp, self.first_ms)
        unknown = now_ms == UNDATED
        self.cut_ms = (
            self._cut_of(now_ms) if unknown else max(now_ms - self.ttl.duration_ms, self._cut_ms_min)
        )
        self.prefix = STAMPED + _STAMP.pack(self.stamp)
        self.is_undated_expired = UNDATED < self.since_ms <= self.cut_ms

    def forget_rows(self) -> None:
        """It is the time of the watermark again."""
        self.now_ms = self._watermark_now_ms
        self.stamp = UNDATED
        self.cut_ms = self._cut_of(self.now_ms)
        self._is_frozen = False

    def _cut_of(self, now_ms: int) -> int:
        """Return up to which time entries have expired at ``now_ms``; UNDATED: none has."""
        if now_ms != UNDATED:
            return max(now_ms - self.ttl.duration_ms, self._cut_ms_min)
        return UNDATED if self.first_ms == UNDATED else self._cut_ms_min

    def cuts(self, times_ms: np.ndarray) -> np.ndarray:
        """Return :attr:`cut_ms` at each of these times; int64."""
        found: np.ndarray = np.maximum(times_ms - self.ttl.duration_ms, self._cut_ms_min)
        return found

    @property
    def oldest_ms(self) -> int:
        """Entries of earlier times have expired, by the watermark or the clock; UNDATED: that is not known."""
        now_ms = self._times.now_ms(self.ttl.time)
        return self.first_ms if now_ms is None else self._cut_of(now_ms) + 1

    @property
    def lowest_cut_ms(self) -> int:
        """Entries of this time and of earlier ones have expired for every row that is processed."""
        return self._cut_of(self._times.lowest_ms)

    @property
    def goes_by_keys(self) -> bool:
        """Whether rows, or timers, of several keys are processed together, each at its own time."""
        return self._times.goes_by_keys and self.ttl.time == "event"

    def turn_to(self, key_hash: int) -> None:
        """It is the turn of a key, where rows of several keys are processed together."""
        self._times.move_to(key_hash)

    def of_keys(self, hashes: np.ndarray, *, writes: bool = False) -> np.ndarray:
        """The time of the rows of each key, or of what they write; int64."""
        if not writes:
            return self._times.of_keys(hashes, self.now_ms)
        found: np.ndarray = np.maximum(self._times.of_keys(hashes, self.stamp, writes=True), self.first_ms)
        return found

    def begin(self, hashes: np.ndarray | None = None) -> None:
        """Set the time, unless it stands still; ``hashes``: of the keys (uint64) that are looked at next."""
        if self._has_unread and hashes is not None:
            groups = weir_keys.key_groups(hashes, self._max_parallelism)
            found = groups[self._unread[groups]]
            if len(found):
                self._read_clocks(np.unique(found).tolist())
        if not self._is_frozen and not self.is_in_rows:
            self.look()
            self._is_frozen = True

    def end(self) -> None:
        """The batch is over: time goes on."""
        self._is_frozen = False

    def look(self) -> None:
        """Set the time; it never goes back."""
        now_ms = self._times.now_ms(self.ttl.time)
        if now_ms is not None and now_ms > self.now_ms:
            self.now_ms = self._watermark_now_ms = now_ms
            self.cut_ms = self._cut_of(now_ms)
        now_ms = self.now_ms if self.ttl.time == "processing" else max(self.now_ms, self._times.arriving_ms)
        stamp = max(now_ms, self.first_ms)
        if stamp != self.stamp:
            self.stamp = stamp
            self.prefix = STAMPED + _STAMP.pack(stamp)
        # A former owner of a key group may have known the time earlier.
        self.is_undated_expired = UNDATED < self.since_ms <= self.cut_ms

    @property
    def since_ms(self) -> int:
        """When the state first knew the time; UNDATED: it does not yet."""
        return self._times.since_ms(self._name)

    # --- values of any length ---

    def is_expired(self, stamp: int) -> bool:
        """Whether an entry of this time has expired."""
        return self.is_undated_expired if stamp == UNDATED else bool(stamp <= self.cut_ms)

    def stamp_of(self, data: bytes) -> int:
        """The time of a stored entry."""
        if data[:1] != STAMPED:
            return UNDATED
        stamp: int = _STAMP.unpack_from(data, 1)[0]
        return stamp

    def live(self, data: bytes | None) -> bytes | None:
        """The value of a stored entry as without a TTL; None: it has expired, or there is none."""
        if data is None:
            return None
        if data[:1] != STAMPED:
            return None if self.is_undated_expired else data
        stamp: int = _STAMP.unpack_from(data, 1)[0]
        expired = self.is_undated_expired if stamp == UNDATED else stamp <= self.cut_ms
        return None if expired else data[STAMP_BYTES:]

    def loaded(self, data: bytes | None) -> bytes | None:
        """As :meth:`live`, of an entry that any of the rows that are processed may look at."""
        if data is None or not self.is_in_rows or data[:1] != STAMPED:
            return self.live(data)
        stamp: int = _STAMP.unpack_from(data, 1)[0]
        return None if UNDATED < stamp <= self.lowest_cut_ms else data[STAMP_BYTES:]

    def kept(self, data: bytes | None) -> bytes | None:
        """As :meth:`live`, of an entry that any row that may come may look at."""
        if data is None or not self.is_in_rows or data[:1] != STAMPED:
            return self.live(data)
        stamp: int = _STAMP.unpack_from(data, 1)[0]
        is_over = UNDATED < stamp <= self._cut_of(self._times.watermark_ms)
        return None if is_over else data[STAMP_BYTES:]

    @staticmethod
    def stamped(stamp: int, data: bytes) -> bytes:
        """A value as it is stored that is of this time."""
        return STAMPED + _STAMP.pack(stamp) + data

    # --- arrays ---

    def expired(self, stamps: np.ndarray, cut_ms: int | np.ndarray | None = None) -> np.ndarray:
        """Which of these times (int64) are past, bool; ``cut_ms``: up to which times they are, if that is not now."""
        past: np.ndarray = stamps <= (self.cut_ms if cut_ms is None else cut_ms)
        if not self.is_undated_expired:
            past &= stamps != UNDATED
        return past

    # --- key groups come and go ---

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """These key groups came: their clocks in the store count."""
        listed = list(groups)
        self.owned[listed] = self._unread[listed] = True
        self._has_unread = True
        self._read_ahead = {}

    def release_groups(self, groups: Iterable[int]) -> None:
        """Leave the clock to the new owners of these key groups, before the store lets go of them."""
        groups = list(groups)
        assert not self.is_in_rows, "key groups leave between batches"
        # What a former owner knew must not be lost.
        unread = [group for group in groups if self._unread[group]]
        if unread:
            self._read_clocks(unread)
        self.look()
        self.owned[groups] = False
        if self.now_ms != UNDATED:
            data = _CLOCK.pack(_CLOCK_VERSION, self.now_ms, self.since_ms)
            keys = [self._clock_key(group) for group in groups]
            self._backend.put_many(keys, [data] * len(keys))

    def _read_clocks(self, groups: list[int]) -> None:
        for data in self._stored_clocks(groups):
            if data is not None and data[:1] == bytes([_CLOCK_VERSION]):
                _, watermark_ms, since_ms = _CLOCK.unpack(data)
                self._times.note_since(self._name, since_ms)
                if self.ttl.time == "event":
                    self._times.advance(watermark_ms)
        self._unread[groups] = False
        self._has_unread = bool(self._unread.any())
        self._is_frozen = False

    def _stored_clocks(self, groups: list[int]) -> list[bytes | None]:
        if self._backend.reads_ahead:
            if not self._read_ahead.keys() >= set(groups):
                every = sorted({*groups, *np.flatnonzero(self._unread & self.owned).tolist()})
                keys = [self._clock_key(group) for group in every]
                self._read_ahead = dict(zip(every, self._backend.get_many(keys), strict=True))
            return [self._read_ahead.pop(group) for group in groups]
        return self._backend.get_many([self._clock_key(group) for group in groups])

    def _clock_key(self, group: int) -> bytes:
        return layout.encode_key(group, self._state_id, b"", CLOCK_NAMESPACE)


def cell_stamps(values: Sequence[bytes]) -> np.ndarray:
    """The times of stored values of a state whose last of two cells is the time; those of one cell are undated."""
    sizes = set(map(len, values))
    timed = _TIMED_CELLS.itemsize
    if sizes == {timed}:
        rows = np.frombuffer(b"".join(values), dtype=_TIMED_CELLS)
        return np.where(rows["presence"] & 2, rows["time"], UNDATED)
    stamps = np.full(len(values), UNDATED, dtype=np.int64)
    at = [index for index, value in enumerate(values) if len(value) == timed]
    if at:
        stamps[at] = cell_stamps([values[index] for index in at])
    return stamps


def value_stamps(values: Sequence[bytes]) -> np.ndarray:
    """The times of stored values of any length."""
    undated = _STAMP.pack(UNDATED)
    stamps = b"".join([value[1:STAMP_BYTES] if value[:1] == STAMPED else undated for value in values])
    return np.frombuffer(stamps, dtype="<i8").astype(np.int64)
