"""How far event time has come: at a source and its splits, and over a subtask's inputs; when it is told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from weir.types import ChannelId

_MIN_MS = -(2**63)
_MAX_MS = 2**63 - 1
#: Watermarks that a subtask sends in one interval of its sources, at most; and where rows go with them.
_PER_INTERVAL_MAX, _BUSY_PER_INTERVAL_MAX = 3, 12
#: With so many rows since the last one a watermark costs little beside them, and there is something to wait for it.
_BUSY_ROWS = 32
#: The same where a source reads as fast as it can.
_CATCH_UP_ROWS = 1_024
#: Moments in an interval at which a source may send one sooner.
_SOON_PER_INTERVAL = 8


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


class WatermarkForward:
    """Sources send their watermarks at the same moments, so that the combined one rises once for each of them.

    Where it rises more often, the first is passed on at once and the next ones are gathered for a third of the
    interval, or less where many rows pass. So the delays of all stages together are far below one interval.
    """

    def __init__(self, interval_ms: float, *, soon: bool = True) -> None:
        """``interval_ms``: between two watermarks of a source; ``soon``: some step of the job waits for them."""
        self._soon = soon
        self._interval_s = interval_ms / 1e3
        self._sent_ms = _MIN_MS
        self._sent_rows = 0
        self._sent_s = float("-inf")
        #: Monotonic second at which :meth:`take` has something; infinity: nothing waits.
        self.due_s = float("inf")

    def take(self, visible_ms: int, now_s: float, rows: int = 0, *, ends_wave: bool = False) -> bool:
        """Return whether ``visible_ms`` is to be sent now; the caller does so then.

        Args:
            visible_ms: the watermark.
            now_s: monotonic seconds.
            rows: passed so far.
            ends_wave: it ends what has just been sent, and consumers wait for it.
        """
        if visible_ms <= self._sent_ms:
            self.due_s = float("inf")
            return False
        is_busy = self._soon and rows - self._sent_rows >= _BUSY_ROWS
        self.due_s = self._sent_s + self._interval_s / (
            _BUSY_PER_INTERVAL_MAX if is_busy else _PER_INTERVAL_MAX
        )
        if now_s < self.due_s and not ends_wave:
            return False
        self._sent_ms, self._sent_s, self.due_s = visible_ms, now_s, float("inf")
        self._sent_rows = rows
        return True

    def take_before_idleness(self, visible_ms: int) -> bool:
        """Whether consumers, whom the caller tells of idleness, were not told of this watermark; nothing waits then."""
        self.due_s = float("inf")
        return visible_ms > self._sent_ms

    def again(self) -> None:
        """Consumers were told of idleness, which is over: they need the watermark, also if it has not risen."""
        self._sent_ms = _MIN_MS


class WatermarkTimes:
    """When a source sends its watermark: at the same moments in all sources, so that combined ones rise once.

    That is once in an interval. A source that has nothing to read for a moment, and has read many rows since the last
    watermark, sends one sooner: somebody waits for it, and beside the rows it costs little. One that reads as fast as
    it can does not: what it reads is old anyway, and windows that end together cost less. But it goes through minutes
    of event time in an interval: what a join keeps of another input meanwhile costs more than the watermark.
    """

    def __init__(self, interval_ms: float, *, soon: bool = True, in_backlogs: bool = False) -> None:
        """A source that has sent none.

        Args:
            interval_ms: between two watermarks.
            soon: some step of the job waits for them.
            in_backlogs: also while the source reads as fast as it can, as some step keeps rows until they come.
        """
        self._soon, self._in_backlogs = soon, in_backlogs
        self._interval_us = int(interval_ms * 1e3)
        self._soon_us = max(self._interval_us // _SOON_PER_INTERVAL, 1)
        #: Monotonic second of the next regular one.
        self.next_s = 0.0
        self._soon_s = 0.0
        self._sent_rows = 0

    def take(self, now_s: float, wall_us: int, rows: int, *, is_calm: bool, ends_wave: bool = False) -> bool:
        """Return whether it is time now; the caller sends it then.

        Args:
            now_s: monotonic seconds.
            wall_us: the same moment by the wall clock, epoch µs.
            rows: read so far.
            is_calm: there is nothing to read for a moment.
            ends_wave: it ends what all sources read at this moment.
        """
        may_be_soon = self._soon and (is_calm or self._in_backlogs) and now_s >= self._soon_s
        is_soon = may_be_soon and rows - self._sent_rows >= (_BUSY_ROWS if is_calm else _CATCH_UP_ROWS)
        if now_s < self.next_s and not is_soon and not ends_wave:
            return False
        self.next_s = now_s + (self._interval_us - wall_us % self._interval_us) / 1e6
        self._soon_s = now_s + (self._soon_us - wall_us % self._soon_us) / 1e6
        self._sent_rows = rows
        return True
