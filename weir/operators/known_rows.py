"""Rows that a step put aside before a restart and meets again: they are in its dead letters already.

A row has no position, so a letter of a step says in which deployment it was written, and after which checkpoint: the
letters that an earlier deployment wrote after the checkpoint from which this one starts are of rows that come again.
A deployment that meets such a row, or dies before, may have completed checkpoints before it does. So the file
``<step>.met`` beside the letters says of each deployment from which checkpoint it started, and of each row that it met
again after which checkpoint that was. A task manager that was given up may go on for a while: it writes no letter once
a newer deployment has said that it began, since all its rows come again there.
"""

from __future__ import annotations

import glob
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

from weir.security.private_files import private_directory

log = logging.getLogger(__name__)

#: Letters that are remembered; further rows are written again.
KNOWN_MAX = 200_000
#: In place of the checkpoint after which a row was seen: its deployment died before it came.
_STILL_COMING = 2**63


class KnownRows:
    """The known rows of a step; subtasks on a task manager share them: a row may come to another one than before."""

    def __init__(self, stem: str, generation: int, restored_id: int) -> None:
        """Make it; no letter is read yet.

        Args:
            stem: path of the step's dead-letter files, without subtask index and ending.
            generation: of this deployment.
            restored_id: the checkpoint that it started from; 0: none.
        """
        self._stem = stem
        self.generation = generation
        self.restored_id = restored_id
        self._lock = Lock()
        self._left: Counter[str] | None = None
        #: Whether a newer deployment runs, and how much of the file beside the letters was looked at for that.
        self._is_over, self._looked_bytes = False, 0
        if generation > 1 or self._paths():
            with suppress(OSError):
                # That there is no folder is said where the file cannot be written.
                private_directory(Path(stem).parent)
            self._note({"restored": restored_id})

    def claim(self, length_bytes: int, raw: str, checkpoint_id: int) -> bool:
        """Return whether the letter of a row is there, or is a newer deployment's to write; it counts for one row.

        Args:
            length_bytes: of the row.
            raw: as it is in the file.
            checkpoint_id: the last one whose barrier the step has seen.
        """
        with self._lock:
            if self._has_successor():
                return True
            if self._left is None:
                self._left = self._read()
            row = _digest(length_bytes, raw)
            if not self._left[row]:
                return False
            self._left[row] -= 1
            self._note({"checkpoint": checkpoint_id, "row": row})
            return True

    def _has_successor(self) -> bool:
        """Whether a newer deployment has begun. Asked for each row: only what was added is read."""
        path = Path(f"{self._stem}.met")
        if self._is_over or not path.exists() or path.stat().st_size == self._looked_bytes:
            return self._is_over
        with path.open("rb") as file:
            file.seek(self._looked_bytes)
            added = file.read()
        # A line that is being written is read again.
        self._looked_bytes += added.rfind(b"\n") + 1
        began = [entry["generation"] for entry in _entries_of(added.splitlines(), "restored")]
        self._is_over = max(began, default=0) > self.generation
        return self._is_over

    def _paths(self) -> list[str]:
        return sorted(glob.glob(f"{glob.escape(self._stem)}.*.jsonl"))

    def _note(self, what: Mapping[str, object]) -> None:
        """Task managers of one machine share the file: a line is one write, which the system appends as a whole."""
        line = orjson.dumps({"generation": self.generation, **what})
        try:
            with open(f"{self._stem}.met", "ab", buffering=0) as file:
                # A full disk may have cut the line before short.
                file.write(b"\n" + line + b"\n")
        except OSError as error:
            log.warning(
                "cannot write %s.met: %s; after a restart rows may be in the dead letters twice: make room, or the "
                "file writable",
                self._stem,
                error.strerror,
            )

    def _read(self) -> Counter[str]:
        """Return what the files on this machine have."""
        restored: dict[int, int] = {}
        met: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        written: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        beside = glob.glob(f"{glob.escape(self._stem)}.met")
        for entry in _entries(beside, "restored"):
            restored[entry["generation"]] = entry["restored"]
        for entry in _entries(beside, "row", "checkpoint"):
            met[entry["generation"]].append((entry["row"], entry["checkpoint"]))
        # Who was given up may have written its first letter since this deployment began.
        for entry in islice(_entries(self._paths(), "length", "raw", "checkpoint"), KNOWN_MAX):
            row = _digest(entry["length"], entry["raw"])
            written[entry["generation"]].append((row, entry["checkpoint"]))
        earlier = sorted(number for number in {*restored, *met, *written} if number < self.generation)
        return rows_that_come(
            [(restored.get(number), met[number], written[number]) for number in earlier], self.restored_id
        )


def rows_that_come(
    deployments: Iterable[tuple[int | None, Iterable[tuple[str, int]], Iterable[tuple[str, int]]]],
    restored_id: int,
) -> Counter[str]:
    """How often each row whose letter is there comes again.

    Args:
        deployments: of each, the oldest first: the checkpoint that it started from (None: nobody knows), the rows that
            it met again, and those that it wrote; a row with the last checkpoint before it.
        restored_id: the checkpoint that the next deployment starts from.
    """
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for started_id, met, written in deployments:
        if started_id is not None:
            for row, ids in seen.items():
                seen[row] = [_STILL_COMING if at >= started_id else at for at in ids]
        for row, at in met:
            if ids := seen[row]:
                ids.remove(max(ids))
            seen[row].append(at)
        for row, at in written:
            seen[row].append(at)
    return Counter({row: sum(at >= restored_id for at in ids) for row, ids in seen.items()})


def _entries(paths: Iterable[str], *keys: str) -> Iterator[dict[str, Any]]:
    """The entries with these keys of lines that are whole: what the death of a process cut short is written again."""
    for path in paths:
        with open(path, "rb") as file:
            yield from _entries_of(file, *keys)


def _entries_of(lines: Iterable[bytes], *keys: str) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(entry, dict) and entry.keys() >= {"generation", *keys}:
            yield entry


def _digest(length_bytes: int, raw: str) -> str:
    return f"{length_bytes}.{blake2b(raw.encode(), digest_size=16).hexdigest()}"
