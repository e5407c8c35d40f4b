"""Runs of keys, each in order, become blocks of keys in order: one key at a time would take ten times as long."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from weir.state import wanted

#: After about so many entries a scan looks whether it may go on.
BLOCK_ROWS = 10_000
#: Keys of each run that are read at a time without a look which runs have those that are wanted: so many or more.
_SHARE_MIN = 16

#: User keys and what they have, in order.
Entries = Iterator[tuple[bytes, Any]]


def merged_runs(
    runs: Iterable[Entries], rows: int, check: Callable[[], None], *, reverse: bool, cut_bytes: int = 0
) -> Iterator[list[tuple[bytes, Any]]]:
    """User keys of all runs in order, many at a time; what a key has in several runs is in one block, run by run.

    Each run has gone on after what is in a block. Of many runs few have the first keys, so only these are read on.

    Args:
        runs: each in the order of keys.
        rows: about so many are wanted.
        check: called after a few hundred rows each; may wait, and raises what ends the question.
        reverse: from the last key to the first.
        cut_bytes: how many bytes of the keys of runs come before the user key.
    """
    listed = [_Run(entries, cut_bytes, reverse=reverse) for entries in runs]
    left = rows = min(rows, BLOCK_ROWS)
    while listed:
        share = _share_of(left, len(listed))
        _fill([(run, share) for run in listed if len(run.entries) < share], check)
        last = None
        if share < _SHARE_MIN:
            last = _last_wanted(listed, left, reverse=reverse)
            while lacking := [run for run in listed if not run.is_beyond(last)]:
                _fill([(run, len(run.entries) + max(len(run.entries) // 2, 1)) for run in lacking], check)
                last = _last_wanted(listed, left, reverse=reverse)
        before = _first_open(listed, reverse=reverse)
        block = [entry for run in listed for entry in run.take(last, before)]
        listed = [run for run in listed if run.entries or not run.is_over]
        # Runs are sorted already, which the sort makes use of.
        block.sort(key=itemgetter(0), reverse=reverse)
        left -= len(block)
        if left <= 0:
            left = rows
        if block:
            yield block


def _share_of(rows: int, runs: int) -> int:
    """How many keys of each run are read at first: most have no more of the ``rows`` that are wanted."""
    mean = rows // max(runs, 1)
    return mean + math.isqrt(mean) + 1


def _fill(wanted_of: Sequence[tuple[_Run, int]], check: Callable[[], None]) -> None:
    """Read runs on, each up to so many keys."""
    with wanted.reading_on({run.reader for run, _ in wanted_of}):
        for run, count in wanted_of:
            run.fill(count)
            check()


def _last_wanted(runs: Sequence[_Run], count: int, *, reverse: bool) -> bytes | None:
    """The last of the first ``count`` keys that have been read; None: there are fewer."""
    keys = {key for run in runs for key, _ in run.entries}
    return sorted(keys, reverse=reverse)[count - 1] if len(keys) >= count else None


def _first_open(runs: Sequence[_Run], *, reverse: bool) -> bytes | None:
    """The first of the last keys that have been read of runs that go on; None: all are over."""
    lasts = [run.entries[-1][0] for run in runs if not run.is_over]
    if not lasts:
        return None
    return max(lasts) if reverse else min(lasts)


class _Run:
    """The entries of one run, in order."""

    def __init__(self, entries: Entries, cut_bytes: int, *, reverse: bool) -> None:
        self._source, self._cut_bytes, self._reverse = entries, cut_bytes, reverse
        self.entries: list[tuple[bytes, Any]] = []
        self.is_over = False
        #: See ``weir.state.wanted``; this itself would keep what has been read alive.
        self.reader = object()

    def fill(self, count: int) -> None:
        """Read on, so that there are at least as many; fewer: there are no more."""
        missing = count - len(self.entries)
        if missing > 0 and not self.is_over:
            cut = self._cut_bytes
            with wanted.by(self.reader):
                more = [(key[cut:], found) for key, found in islice(self._source, missing)]
            self.is_over = len(more) < missing
            self.entries += more

    def is_beyond(self, last: bytes | None) -> bool:
        """Return whether nothing up to this key (None: at all) is to be read any more."""
        if self.is_over:
            return True
        if last is None or not self.entries:
            return False
        key = self.entries[-1][0]
        return key < last if self._reverse else key > last

    def take(self, last: bytes | None, before: bytes | None) -> list[tuple[bytes, Any]]:
        """Entries up to a key, and before another one, which go; None: there is no such bound."""
        count = len(self.entries)
        if last is not None:
            count = self._place(last, after=True)
        elif before is not None:
            count = self._place(before, after=False)
        taken, self.entries = self.entries[:count], self.entries[count:]
        return taken

    def _place(self, key: bytes, *, after: bool) -> int:
        """How many entries come before a key, or (``after``) up to it."""
        if self._reverse:
            return bisect_left(
                self.entries, True, key=lambda entry: entry[0] < key if after else entry[0] <= key
            )
        return (bisect_right if after else bisect_left)(self.entries, key, key=itemgetter(0))
