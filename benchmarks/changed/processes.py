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
        handle.put(row["at"], row["at"])
        return str([start for start, _ in handle.fetch(0, row["at"])])
    if isinstance(state, weir.SessionState):
        handle.put(row["at"], row["at"], row["at"])
        return str([session.start_ms for session in handle.find(0, row["at"])])
    before: Any = handle.value
    if isinstance(before, str):
        handle.value = before + row["word"]
        return str(handle.value)
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

    def forget(self, state: Any, watermark_ms: int) -> None:
        """Drop what has expired at a watermark; the latest version stays."""
        if isinstance(state, weir.VersionedState):
            return
        if self.value is not None and not _is_live(state, self.written_ms, watermark_ms):
            self.value = None
        self.items = [(item, at) for item, at in self.items if _is_live(state, at, watermark_ms)]
        self.counts = {
            word: kept for word, kept in self.counts.items() if _is_live(state, kept[1], watermark_ms)
        }

    def take(self, state: Any, row: Row) -> str:
        """As :func:`_taken`; what has expired for a row may be there for one of an earlier time, but in lists."""
        at = row["at"]
        if isinstance(state, weir.ListState):
            self.forget(state, at)
            self.items.append((at, at))
            return str([item for item, _ in self.items])
        if isinstance(state, weir.MapState):
            live = {word: n for word, (n, then) in self.counts.items() if _is_live(state, then, at)}
            live[row["word"]] = live.get(row["word"], 0) + 1
            self.counts[row["word"]] = (live[row["word"]], at)
            return str(sorted(live.items()))
        if isinstance(state, weir.WindowState | weir.SessionState):
            # It is there as long as its time is not before the retention.
            self.items.append((at, at + 1))
            return str([item for item, then in self.items if _is_live(state, then, at)])
        self.forget(state, at)
        self.written_ms = at
        if isinstance(state, weir.VersionedState):
            self.value = (self.value or 0) + 1
            return str(self.value)
        default: Any = state.default
        if isinstance(default, str):
            self.value = (self.value or default) + row["word"]
            return str(self.value)
        if hasattr(default, "n"):
            self.value = (self.value or 0) + 1
            return str(dataclasses.astuple(dataclasses.replace(default, n=self.value)))
        self.value = (default if self.value is None else self.value) + 1
        return str(type(default)(self.value))


def _is_live(state: Any, written_ms: int, now_ms: int) -> bool:
    """Whether what was written then has not expired."""
    ttl: weir.Ttl | None = state.ttl
    return ttl is None or written_ms + ttl.duration_ms > now_ms
