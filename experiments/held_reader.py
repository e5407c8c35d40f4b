"""The reader of a held source; loaded by task managers only."""

from __future__ import annotations

from pathlib import Path

from experiments.held_source import HeldLinesSpec
from weir.operators.base import Poll
from weir.operators.sources.json_lines import JsonLinesReader

#: How often it looks for the file.
_LOOK_US = 20_000


class HeldLinesReader(JsonLinesReader):
    """Keeps its pace, and does not end, before the file ``release`` exists; without a pace it only does not end."""

    def __init__(self, spec: HeldLinesSpec) -> None:
        super().__init__(spec)
        self._release = Path(spec.release)
        self._is_held = True
        self._next_look_us = 0

    def poll(self, rows_max: int) -> Poll:
        """See the base class."""
        now_us = self._clock.now_us()
        if self._is_held and now_us >= self._next_look_us:
            self._next_look_us = now_us + _LOOK_US
            if self._release.exists():
                self._is_held = False
                self._schedule = None
        polled = super().poll(rows_max)
        return Poll(next_poll_us=self._next_look_us) if polled.finished and self._is_held else polled
