"""What some aggregates of windows keep beside their cells, as questions read it: different values, registers, buckets.

They have entries of their own (``weir.operators.aggregation.part_entries``), by pane and key as the windows have. Those
of the keys of a block are read pane by pane, and put together as the operator does it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.part_entries import PartEntries
from weir.operators.aggregation.part_kernels import LENGTH_BYTES
from weir.operators.aggregation.parts import Part
from weir.operators.queries.pane_runs import Place
from weir.operators.queries.reading import RangeReading, begun_together
from weir.operators.windows.panes.known_texts import KnownTexts
from weir.operators.windows.panes.window_parts import LoadedPart
from weir.operators.windows.panes.window_texts import texts_of_entries
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables.cells.accumulators import decode_values
from weir.state.tables.panes.packed_reading import scan_entries
from weir.state.tables.timers.time_first import TIME_STOP, time_bytes

#: Entries that are read at a time: 50 MB.
PART_ENTRIES_MAX = 200_000
#: Entries between two looks whether a question may go on.
_CHECKED = 1_024


class TooManyEntriesError(Exception):
    """More than ``PART_ENTRIES_MAX``: ask for fewer keys at a time."""


Loaded = TypeVar("Loaded")


class AskedEntries(ABC, Generic[Loaded]):
    """Entries that one aggregate of a step has beside its cells."""

    def __init__(self, state: str) -> None:
        """``state``: the name under which the job has the number of their state."""
        self.state = state

    def of(
        self, reading: RangeReading, ends_ms: np.ndarray, keys: Sequence[bytes], places: Sequence[Place]
    ) -> Loaded:
        """What there is of entries of windows; for each of them the end of its pane, its key and its place.

        Raises:
            TooManyEntriesError: there is too much.
        """
        state_id = reading.number_of(self.state)
        panes: dict[tuple[int, int], dict[bytes, int]] = {}
        for row, (end_ms, key, place) in enumerate(zip(ends_ms.tolist(), keys, places, strict=True)):
            panes.setdefault((place.group, end_ms), {})[key] = row
        # The same for all: requests are shared by key groups with the same bounds. Entries of a key come after those of
        # longer ones that begin with it.
        stops = [prefix_end(key) for key in keys]
        first, after = min(keys, default=b""), max((stop for stop in stops if stop is not None), default=None)
        after = None if None in stops else after
        found: list[tuple[bytes, bytes]] = []
        owners: list[int] = []
        count = 0

        def begun(pane: tuple[tuple[int, int], dict[bytes, int]]) -> Iterator[tuple[bytes, bytes]]:
            (group, end_ms), _ = pane
            prefix = layout.key_prefix(group, state_id) + time_bytes(end_ms)
            stop = prefix_end(prefix) if after is None else prefix + after
            assert stop is not None, "it begins with a key group, which is not only 0xFF"
            return scan_entries(reading.scan, prefix + first, stop)

        for (_, rows), entries in begun_together(panes.items(), begun):
            for key, data in entries:
                if not count % _CHECKED:
                    reading.check()
                count += 1
                entry = key[TIME_STOP:]
                # Of longer keys that begin alike there are others in between.
                owner = rows.get(entry[: int.from_bytes(entry[-LENGTH_BYTES:], "big")])
                if owner is not None:
                    found.append((entry, data))
                    owners.append(owner)
                    if len(found) > PART_ENTRIES_MAX:
                        raise TooManyEntriesError
        return self._loaded(found, owners, ends_ms)

    @abstractmethod
    def _loaded(
        self, found: Sequence[tuple[bytes, bytes]], owners: Sequence[int], ends_ms: np.ndarray
    ) -> Loaded:
        """What entries say: their keys and values, and which of the windows' entries each belongs to."""


class AskedPart(AskedEntries[LoadedPart]):
    """The part of one aggregate of a step."""

    def __init__(self, part: Part, state: str) -> None:
        """Take the part, and the name as for :class:`AskedEntries`."""
        super().__init__(state)
        self._part = part

    def _loaded(
        self, found: Sequence[tuple[bytes, bytes]], owners: Sequence[int], ends_ms: np.ndarray
    ) -> LoadedPart:
        whose = np.array(owners, dtype=np.int64)
        column = weir_keys.KeyColumn.from_list([entry for entry, _ in found])
        cells, _ = decode_values([data for _, data in found], self._part.cell_count)
        entries = PartEntries(column, cells.copy(), ends_ms[whose])
        values = np.empty(0, dtype=np.int64)
        if len(found):
            _, _, values = weir_keys.distinct_keys(weir_keys.hash_keys(column), column)
        return LoadedPart(self._part, entries, whose, values)


class AskedTexts(AskedEntries[KnownTexts]):
    """The texts whose codes the cells of an aggregate have."""

    def _loaded(
        self, found: Sequence[tuple[bytes, bytes]], owners: Sequence[int], ends_ms: np.ndarray
    ) -> KnownTexts:
        known = KnownTexts()
        if found:
            column = weir_keys.KeyColumn.from_list([entry for entry, _ in found])
            cells, _ = decode_values([data for _, data in found], 1)
            entries = PartEntries(column, cells, ends_ms[np.array(owners, dtype=np.int64)])
            known.put_read(cells[:, 0], texts_of_entries(entries), int(ends_ms.max()))
        return known
