"""Which keys have much of the rows that are sent, by samples of their hashes; used where rows are added up before that.

Pure. A look costs 20 µs; where no key is hot, one batch in sixteen is looked at, so uniform keys pay nothing that could
be measured.
"""

from __future__ import annotations

import numpy as np

#: Of a batch so many rows are looked at, evenly spread.
_SAMPLE = 512
#: A key is hot with at least this share of the rows, if all hot ones together have at least the other one: to add rows
#: up costs a look at each row of the batch.
_KEY_SHARE, _SHARE = 1 / 16, 0.25
#: Keys that are hot at a time; those with most rows.
_KEYS_MAX = 8
#: Batches that pass without a look after one without a hot key.
_PASSED = 15


class HotKeySample:
    """Looks at the batches of one channel group; for one thread."""

    def __init__(self) -> None:
        self._passed = 0

    def is_due(self) -> bool:
        """Return whether the next batch is to be looked at; a batch passes if it is not."""
        if self._passed > 0:
            self._passed -= 1
            return False
        return True

    def rows_of_hot_keys(self, hashes: np.ndarray) -> np.ndarray:
        """Rows whose keys are hot; int64, ascending. None at all: the next batches pass.

        Args:
            hashes: of the keys of a batch; uint64, shape (rows,).
        """
        sample = hashes[:: max(1, len(hashes) // _SAMPLE)]
        values, counts = np.unique(sample, return_counts=True)
        is_hot = counts >= max(2.0, _KEY_SHARE * len(sample))
        found, counts = values[is_hot], counts[is_hot]
        if counts.sum() >= _SHARE * len(sample):
            mask = np.zeros(len(hashes), dtype=np.bool_)
            for value in found[np.argsort(-counts, kind="stable")[:_KEYS_MAX]]:
                mask |= hashes == value
            rows = np.flatnonzero(mask)
            # Keys that come in turn may all miss the sample but one.
            if len(rows) >= _SHARE / 2 * len(hashes):
                return rows
        self._passed = _PASSED
        return np.empty(0, dtype=np.int64)
