"""The reader of a held source; loaded by task managers only."""

from __future__ import annotations

from pathlib import Path

from experiments.held_source import HeldLinesSpec, kept_back_path
from weir.author.operator import Poll
from weir.operators.sources.files.local_input import list_input_files
from weir.operators.sources.json.json_lines import JsonLinesReader

#: How often it looks for the file.
_LOOK_US = 20_000


class HeldLinesReader(JsonLinesReader):
    """Keeps its pace, and does not end, before the file ``release`` exists; without a pace it only does not end.

    Nor does it give the rows that :func:`experiments.held_source.keep_back` keeps back.
    """

    def __init__(self, spec: HeldLinesSpec) -> None:
        super().__init__(spec)
        self._release = Path(spec.release)
        self._kept_back = kept_back_path(spec.release)
        self._is_held = True
        self._next_look_us = 0
        #: Of all subtasks; counted when rows are kept back.
        self._rows_in_all: int | None = None
        #: Rows that this subtask may give while it is held, from the beginning; None: all.
        self._rows_free: int | None = None

    def begin(self) -> Poll:
        """Hold, also where nothing is left to read."""
        began = super().begin()
        return Poll(next_poll_us=self._next_look_us) if began.finished else began

    def poll(self, rows_max: int) -> Poll:
        """See the base class."""
        now_us = self._clock.now_us()
        if self._is_held and now_us >= self._next_look_us:
            self._next_look_us = now_us + _LOOK_US
            self._look_for_files()
        if self._is_held and self._rows_free is not None:
            rows_max = min(rows_max, self._rows_free - self._progress.given)
            if rows_max <= 0:
                return Poll(next_poll_us=self._next_look_us)
        polled = super().poll(rows_max)
        return Poll(next_poll_us=self._next_look_us) if polled.finished and self._is_held else polled

    def _look_for_files(self) -> None:
        if self._release.exists():
            self._is_held = False
            self._progress.schedule = None
        elif self._kept_back.exists():
            share = float(self._kept_back.read_text())
            self._rows_free = (
                int(self._count_all() * (1 - share) - self._progress.given_before) // self._subtasks
            )

    def _count_all(self) -> int:
        if self._rows_in_all is None:
            files = list_input_files(self._find_path)
            self._rows_in_all = sum(Path(file).read_bytes().count(b"\n") for file in files)
        return self._rows_in_all
