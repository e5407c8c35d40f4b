"""Rows that have come to a join, and those of them that are kept, sorted by their keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of one side that have come; arrays are of shape (rows,)."""

    side: int
    #: Position of the key among the block's keys, int64.
    keys: np.ndarray
    #: Event times, ms, int64.
    times: np.ndarray
    #: As in the entry, int64; of a side without intervals ``lower`` means nothing.
    lower: np.ndarray
    until: np.ndarray


@dataclass(frozen=True, slots=True)
class StoredRows:
    """New rows that are kept, by key."""

    #: Rows in the order of their keys, int64, and where those of each key begin, shape (keys + 1,).
    order: np.ndarray
    bounds: np.ndarray
    rows: NewRows
    #: uint8, shape (rows,).
    matched: np.ndarray
    #: Their columns: bytes, and offsets of shape (rows + 1,).
    data: np.ndarray
    offsets: np.ndarray


def stored_rows(
    rows: NewRows, keys: int, matched: np.ndarray, data: np.ndarray, offsets: np.ndarray
) -> StoredRows:
    """Sort rows by their keys, of which there are so many."""
    bounds = np.zeros(keys + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows.keys, minlength=keys), out=bounds[1:])
    return StoredRows(np.argsort(rows.keys, kind="stable"), bounds, rows, matched, data, offsets)


def no_rows(keys: int) -> StoredRows:
    """Nothing for so many keys."""
    none = np.empty(0, dtype=np.int64)
    empty = np.empty(0, dtype=np.uint8)
    bounds = np.zeros(keys + 1, dtype=np.int64)
    return StoredRows(none, bounds, NewRows(0, none, none, none, none), empty, empty, bounds)
