"""Rows of a table outside, by the keys that were asked for: a bounded cache, also of keys that have no rows.

Two generations: what is asked for goes into the young one. When that is half as large as the cache may be, in keys and
rows or in bytes, it becomes the old one. Keys of the old one are forgotten with the next change, unless they are asked
for until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

#: What keys and rows of a subtask take together, at most about so much, however many there may be.
_BYTES_MAX = 256 << 20
#: Pieces of a generation's rows that are put together: each costs at every look.
_PIECES_MAX = 16
#: Whole numbers that are keys are places in an array if that has at most so many; 4 MB.
_PLACES_MAX = 1 << 20


class KeyRows(NamedTuple):
    """Rows of some keys: those of a key lie together, in the order of the keys."""

    #: Those of all keys.
    rows: pa.Table
    #: How many each key has; int64, shape (keys,).
    counts: np.ndarray


class FoundRows(NamedTuple):
    """Where the rows of some keys are; int64, shape (keys,)."""

    rows: pa.Table
    firsts: np.ndarray
    counts: np.ndarray


#: Called with positions of keys (int64); returns the rows of these keys.
AskRows = Callable[[np.ndarray], KeyRows]


class _Places:
    """Slots of keys that are whole numbers and lie close together, found without a look at each key by itself."""

    def __init__(self) -> None:
        self._lowest = 0
        #: Of the lowest number and those that follow it; -1: it has none.
        self._slots = np.empty(0, dtype=np.int32)
        self._is_used = True

    def put(self, numbers: np.ndarray, slots: np.ndarray) -> None:
        """Take in numbers, int64, with their slots; at least one."""
        if not self._is_used:
            return
        lowest, end = int(numbers.min()), int(numbers.max()) + 1
        if len(self._slots):
            lowest, end = min(lowest, self._lowest), max(end, self._lowest + len(self._slots))
        if end - lowest > _PLACES_MAX:
            self._is_used, self._slots = False, np.empty(0, dtype=np.int32)
            return
        if end - lowest > len(self._slots):
            # Keys mostly rise: each batch would make a new array.
            wider = np.full(1 << (end - lowest - 1).bit_length(), -1, dtype=np.int32)
            wider[self._lowest - lowest :][: len(self._slots)] = self._slots
            self._lowest, self._slots = lowest, wider
        self._slots[numbers - self._lowest] = slots

    def of(self, numbers: np.ndarray) -> np.ndarray | None:
        """The slot of each number; None: some number may have none."""
        if not len(self._slots) or not len(numbers):
            return None
        # What is below the lowest becomes as large as can be.
        places = (numbers - self._lowest).view(np.uint64)
        if int(places.max()) >= len(self._slots):
            return None
        slots = self._slots[places]
        return slots if int(slots.min()) >= 0 else None


class _Generation:
    def __init__(self, schema: pa.Schema) -> None:
        self._slots: dict[bytes, int] = {}
        self.places = _Places()
        self.firsts = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.int64)
        self.until_s = np.empty(0, dtype=np.float64)
        self._rows = schema.empty_table()
        #: When the first of them is forgotten.
        self._ends_s = float("inf")
        #: What keys and rows take.
        self.bytes = 0

    @property
    def size(self) -> int:
        """Keys, also those that were asked for anew, and rows."""
        return len(self.firsts) + int(self._rows.num_rows)

    @property
    def rows(self) -> pa.Table:
        """Rows of all keys, in few pieces."""
        if self._rows.num_columns and self._rows.column(0).num_chunks > _PIECES_MAX:
            self._rows = self._rows.combine_chunks()
        return self._rows

    def slots(self, keys: Sequence[bytes], now_s: float) -> np.ndarray:
        """Where each key is, int64; -1: it is not known, or no longer."""
        get = self._slots.get
        found = np.fromiter((get(key, -1) for key in keys), dtype=np.int64, count=len(keys))
        if len(self.until_s):
            found[(found >= 0) & (self.until_s[found] <= now_s)] = -1
        return found

    def found(self, numbers: np.ndarray, now_s: float) -> FoundRows | None:
        """The rows of keys that are whole numbers; None: a key is not known, or no longer, or is looked for."""
        slots = self.places.of(numbers)
        if slots is None or (self._ends_s <= now_s and bool((self.until_s[slots] <= now_s).any())):
            return None
        if self._rows.num_columns and self._rows.column(0).num_chunks > 1:
            self._rows = self._rows.combine_chunks()
        return FoundRows(self._rows, self.firsts[slots], self.counts[slots])

    def add(self, keys: Sequence[bytes], rows: KeyRows, until_s: np.ndarray) -> None:
        """Take in keys with their rows; ``until_s`` (monotonic, float64) has how long each counts."""
        start = len(self.firsts)
        self._slots.update(zip(keys, range(start, start + len(keys)), strict=True))
        firsts = self._rows.num_rows + np.cumsum(rows.counts) - rows.counts
        self.firsts = np.concatenate([self.firsts, firsts])
        self.counts = np.concatenate([self.counts, rows.counts])
        self.until_s = np.concatenate([self.until_s, until_s])
        self._ends_s = min(self._ends_s, float(until_s.min(initial=np.inf)))
        self.bytes += sum(map(len, keys)) + rows.rows.nbytes
        if rows.rows.num_rows:
            self._rows = pa.concat_tables([self._rows, rows.rows])

    def of(self, slots: np.ndarray) -> KeyRows:
        """The rows of some keys."""
        counts = self.counts[slots]
        return KeyRows(self.rows.take(pa.array(spread(self.firsts[slots], counts))), counts)


class RememberedRows:
    """Cache of a subtask, as the module says; one thread uses it.

    Args:
        schema: columns of the rows.
        size_max: keys and rows that are remembered; 0: none.
        ttl_s: how long an answer counts.
    """

    def __init__(self, schema: pa.Schema, size_max: int, ttl_s: float) -> None:
        self._schema, self._size_max, self._ttl_s = schema, size_max, ttl_s
        self._young, self._old = _Generation(schema), _Generation(schema)

    def of_numbers(self, numbers: np.ndarray, now_s: float) -> FoundRows | None:
        """The rows of keys that are whole numbers, if all are remembered and lie close together.

        Args:
            numbers: int64, shape (rows,); some may be there several times.
            now_s: monotonic.

        Returns:
            For each of the numbers; None: :meth:`found` tells.
        """
        return self._young.found(numbers, now_s)

    def found(
        self, keys: Sequence[bytes], now_s: float, ask: AskRows, numbers: np.ndarray | None = None
    ) -> FoundRows:
        """The rows of some keys, each of which is there once.

        Args:
            keys: canonical bytes.
            now_s: monotonic.
            ask: is called once, at most, with those that are not remembered.
            numbers: the keys themselves where they are whole numbers; int64, shape (keys,).
        """
        young = self._young
        slots = young.slots(keys, now_s)
        lacking = np.flatnonzero(slots < 0)
        if len(lacking):
            older = self._old.slots([keys[at] for at in lacking.tolist()], now_s)
            is_known = older >= 0
            if is_known.any():
                again = older[is_known]
                young.add(
                    [keys[at] for at in lacking[is_known].tolist()],
                    self._old.of(again),
                    self._old.until_s[again],
                )
            asked = lacking[~is_known]
            if len(asked):
                until_s = np.full(len(asked), now_s + self._ttl_s)
                young.add([keys[at] for at in asked.tolist()], ask(asked), until_s)
            slots = young.slots(keys, now_s)
        if numbers is not None:
            young.places.put(numbers, slots)
        found = FoundRows(young.rows, young.firsts[slots], young.counts[slots])
        if young.size > self._size_max // 2 or young.bytes > _BYTES_MAX // 2:
            self._old = young if self._size_max else _Generation(self._schema)
            self._young = _Generation(self._schema)
        return found


def spread(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The positions ``first`` to ``first + count`` of each, one after the other; int64."""
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    places: np.ndarray = np.arange(total) + np.repeat(firsts - (stops - counts), counts)
    return places


def spread_parts(
    firsts: np.ndarray, counts: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ``size`` positions of :func:`spread` at a time: which of ``firsts`` each is of, and the position; int64.

    Many rows with a key that has many rows make far more positions than memory may hold.
    """
    stops = np.cumsum(counts)
    starts = stops - counts
    total = int(stops[-1]) if len(stops) else 0
    for begin in range(0, total, size):
        end = min(begin + size, total)
        lowest, highest = np.searchsorted(stops, [begin, end - 1], side="right").tolist()
        of = np.arange(lowest, highest + 1)
        begins = np.maximum(starts[of], begin)
        here = np.minimum(stops[of], end) - begins
        yield np.repeat(of, here), spread(firsts[of] + begins - starts[of], here)
