"""Combine the watermarks of several inputs: the minimum over those that are neither idle nor ended."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from weir.types import ChannelId

_MIN_MS = -(2**63)
_MAX_MS = 2**63 - 1


class WatermarkTracker:
    """State of one subtask's inputs, named by anything hashable. Pure; called by the subtask's loop.

    The combined watermark never falls: an input that wakes up with a lower one holds it where it is. When no input is
    left that counts, because all are idle or at their end, it is the highest that any has come to, whichever was idle
    first. An input at its end (the highest time) counts no more, and it is the end of time only when all are.
    """

    def __init__(self, inputs: Iterable[Hashable]) -> None:
        #: The combined watermark, ms since the epoch.
        self.combined_ms = _MIN_MS
        self._watermarks_ms = dict.fromkeys(inputs, _MIN_MS)
        self._idle: set[Hashable] = set()
        #: That any input has come to, except the end of time.
        self.highest_ms = _MIN_MS

    @property
    def has_open_inputs(self) -> bool:
        """Return whether there are inputs that have not ended."""
        return bool(self._watermarks_ms)

    def is_open(self, name: Hashable) -> bool:
        """Return whether it is an input that has not ended."""
        return name in self._watermarks_ms

    @property
    def active_count(self) -> int:
        """How many of them are not idle."""
        return len(self._watermarks_ms) - len(self._idle)

    @property
    def all_idle(self) -> bool:
        """Return whether every open input is idle, and there is one."""
        return bool(self._watermarks_ms) and len(self._idle) == len(self._watermarks_ms)

    def known(self) -> list[tuple[Hashable, int, bool]]:
        """Return the name of each open input, its watermark and whether it is idle; also for other threads."""
        idle = self._idle.copy()
        return [(name, at, name in idle) for name, at in self._watermarks_ms.copy().items()]

    def add(self, name: Hashable) -> None:
        """A new input: it holds the combined watermark where it is until its own passes it."""
        self._watermarks_ms.setdefault(name, self.combined_ms)

    def restore(self, combined_ms: int, watermarks_ms: Mapping[Hashable, int]) -> None:
        """Begin where a checkpoint was; inputs that are not named begin anew."""
        for name, time_ms in watermarks_ms.items():
            self._watermarks_ms[name] = time_ms
        self.combined_ms = combined_ms
        self.highest_ms = max(combined_ms, *watermarks_ms.values()) if watermarks_ms else combined_ms

    def advance(self, name: Hashable, time_ms: int) -> int | None:
        """Note a watermark; returns the new combined one if that rises, else None."""
        self._idle.discard(name)
        self._watermarks_ms[name] = max(self._watermarks_ms[name], time_ms)
        if self.highest_ms < time_ms != _MAX_MS:
            self.highest_ms = time_ms
        return self._raise()

    def mark_active(self, name: Hashable) -> None:
        """Note data on an input: it holds the watermark back again."""
        if self._idle:
            self._idle.discard(name)

    def mark_idle(self, name: Hashable) -> int | None:
        """Note that an input has nothing for now; returns the new combined watermark if that rises."""
        self._idle.add(name)
        return self._raise()

    def end(self, name: Hashable) -> int | None:
        """Note that an input has ended; returns the new combined watermark if that rises."""
        self._idle.discard(name)
        del self._watermarks_ms[name]
        return self._raise()

    def known_ms(self, name: Hashable) -> int:
        """The watermark of an input; the lowest time of one that is not open."""
        return self._watermarks_ms.get(name, _MIN_MS)

    def others_ms(self, name: Hashable, among: Collection[Hashable] | None = None) -> int:
        """The lowest watermark of the inputs but this one that are not idle; the highest time if there is none.

        ``among``: of these alone.
        """
        if len(self._watermarks_ms) == 1:
            return _MAX_MS
        idle = self._idle
        known = (
            at
            for other, at in self._watermarks_ms.items()
            if other != name and other not in idle and (among is None or other in among)
        )
        return min(known, default=_MAX_MS)

    def lowest_ms(self, names: Iterable[Hashable]) -> int:
        """The lowest watermark of these inputs, also of those that are idle; the highest time if they have ended."""
        known = self._watermarks_ms
        return min((known[name] for name in names if name in known), default=_MAX_MS)

    def _raise(self) -> int | None:
        idle = self._idle
        # An input at its end is at the highest time: it is the lowest only when no other counts.
        lowest_ms = min((at for name, at in self._watermarks_ms.items() if name not in idle), default=_MAX_MS)
        if lowest_ms == _MAX_MS and idle:
            lowest_ms = self.highest_ms
        if lowest_ms <= self.combined_ms:
            return None
        self.combined_ms = lowest_ms
        return lowest_ms


def channels_by_edge(channels: Iterable[ChannelId]) -> dict[int, list[ChannelId]]:
    """The channels of each input of a step."""
    found: dict[int, list[ChannelId]] = {}
    for channel in channels:
        found.setdefault(channel.edge_index, []).append(channel)
    return found
