"""Which windows there are: the kind of a window, and to which ones a row belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
