"""Rows that a step put aside before a restart and meets again: they are in its dead letters already.

A row has no position, so a letter of a step says in which deployment it was written, and after which checkpoint: the
letters that an earlier deployment wrote after the checkpoint from which this one starts are of rows that come again.
"""

from __future__ import annotations

import glob
from collections import Counter
from threading import Lock

import orjson

#: Letters that are remembered; further rows are written again.
KNOWN_MAX = 200_000


class KnownRows:
    """The known rows of a step; subtasks on a task manager share them: a row may come to another one than before."""

    def __init__(self, stem: str, generation: int, restored_id: int) -> None:
        """Make it; no file is read yet.

        Args:
            stem: path of the step's dead-letter files, without subtask index and ending.
            generation: of this deployment.
            restored_id: the checkpoint that it started from; 0: none.
        """
        self._stem = stem
        self.generation = generation
        self.restored_id = restored_id
        self._lock = Lock()
        self._left: Counter[tuple[int, str]] | None = None

    def claim(self, length_bytes: int, raw: str) -> bool:
        """Return whether the letter of a row is there; it counts for one row. ``raw`` as it is in the file."""
        with self._lock:
            if self._left is None:
                self._left = self._read()
            if not self._left[length_bytes, raw]:
                return False
            self._left[length_bytes, raw] -= 1
            return True

    def _read(self) -> Counter[tuple[int, str]]:
        """Return what the files on this machine have."""
        found: Counter[tuple[int, str]] = Counter()
        for path in sorted(glob.glob(f"{glob.escape(self._stem)}.*.jsonl")):
            with open(path, "rb") as file:
                for line in file:
                    letter = self._letter(line)
                    if letter is not None and found.total() < KNOWN_MAX:
                        found[letter] += 1
        return found

    def _letter(self, line: bytes) -> tuple[int, str] | None:
        try:
            entry = orjson.loads(line)
            comes_again = entry["generation"] < self.generation and entry["checkpoint"] >= self.restored_id
            return (entry["length"], entry["raw"]) if comes_again else None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            # Cut short by the death of a process: the row is written again.
            return None
