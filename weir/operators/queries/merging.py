"""Runs of keys, each in order, become blocks of keys in order: one key at a time would take ten times as long."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

#: After about so many entries a scan looks whether it may go on.
BLOCK_ROWS = 10_000
#: What is read of one run at a time, at least.
_SHARE_MIN = 16

#: User keys and what they have, in order.
Entries = Iterator[tuple[bytes, Any]]


def merged_runs(
    runs: Iterable[Entries], rows: int, check: Callable[[], None], *, reverse: bool, cut_bytes: int = 0
) -> Iterator[list[tuple[bytes, Any]]]:
    """User keys of all runs in order, many at a time; what a key has in several runs is in one block, run by run.

    Args:
        runs: each in the order of keys.
        rows: about so many are wanted.
        check: called after a few hundred rows each; may wait, and raises what ends the question.
        reverse: from the last key to the first.
        cut_bytes: how many bytes of the keys of runs come before the user key.
    """
    listed = [_Run(entries, cut_bytes) for entries in runs]
    share = min(rows, BLOCK_ROWS) // max(len(listed), 1) + _SHARE_MIN
    while listed:
        for run in listed:
            run.fill(share)
            check()
        # What is before the last key that was read of each run is all there is before it.
        lasts = [run.entries[-1][0] for run in listed if not run.is_over]
        if not lasts:
            block = [entry for run in listed for entry in run.entries]
            listed = []
        else:
            bound = max(lasts) if reverse else min(lasts)
            block = [entry for run in listed for entry in run.take(bound, reverse=reverse)]
            listed = [run for run in listed if run.entries or not run.is_over]
        # Runs are sorted already, which the sort makes use of.
        block.sort(key=itemgetter(0), reverse=reverse)
        if block:
            yield block


class _Run:
    """The entries of one run, in order."""

    def __init__(self, entries: Entries, cut_bytes: int) -> None:
        self._source, self._cut_bytes = entries, cut_bytes
        self.entries: list[tuple[bytes, Any]] = []
        self.is_over = False

    def fill(self, count: int) -> None:
        """Read on, so that there are at least as many; fewer: there are no more."""
        missing = count - len(self.entries)
        if missing > 0 and not self.is_over:
            cut = self._cut_bytes
            more = [(key[cut:], found) for key, found in islice(self._source, missing)]
            self.is_over = len(more) < missing
            self.entries += more

    def take(self, bound: bytes, *, reverse: bool) -> list[tuple[bytes, Any]]:
        """Entries up to this key, which go."""
        if reverse:
            count = bisect_left(self.entries, True, key=lambda entry: entry[0] < bound)
        else:
            count = bisect_right(self.entries, bound, key=itemgetter(0))
        taken, self.entries = self.entries[:count], self.entries[count:]
        return taken
