"""Hold a subtask's watermark back while rows are parked (docs/design/0001)."""

from __future__ import annotations

#: As ``weir.rows.records.WATERMARK_MIN_MS``.
_MIN_MS = -(2**63)


class WatermarkHold:
    """The watermark that a subtask shows to its operators and its consumers while key groups move."""

    def __init__(self) -> None:
        self._visible_ms = _MIN_MS

    def visible_ms(self, combined_ms: int, *, is_held: bool) -> int:
        """Tell of the combined watermark, ms since the epoch, what may be seen.

        Call it when that rises, and when it is held no more. The value stands still while rows are parked, here or at
        the new owners of groups that are still here: at what it was before the first of them came.
        """
        if not is_held:
            self._visible_ms = combined_ms
        return self._visible_ms
