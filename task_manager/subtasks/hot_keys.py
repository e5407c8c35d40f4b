"""Which keys most rows of a subtask are of: a space-saving sketch of the samples that ``row_sample`` takes.

Source: Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005).
A key that has no counter takes the smallest one over, with its count as what may be wrong. What is told is without
that: never more than the key really had in the samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_COUNTERS = 64
#: New keys of one sample that get a counter: those with most rows.
_NEW_MAX = 16
#: Keys with a smaller share are not told: a sample has some thousand rows.
_SHARE_MIN = 0.01
#: Characters of a key that are told.
TEXT_MAX = 60


class HotKeys:
    """The sketch of one subtask; for one thread.

    Args:
        kept_share: by so much earlier samples count less with each sample.
    """

    def __init__(self, kept_share: float) -> None:
        self._kept_share = kept_share
        self._hashes: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._counts: npt.NDArray[np.float64] = np.zeros(0)
        self._errors: npt.NDArray[np.float64] = np.zeros(0)
        self._texts: list[str] = []
        self._rows = 0.0

    def add(self, hashes: npt.NDArray[np.uint64], text_of: Callable[[int], str]) -> None:
        """Take a sample in.

        Args:
            hashes: of the keys of its rows, uint64.
            text_of: returns the key of a row as text; called for few.
        """
        self._counts *= self._kept_share
        self._errors *= self._kept_share
        self._rows = self._rows * self._kept_share + len(hashes)
        found, first_rows, counts = np.unique(hashes, return_index=True, return_counts=True)
        places = np.searchsorted(found, self._hashes)
        places[places == len(found)] = 0
        known = found[places] == self._hashes if len(found) else np.zeros(len(places), bool)
        self._counts[known] += counts[places[known]]
        is_new = np.ones(len(found), bool)
        is_new[places[known]] = False
        new = np.flatnonzero(is_new)
        if len(new) > _NEW_MAX:
            new = new[np.argpartition(counts[new], -_NEW_MAX)[-_NEW_MAX:]]
        for at in new.tolist():
            self._enter(found[at], float(counts[at]), text_of(int(first_rows[at])))

    def _enter(self, key_hash: np.uint64, count: float, text: str) -> None:
        if len(self._texts) < _COUNTERS:
            self._hashes = np.append(self._hashes, key_hash)
            self._counts, self._errors = np.append(self._counts, count), np.append(self._errors, 0.0)
            self._texts.append(text)
            return
        smallest = int(self._counts.argmin())
        self._hashes[smallest], self._texts[smallest] = key_hash, text
        self._errors[smallest] = self._counts[smallest]
        self._counts[smallest] += count

    def top(self, count: int) -> list[tuple[str, int, float]]:
        """The keys with most rows, the hottest first: text, hash, and share of all rows, 0 to 1."""
        shares = (self._counts - self._errors) / max(self._rows, 1.0)
        order = np.argsort(-shares, kind="stable")[:count]
        return [
            (self._texts[at], int(self._hashes[at]), float(shares[at]))
            for at in order.tolist()
            if shares[at] >= _SHARE_MIN
        ]
