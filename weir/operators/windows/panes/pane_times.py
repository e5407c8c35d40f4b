"""Which panes a window is made of. Pure arithmetic on times, ms.

A pane is the longest span that is wholly in or out of each window. Its state is kept once, however many windows have
it; a window combines its panes when it fires. A pane is told by its end, and so is a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from weir.errors import WeirError
from weir.specs.window_kinds import Window

_Times = TypeVar("_Times", int, np.ndarray)
#: Times beyond are refused: ends of windows have to be times, too.
_TIME_MS_MAX = 1 << 61


@dataclass(frozen=True)
class Panes:
    """The panes of windows of one kind; of tumbling windows each is one."""

    #: Length of a pane.
    pane_ms: int
    #: Panes end at this time plus multiples of their length.
    offset_ms: int
    #: From one end of a window to the next.
    step_ms: int
    #: Length of the longest window.
    size_ms: int
    #: Windows grow from a beginning that they share, until they have their size.
    is_cumulative: bool = False

    @property
    def shift_ms(self) -> int:
        """Return the time from a pane's end to where its last window ends at the latest."""
        return self.size_ms - self.pane_ms

    @property
    def grid_ms(self) -> int:
        """Return the time from one end of a window that is some pane's last one to the next."""
        return self.size_ms if self.is_cumulative else self.step_ms

    @property
    def is_single(self) -> bool:
        """Return whether each window is one pane."""
        return self.size_ms == self.pane_ms

    def start_of(self, end_ms: int) -> int:
        """Where the window begins that ends here."""
        if not self.is_cumulative:
            return end_ms - self.size_ms
        return end_ms - 1 - (end_ms - 1 - self.offset_ms) % self.size_ms

    def pane_ends(self, times_ms: np.ndarray) -> np.ndarray:
        """Where the panes end that have these times."""
        ends_ms: np.ndarray = times_ms - (times_ms - self.offset_ms) % self.pane_ms + self.pane_ms
        return ends_ms

    def last_end(self, pane_end_ms: _Times) -> _Times:
        """Where the last window ends that has this pane, or each of these."""
        last_ms = pane_end_ms + self.shift_ms
        ends_ms: _Times = last_ms - (last_ms - self.offset_ms) % self.grid_ms
        return ends_ms

    def next_end(self, after_ms: int) -> int:
        """The first end of a window after a time."""
        return after_ms - (after_ms - self.offset_ms) % self.step_ms + self.step_ms

    def first_end(self, pane_end_ms: int, after_ms: int) -> int:
        """The first end after a time of a window that has this pane, or a later one."""
        return self.next_end(max(pane_end_ms - 1, after_ms))

    def dead_until(self, fired_ms: int) -> int:
        """No pane that ends here or before is in a window that ends after this time."""
        if self.is_cumulative:
            # The window that ends next has panes from its beginning on.
            return fired_ms - (fired_ms - self.offset_ms) % self.size_ms
        return self.next_end(fired_ms) - self.size_ms

    def ends(self, pane_ends_ms: list[int], until_ms: int, after_ms: int) -> Iterator[int]:
        """Ends of the windows that have one of these panes (ascending), ``after_ms < end <= until_ms``."""
        for index, pane_end_ms in enumerate(pane_ends_ms):
            last_ms = min(self.last_end(pane_end_ms), until_ms)
            after_ms = max(after_ms, pane_end_ms - 1)
            following = pane_ends_ms[index + 1] if index + 1 < len(pane_ends_ms) else last_ms + 1
            end_ms = self.next_end(after_ms)
            while end_ms <= last_ms and end_ms < following:
                yield end_ms
                after_ms = end_ms
                end_ms += self.step_ms


def panes_of(window: Window) -> Panes:
    """The panes of windows that are no sessions."""
    return Panes(
        window.step_ms, window.offset_ms, window.step_ms, window.size_ms, window.kind == "cumulative"
    )


def check_times(times_ms: np.ndarray) -> None:
    """Check that these can be times of windows.

    Raises:
        WeirError: one is too far from 1970.
    """
    if len(times_ms) and (times_ms.min() < -_TIME_MS_MAX or times_ms.max() > _TIME_MS_MAX):
        wrong = times_ms[np.abs(times_ms.astype(np.float64)) >= float(_TIME_MS_MAX)][0]
        raise WeirError(
            f"the event time {int(wrong)} ms is beyond the {_TIME_MS_MAX} ms before and after 1970 that windows "
            "take; drop such rows with a filter before key_by"
        )


def window_pane_ends(pane_ms: int, start_ms: int, end_ms: int) -> range:
    """Ends of the panes of a window with these bounds."""
    return range(start_ms + pane_ms, end_ms + 1, pane_ms)


def session_pane_ends(gap_ms: int, start_ms: int, end_ms: int) -> range:
    """Ends of the panes of a session, from that of its first row to that of its last one, a gap before its end."""
    first_ms, last_ms = (at - at % gap_ms + gap_ms for at in (start_ms, end_ms - gap_ms))
    return range(first_ms, last_ms + 1, gap_ms)
