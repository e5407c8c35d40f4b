"""How keyed operators tell every version of the rows of their keys, as if each row came alone (``every_version``).

Where no loop does it for all rows of a batch at once, rows are taken in turns: the first of each key, then the second
ones. Versions of one key do not hang on rows of others, so this is what each row alone would tell. Either way what is
told leaves in the order of the rows because of which it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from weir.rows.fired_rows import by_turn
from weir.state.handles.block import Keys

#: What is told because of some rows, and the number of the row because of which each row of it is told; int64.
Caused = tuple[pa.RecordBatch, np.ndarray]


def told_of(
    batch: pa.RecordBatch,
    keys_of: Callable[[pa.RecordBatch], Keys],
    tell: Callable[[pa.RecordBatch], Iterable[Caused]],
    *,
    every_version: bool,
) -> Iterator[pa.RecordBatch]:
    """What rows change, all of them together, or with ``every_version`` each by itself.

    Args:
        batch: the rows.
        keys_of: returns their keys.
        tell: what some rows change together.
        every_version: as specs say it.
    """
    if every_version:
        return in_order(in_turns(batch, keys_of(batch).inverse, tell))
    return (told for told, _ in tell(batch))


def in_turns(
    batch: pa.RecordBatch, keys: np.ndarray, tell: Callable[[pa.RecordBatch], Iterable[Caused]]
) -> Iterator[Caused]:
    """Have rows told so that no two of a key are in one call.

    Args:
        batch: all rows.
        keys: position of each row's key; int64.
        tell: what some rows change.
    """
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[order][1:] != keys[order][:-1]
    every = np.arange(len(keys))
    turns = np.empty(len(keys), dtype=np.int64)
    turns[order] = every - np.maximum.accumulate(np.where(is_first, every, 0))
    by_turn = np.argsort(turns, kind="stable")
    for rows in np.split(by_turn, np.cumsum(np.bincount(turns))[:-1]):
        part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
        for told, causes in tell(part):
            yield told, rows[causes]


def in_order(caused: Iterable[Caused]) -> Iterator[pa.RecordBatch]:
    """What is told, in the order of the rows because of which it is."""
    found = [each for each in caused if each[0].num_rows]
    yield from by_turn([told for told, _ in found], [causes for _, causes in found])
