"""Which windows there are: the kind of a window, and to which ones a row belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weir.specs.words import duration_words

WindowKind = Literal["tumbling", "sliding", "cumulative", "session", "global"]
WindowTime = Literal["event", "processing"]


@dataclass(frozen=True)
class Window:
    """Which windows a row belongs to; made by ``weir.tumbling`` and the like."""

    kind: WindowKind
    #: Length of a window; of sessions the gap that ends one.
    size_ms: int
    #: From one window to the next; of cumulative windows how much longer each is. ``size_ms`` for the others.
    step_ms: int
    #: A window begins at this time, and so do those before and after it.
    offset_ms: int = 0
    time: WindowTime = "event"

    @property
    def words(self) -> str:
        """The window, as plans show it."""
        if self.kind == "global":
            return "global"
        text = f"{self.kind} {duration_words(self.size_ms)}"
        if self.step_ms != self.size_ms:
            text += f" by {duration_words(self.step_ms)}"
        if self.offset_ms:
            text += f" from {duration_words(self.offset_ms)}"
        return text if self.time == "event" else f"{text} of the clock"
