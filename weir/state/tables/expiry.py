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

``weir.state.tables.state_times`` has the times by which it is judged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.tables.stamps import STAMP, UNDATED
from weir.state.tables.state_times import StateTimes
from weir.state.ttl import Ttl
from weir.state.types import STAMP_BYTES, STAMPED

CLOCK_NAMESPACE = b"ttl"
_CLOCK = struct.Struct("<Bqq")
_CLOCK_VERSION = 1


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
        self.prefix = STAMPED + STAMP.pack(self.stamp)
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
        self.prefix = STAMPED + STAMP.pack(self.stamp)
        self.is_undated_expired = UNDATED < self.since_ms <= self.cut_ms

    def forget_rows(self) -> None:
        """Go by the time of the watermark again."""
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
    def passed_ms(self) -> int:
        """What has expired at this time has for all that is still to come; UNDATED: that is not known yet."""
        if self.ttl.time == "event":
            return self._times.passed_ms
        now_ms = self._times.now_ms(self.ttl.time)
        assert now_ms is not None
        return now_ms

    @property
    def passed_cut_ms(self) -> int:
        """Entries of this time and of earlier ones have expired for all that is still to come."""
        return self._cut_of(self.passed_ms)

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
            self.prefix = STAMPED + STAMP.pack(stamp)
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
        stamp: int = STAMP.unpack_from(data, 1)[0]
        return stamp

    def live(self, data: bytes | None) -> bytes | None:
        """The value of a stored entry as without a TTL; None: it has expired, or there is none."""
        if data is None:
            return None
        if data[:1] != STAMPED:
            return None if self.is_undated_expired else data
        stamp: int = STAMP.unpack_from(data, 1)[0]
        expired = self.is_undated_expired if stamp == UNDATED else stamp <= self.cut_ms
        return None if expired else data[STAMP_BYTES:]

    def loaded(self, data: bytes | None) -> bytes | None:
        """As :meth:`live`, of an entry that any of the rows that are processed may look at."""
        if data is None or not self.is_in_rows or data[:1] != STAMPED:
            return self.live(data)
        stamp: int = STAMP.unpack_from(data, 1)[0]
        return None if UNDATED < stamp <= self.lowest_cut_ms else data[STAMP_BYTES:]

    def kept(self, data: bytes | None) -> bytes | None:
        """As :meth:`live`, of an entry that any row that may come may look at."""
        if data is None or not self.is_in_rows or data[:1] != STAMPED:
            return self.live(data)
        stamp: int = STAMP.unpack_from(data, 1)[0]
        is_over = UNDATED < stamp <= self.passed_cut_ms
        return None if is_over else data[STAMP_BYTES:]

    @staticmethod
    def stamped(stamp: int, data: bytes) -> bytes:
        """A value as it is stored that is of this time."""
        return STAMPED + STAMP.pack(stamp) + data

    # --- arrays ---

    def expired(self, stamps: np.ndarray, cut_ms: int | np.ndarray) -> np.ndarray:
        """Which of these times (int64) are past, bool; ``cut_ms``: up to which time they are."""
        past: np.ndarray = stamps <= cut_ms
        undated = stamps == UNDATED
        if undated.any():
            since_ms = self.since_ms
            past &= ~undated | (since_ms > UNDATED) & (since_ms <= cut_ms)
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
                    self._times.note_watermark(watermark_ms)
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
