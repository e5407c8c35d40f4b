"""Random numbers that depend on nothing but the event's number, so that any part of a stream can be made on its own."""

from __future__ import annotations

import numpy as np

_FIELDS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Independent random numbers for each field of each event; splitmix64 (Steele et al., 2014) of both."""

    def __init__(self, numbers: np.ndarray, seed: int) -> None:
        """``numbers``: of the events, int64, shape (events,)."""
        self._states = numbers.astype(np.uint64) * np.uint64(_FIELDS) + _mixed(np.array([seed], np.uint64))

    def words(self, field: int) -> np.ndarray:
        """uint64, shape (events,); ``field`` is below 64."""
        return _mixed((self._states + np.uint64(field)) * _GOLDEN)

    def below(self, field: int, bound: np.ndarray | int) -> np.ndarray:
        """Whole numbers from 0 up to, and without, ``bound`` (below 2**31); int64."""
        high = self.words(field) >> np.uint64(32)
        return ((high * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)

    def shares(self, field: int) -> np.ndarray:
        """Numbers from 0 up to, and without, 1; float64."""
        return (self.words(field) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: np.ndarray) -> np.ndarray:
    mixed: np.ndarray = words + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
