"""What a subtask of a source, or a step that assigns event times, knows of event time, and its watermark. Pure."""

from __future__ import annotations

from collections.abc import Hashable

_MIN_MS = -(2**63)
_MAX_MS = 2**63 - 1


class SourceWatermark:
    """Follows the highest event time at a distance, or what a generator says; never goes back."""

    def __init__(self, behind_ms: int) -> None:
        """``behind_ms``: how far the watermark stays behind the highest event time."""
        self.behind_ms = behind_ms
        #: ms since the epoch; the smallest int64 before the first one.
        self.time_ms = _MIN_MS

    def follow(self, event_time_ms_max: int) -> bool:
        """Note the highest event time so far; returns whether the watermark rises."""
        return event_time_ms_max != _MIN_MS and self.raise_to(event_time_ms_max - self.behind_ms)

    def raise_to(self, time_ms: int | None) -> bool:
        """Note a watermark that was made elsewhere, None: none; returns whether it is higher than before."""
        if time_ms is None or time_ms <= self.time_ms:
            return False
        self.time_ms = time_ms
        return True


class SplitTimes:
    """Follows the highest event time of each split that is read or will be: the lowest of them counts.

    A split that has not been begun is at the lowest time, so that nothing rises until its first row is known. Times are
    event times, or watermarks where a generator makes them; ms since the epoch.
    """

    def __init__(self) -> None:
        self._times_ms: dict[Hashable, int] = {}
        self._idle: set[Hashable] = set()
        self._highest_ms = _MIN_MS
        #: What :meth:`lowest_ms` has said at most: it never falls below.
        self.told_ms = _MIN_MS
        #: The lowest time of the splits but one, if that is known.
        self._others: tuple[Hashable, int] | None = None

    def __contains__(self, name: Hashable) -> bool:
        return name in self._times_ms

    @property
    def has_any(self) -> bool:
        """Return whether there is a split."""
        return bool(self._times_ms)

    def add(self, name: Hashable, time_ms: int = _MIN_MS) -> None:
        """A split will be read; ``time_ms``: that of its first row, or where it was at a checkpoint."""
        self._times_ms[name] = time_ms
        self._others = None

    def time_ms(self, name: Hashable) -> int:
        """Return the time of a split; the lowest time if nothing is known of it."""
        return self._times_ms.get(name, _MIN_MS)

    def follow(self, name: Hashable, time_ms: int) -> None:
        """Rows up to this time were read of a split."""
        if time_ms > self._times_ms[name]:
            self._times_ms[name] = time_ms
            if self._others is not None and self._others[0] != name:
                self._others = None

    def set_idle(self, name: Hashable, is_idle: bool) -> None:
        """A split that has had no rows for a while does not count until it has some."""
        if is_idle != (name in self._idle):
            (self._idle.add if is_idle else self._idle.discard)(name)
            self._others = None

    def end(self, name: Hashable) -> None:
        """End a split: all of it was read, and it holds nothing back."""
        self._highest_ms = max(self._highest_ms, self._times_ms.pop(name))
        self._idle.discard(name)
        self._others = None

    def lowest_ms(self) -> int:
        """How far the subtask has come; if no split counts, the highest time of all, in whatever order they ended."""
        self.told_ms = max(self.told_ms, self._lowest_ms())
        return self.told_ms

    def _lowest_ms(self) -> int:
        if self._others is not None and self._others[0] not in self._idle:
            name, others_ms = self._others
            return min(self._times_ms[name], others_ms)
        active = [at for name, at in self._times_ms.items() if name not in self._idle]
        return min(active) if active else max([self._highest_ms, *self._times_ms.values()])

    def others_ms(self, name: Hashable) -> int:
        """The lowest time of the splits but one; the highest time there is if no other counts."""
        if self._others is None or self._others[0] != name:
            known = (at for other, at in self._times_ms.items() if other != name and other not in self._idle)
            self._others = (name, min(known, default=_MAX_MS))
        return self._others[1]
