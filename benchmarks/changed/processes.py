"""Processes with declared states, and what these hold from scratch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import weir
from benchmarks.changed.rows import Row


@dataclasses.dataclass
class Small:
    """As it was."""

    n: int


@dataclasses.dataclass
class Wide:
    """A nullable field more."""

    n: int
    note: int | None = None


@dataclasses.dataclass
class Must:
    """A field more that is never null."""

    n: int
    note: int = 0


def process_class(states: Mapping[str, Any], keys: Sequence[str]) -> type:
    """A process that tells, with each row, what its states hold: counts and lists of the key's rows."""

    class Counting(weir.KeyedProcess):
        def process(self, key: Any, row: Row, context: Any) -> Iterator[Row]:
            told = {name: _taken(getattr(self, name), states[name], row) for name in states}
            yield {**{name: row[name] for name in keys}, "at": row["at"], **told}

    for name, state in states.items():
        declared = copy.copy(state)
        setattr(Counting, name, declared)
        declared.__set_name__(Counting, name)
    return Counting


def _taken(handle: Any, state: Any, row: Row) -> str:
    if isinstance(state, weir.ListState):
        handle.append(row["at"])
        return str(list(handle))
    if isinstance(state, weir.MapState):
        handle[row["word"]] = handle.get(row["word"], 0) + 1
        return str(sorted(handle.items()))
    if isinstance(state, weir.VersionedState):
        handle.put((handle.get() or 0) + 1, row["at"])
        return str(handle.get())
    if isinstance(state, weir.WindowState):
        handle.put(1, row["at"])
        return str(len(list(handle.fetch(0, row["at"]))))
    if isinstance(state, weir.SessionState):
        handle.put(1, row["at"], row["at"])
        return str(len(list(handle.find(0, row["at"]))))
    before: Any = handle.value
    if hasattr(before, "n"):
        handle.value = dataclasses.replace(before, n=before.n + 1)
        return str(dataclasses.astuple(handle.value))
    handle.value = before + 1
    return str(handle.value)


class Held:
    """What one state of one key holds, in plain Python."""

    def __init__(self) -> None:
        self.value: Any = None
        self.items: list[tuple[int, int]] = []
        self.counts: dict[str, tuple[int, int]] = {}
        self.written_ms = 0

    def forget(self, ttl_ms: int | None, now_ms: int) -> None:
        """Drop what has expired at a time."""
        if ttl_ms is None:
            return
        if self.value is not None and self.written_ms + ttl_ms <= now_ms:
            self.value = None
        self.items = [(item, at) for item, at in self.items if at + ttl_ms > now_ms]
        self.counts = {word: (n, at) for word, (n, at) in self.counts.items() if at + ttl_ms > now_ms}

    def take(self, state: Any, row: Row) -> str:
        """As :func:`_taken`."""
        at = row["at"]
        if isinstance(state, weir.ListState):
            self.items.append((at, at))
            return str([item for item, _ in self.items])
        if isinstance(state, weir.MapState):
            self.counts[row["word"]] = (self.counts.get(row["word"], (0, 0))[0] + 1, at)
            return str(sorted((word, n) for word, (n, _) in self.counts.items()))
        self.written_ms = at
        if isinstance(state, weir.VersionedState | weir.WindowState | weir.SessionState):
            self.value = (self.value or 0) + 1
            return str(self.value)
        default: Any = state.default
        if hasattr(default, "n"):
            self.value = (self.value or 0) + 1
            return str(dataclasses.astuple(dataclasses.replace(default, n=self.value)))
        self.value = (default if self.value is None else self.value) + 1
        return str(type(default)(self.value))
