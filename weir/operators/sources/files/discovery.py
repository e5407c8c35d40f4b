"""Which of the files or splits that turn up while a job runs are a subtask's: each is exactly one's, without asking."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence


class Discovery:
    """Remembers what a subtask has taken in; the others are of the subtasks that their names fall to.

    Args:
        rank: of this subtask among all.
        subtasks: their number.
        known: what any subtask had taken in at the checkpoint that the job starts from.
        mine: that part of it for which this subtask answers in its snapshots.
    """

    def __init__(self, rank: int, subtasks: int, known: Iterable[str] = (), mine: Iterable[str] = ()) -> None:
        self._rank = rank
        self._subtasks = subtasks
        self._mine = set(mine)
        self._known = {*known, *self._mine}

    def is_known(self, name: str) -> bool:
        """Return whether it is in no case new for this subtask."""
        return name in self._known or not self._falls_here(name)

    def new(self, listed: Sequence[str], unfinished: Collection[str]) -> list[str]:
        """Take in what is new and falls to this subtask, in the order given.

        What is listed no more is forgotten, so that snapshots stay small: if the name comes back, it is another one.
        When nothing at all is listed, nothing is forgotten: a directory looks like that while its disk is not mounted.

        Args:
            listed: everything that is there now.
            unfinished: what this subtask still reads; it is remembered in any case.
        """
        if listed:
            there = {*listed, *unfinished}
            self._known &= there
            self._mine &= there
        new = [name for name in listed if not self.is_known(name)]
        self._known.update(new)
        self._mine.update(new)
        return new

    def done(self, unfinished: Collection[str]) -> list[str]:
        """What this subtask has read to its end and is still there, sorted."""
        return sorted(self._mine - set(unfinished))

    def _falls_here(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self._subtasks == self._rank
