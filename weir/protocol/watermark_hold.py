"""Hold a subtask's watermark back while rows are parked (docs/design/0001)."""

from __future__ import annotations


class WatermarkHold:
    """The watermark that a subtask shows to its operators and its consumers while rows are parked."""

    def __init__(self) -> None:
        self._held_ms: int | None = None

    def visible_ms(self, combined_ms: int, *, has_parked_rows: bool) -> int:
        """Tell of the combined watermark, ms since the epoch, what may be seen.

        Call it when rows are parked, before the next watermark is taken in, and whenever that rises. The
        value stands still from the first parked row until none is left.
        """
        if not has_parked_rows:
            self._held_ms = None
            return combined_ms
        if self._held_ms is None:
            self._held_ms = combined_ms
        return self._held_ms
