"""Buckets of a quantile sketch (DDSketch): their bounds grow by a factor. Pure.

Which value lies in which bucket is part of the persisted form of windows and of aggregates over changelogs.
"""

from __future__ import annotations

import math

import numpy as np

#: Logarithms of positive floats are between its negative and this.
_LOG_MAX = 746.0


class QuantileBuckets:
    """Buckets for an ``error``: the value of a bucket is at most so far, relative, from those that lie in it."""

    def __init__(self, error: float) -> None:
        self._growth = (1 + error) / (1 - error)
        self._log_growth = math.log(self._growth)
        #: The bucket of the lowest positive floats is 1 or higher.
        self._offset = math.ceil(_LOG_MAX / self._log_growth) + 1
        #: The bucket of infinity: the logarithms of all floats are lower.
        self._infinite = math.ceil(_LOG_MAX / self._log_growth) + self._offset

    def of(self, values: np.ndarray) -> np.ndarray:
        """The bucket of each value that is no NaN, int64; they ascend as values do."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(values))
        logs = np.clip(logs, -_LOG_MAX, _LOG_MAX)
        places = np.ceil(logs / self._log_growth).astype(np.int64) + self._offset
        return np.where(values == 0, 0, np.where(values < 0, -places, places))

    def values(self, buckets: np.ndarray) -> np.ndarray:
        """The value that stands for all of a bucket; float64."""
        powers = (np.abs(buckets) - self._offset) * self._log_growth
        with np.errstate(over="ignore"):
            found = np.exp(powers + math.log(2 / (self._growth + 1)))
        is_finite = np.abs(buckets) < self._infinite
        found[is_finite] = np.minimum(found[is_finite], np.finfo(np.float64).max)
        found[~is_finite] = np.inf
        return np.where(buckets == 0, 0.0, np.copysign(found, buckets))
