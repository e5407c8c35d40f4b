"""Puts the entries of a pane together in packed rows, and takes them apart; ``packed_rows`` has the bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.state.tables.cells.accumulators import presence_bytes
from weir.state.tables.panes import packed_pane_kernels as kernels
from weir.state.tables.panes.number_kernels import LENGTHS, PADDING_BYTES
from weir.state.tables.panes.packed_cell_kernels import COLUMN_BYTES
from weir.state.tables.panes.packed_key_kernels import INTEGERS_BYTES, REFERENCE_BYTES
from weir.state.tables.panes.packed_pane_kernels import ROW_ENTRIES_MAX
from weir.state.tables.panes.packed_rows import PackedPane, made_pane
from weir.state.tables.panes.window_entries import WindowEntries, concatenated, key_offsets

_INTEGER_BYTES = 8
#: What a row may take besides keys, presence and cells: header, and lengths and bytes that are not full.
_ROW_BYTES = kernels.HEADER_BYTES + REFERENCE_BYTES + INTEGERS_BYTES + 16
_LENGTHS_BYTES = 10


@dataclass(frozen=True, slots=True, eq=False)
class KnownKeys:
    """The keys of panes to which rows may refer, ascending for each pane and key group."""

    keys: weir_keys.KeyColumn
    #: By end of a pane: where the keys of each key group begin, and how many they are; int64, by group.
    ranges: Mapping[int, tuple[np.ndarray, np.ndarray]]

    def of_rows(self, pane: PackedPane) -> tuple[np.ndarray, np.ndarray]:
        """For each row of a pane: where the keys begin to which it refers, and how many they are."""
        firsts = np.zeros(len(pane.groups), dtype=np.int64)
        counts = np.zeros(len(pane.groups), dtype=np.int64)
        for end_ms in pane.referred_ms():
            if end_ms in self.ranges:
                rows = np.flatnonzero(pane.references_ms == end_ms)
                firsts[rows] = self.ranges[end_ms][0][pane.groups[rows]]
                counts[rows] = self.ranges[end_ms][1][pane.groups[rows]]
        return firsts, counts


#: For panes whose rows refer to no others.
NO_KEYS = KnownKeys(weir_keys.KeyColumn(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)), {})


def known_keys(panes: Mapping[int, Sequence[PackedPane]], max_groups: int) -> KnownKeys:
    """The keys of panes, by their ends; rows that refer to others are left out.

    Raises:
        StateMismatchError: as :func:`unpack_panes`.
    """
    columns: list[weir_keys.KeyColumn] = []
    ranges, start = {}, 0
    for end_ms, parts in panes.items():
        own = [part for each in parts if len((part := each.with_own_keys()).groups)]
        firsts, counts = np.zeros(max_groups, dtype=np.int64), np.zeros(max_groups, dtype=np.int64)
        if own:
            keys, groups = _unpacked_keys(own)
            columns.append(keys)
            # All rows of a key group follow each other.
            at = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1])
            firsts[groups[at]] = at + start
            counts[groups[at]] = np.diff(np.append(at, len(groups)))
            start += len(groups)
        ranges[end_ms] = firsts, counts
    return KnownKeys(weir_keys.joined_keys(columns), ranges)


def pack_pane(
    end_ms: int,
    keys: weir_keys.KeyColumn,
    groups: np.ndarray,
    cells: np.ndarray,
    presence: np.ndarray,
    known: KnownKeys = NO_KEYS,
) -> PackedPane:
    """Put the entries of a pane together; there is one at least. The arrays are as in :class:`WindowEntries`.

    ``known``: of one pane, to which rows are to refer, unless that has less than half of the keys.
    """
    order, are_integers = _order(keys, groups)
    groups = groups[order]
    reference_ms, positions = _positions(keys, order, groups, known)
    if reference_ms != kernels.NO_REFERENCE_MS:
        # What the other pane has comes first in each group.
        again = np.argsort(2 * groups.astype(np.uint32) + (positions < 0), kind="stable")
        order, positions = order[again], positions[again]
    keys = weir_keys.select_keys(keys, order)
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    firsts = [0, *changes.tolist(), len(groups)]
    bounds = [
        start for first, stop in itertools.pairwise(firsts) for start in range(first, stop, ROW_ENTRIES_MAX)
    ]
    rows = np.array([*bounds, len(groups)], dtype=np.int64)
    entry_bytes = _LENGTHS_BYTES + presence.shape[1] + 8 * cells.shape[1]
    row_bytes = _ROW_BYTES + (COLUMN_BYTES + 1) * cells.shape[1]
    size_bytes = len(keys.data) + entry_bytes * len(groups) + row_bytes * len(bounds)
    out = np.zeros(size_bytes + PADDING_BYTES, dtype=np.uint8)
    offsets = np.empty(len(rows), dtype=np.int64)
    kernels.pack(
        keys.data,
        keys.offsets,
        rows,
        are_integers,
        positions,
        reference_ms,
        cells[order],
        presence[order],
        np.empty(ROW_ENTRIES_MAX, dtype=np.uint64),
        np.empty(LENGTHS, dtype=np.int64),
        out,
        offsets,
    )
    return made_pane(end_ms, groups[rows[:-1]], offsets, out[: int(offsets[-1])].copy())


def _positions(
    keys: weir_keys.KeyColumn, order: np.ndarray, groups: np.ndarray, known: KnownKeys
) -> tuple[int, np.ndarray]:
    """The end of the pane to refer to, and where each key, in this order, is among its group's there; -1: it is not."""
    positions = np.full(len(groups), -1, dtype=np.int64)
    for end_ms, (firsts, counts) in known.ranges.items():
        starts = np.searchsorted(groups, np.arange(len(firsts) + 1)).astype(np.int64)
        found = kernels.match(
            keys.data,
            keys.offsets,
            order,
            starts,
            firsts,
            counts,
            known.keys.data,
            known.keys.offsets,
            positions,
        )
        if 2 * found >= len(groups):
            return end_ms, positions
        positions[:] = -1
    return kernels.NO_REFERENCE_MS, positions


def _order(keys: weir_keys.KeyColumn, groups: np.ndarray) -> tuple[np.ndarray, bool]:
    """Positions that sort entries by group and then by key, and whether all keys have the length of integers."""
    lengths = np.diff(keys.offsets)
    start, stop = int(keys.offsets[0]), int(keys.offsets[-1])
    are_integers = bool((lengths == _INTEGER_BYTES).all())
    if are_integers:
        order = np.argsort(keys.data[start:stop].view(">u8").astype(np.uint64))
    else:
        buffers = [None, pa.py_buffer(np.asarray(keys.offsets, dtype=np.int64)), pa.py_buffer(keys.data)]
        column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
        order = pc.sort_indices(column).to_numpy().astype(np.int64)
    return order[np.argsort(groups[order], kind="stable")], are_integers


def unpack_panes(
    panes: Iterable[PackedPane], cell_count: int, known: KnownKeys = NO_KEYS
) -> WindowEntries | None:
    """All entries of panes; None: there are none. ``known`` has the keys to which their rows refer.

    Raises:
        StateMismatchError: a row has another version, or not the bytes of one.
    """
    listed = [pane for pane in panes if len(pane.groups)]
    if not listed:
        return None
    runs = [run for pane in listed for run in pane.runs()]
    if any(count < cell_count for count, _ in runs):
        return concatenated([_unpacked_run(pane, count, cell_count, known) for count, pane in runs])
    keys, cells, presence, counts = _unpack(listed, cell_count, known, with_cells=True)
    groups = np.concatenate([pane.groups for pane in listed])
    ends_ms = np.repeat([pane.end_ms for pane in listed], [len(pane.groups) for pane in listed])
    return WindowEntries(
        np.repeat(ends_ms.astype(np.int64), counts), keys, np.repeat(groups, counts), cells, presence
    )


def _unpacked_run(pane: PackedPane, count: int, cell_count: int, known: KnownKeys) -> WindowEntries:
    """Of rows with so many cells: where they were packed before aggregates were added, the last ones have no value."""
    own = min(count, cell_count)
    keys, cells, presence, counts = _unpack([pane], own, known, with_cells=True)
    rows = len(cells)
    all_cells = np.zeros((rows, cell_count), dtype=np.int64)
    all_presence = np.zeros((rows, presence_bytes(cell_count)), dtype=np.uint8)
    all_cells[:, :own], all_presence[:, : presence.shape[1]] = cells, presence
    ends_ms = np.full(rows, pane.end_ms, dtype=np.int64)
    return WindowEntries(ends_ms, keys, np.repeat(pane.groups, counts), all_cells, all_presence)


def _unpacked_keys(panes: list[PackedPane]) -> tuple[weir_keys.KeyColumn, np.ndarray]:
    """All keys of panes whose rows refer to no others, and their key groups."""
    columns, groups = [], []
    for count, run in [run for pane in panes for run in pane.runs()]:
        keys, _, _, counts = _unpack([run], count, NO_KEYS, with_cells=False)
        columns.append(keys)
        groups.append(np.repeat(run.groups, counts))
    return weir_keys.joined_keys(columns), np.concatenate(groups)


def _unpack(
    panes: list[PackedPane], cell_count: int, known: KnownKeys, *, with_cells: bool
) -> tuple[weir_keys.KeyColumn, np.ndarray, np.ndarray, np.ndarray]:
    """Keys, cells, presence, and the number of entries of each row."""
    lengths = np.concatenate([np.diff(pane.offsets) for pane in panes])
    data = np.concatenate([*(pane.data for pane in panes), np.zeros(PADDING_BYTES, dtype=np.uint8)])
    offsets, totals = key_offsets(lengths), np.zeros(3, dtype=np.int64)
    _check(kernels.measure(data, offsets, cell_count, totals), data, offsets)
    count, key_bytes, longest = totals.tolist()
    of_cells = count if with_cells else 0
    cells = np.empty((of_cells, cell_count), dtype=np.int64)
    presence = np.empty((of_cells, presence_bytes(cell_count)), dtype=np.uint8)
    keys, starts = np.empty(key_bytes, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    firsts, numbers = (np.concatenate(each) for each in zip(*map(known.of_rows, panes), strict=True))
    counts = np.empty(len(lengths), dtype=np.int64)
    wrong = kernels.unpack(
        data,
        offsets,
        np.empty(longest, dtype=np.uint64),
        known.keys.data,
        known.keys.offsets,
        firsts,
        numbers,
        keys,
        starts,
        cells,
        presence,
        counts,
    )
    _check(wrong, data, offsets)
    return weir_keys.KeyColumn(keys, starts), cells, presence, counts


def _check(wrong: int, data: np.ndarray, offsets: np.ndarray) -> None:
    if wrong < 0:
        return
    start, stop = int(offsets[wrong]), int(offsets[wrong + 1])
    version = int(data[start]) if stop > start else 0
    if not 0 < version <= kernels.VERSION:
        raise StateMismatchError(
            f"a packed pane has format version {version}, this program reads up to {kernels.VERSION}; "
            "use the program that wrote it or start from an empty store"
        )
    raise StateMismatchError(
        f"a packed pane of {stop - start} bytes does not have the form of version {version} with this step's "
        "cells: the job's aggregates changed, or the store is damaged; start from an empty store"
    )
