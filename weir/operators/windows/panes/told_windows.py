"""Windows that are told: what results are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class ToldWindows(NamedTuple):
    """Some windows, each of one key, in the order in which their results leave."""

    #: Key columns.
    keys: list[pa.Array]
    #: Bounds of windows, ms; int64.
    starts_ms: np.ndarray
    ends_ms: np.ndarray
    #: Of their accumulators: int64 and uint8, a row for each window.
    cells: np.ndarray
    presence: np.ndarray
    #: Event times of results, ms; int64. None: the last ms of each window.
    given_times_ms: np.ndarray | None = None
    #: Of a step whose results are changes: their kinds.
    changes: pa.Array | None = None

    @property
    def times_ms(self) -> np.ndarray:
        """Event times of results, ms; int64."""
        return self.ends_ms - 1 if self.given_times_ms is None else self.given_times_ms

    def part(self, rows: np.ndarray) -> ToldWindows:
        """Windows with these numbers, in that order."""
        taken = pa.array(rows)
        return ToldWindows(
            [key.take(taken) for key in self.keys],
            self.starts_ms[rows],
            self.ends_ms[rows],
            self.cells[rows],
            self.presence[rows],
            None if self.given_times_ms is None else self.given_times_ms[rows],
            None if self.changes is None else self.changes.take(taken),
        )


def joined_windows(parts: Sequence[ToldWindows]) -> ToldWindows:
    """Join the windows of all parts, of which there is one at least, none with event times of its own."""
    if len(parts) == 1:
        return parts[0]
    changes = [part.changes for part in parts if part.changes is not None]
    return ToldWindows(
        [pa.concat_arrays(columns) for columns in zip(*(part.keys for part in parts), strict=True)],
        np.concatenate([part.starts_ms for part in parts]),
        np.concatenate([part.ends_ms for part in parts]),
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.presence for part in parts]),
        changes=pa.concat_arrays(changes) if changes else None,
    )
