"""Event time of a subtask of a source: how far its reader has come, what its operators know of it, and its consumers.

Used by the subtasks of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, TypeVar

from weir.author.operator import Json, Poll
from weir.author.watermarks import WatermarkStrategy
from weir.operators.chain import OperatorChain
from weir.operators.chain_ports import SubtaskOutput
from weir.operators.step_flow import WaitingRows
from weir.protocol.watermarks.input_times import InputTimes, times_to_json
from weir.protocol.watermarks.source_watermark import SourceWatermark
from weir.protocol.watermarks.watermark_drift import WatermarkDrift
from weir.rows.records import WATERMARK_MIN_MS, Idle, Watermark

OutputT = TypeVar("OutputT", bound=SubtaskOutput)


class ReaderTimes(Generic[OutputT]):
    """Called by the subtask's thread.

    Args:
        chain: the operators behind the reader, with the way to consumers.
        strategy: what the source says of its watermarks.
        grace_period_ms: taken off the highest event time, if that does not say.
        idle_timeout_ms: the same, without rows for how long it does not hold the watermark back.
    """

    def __init__(
        self,
        chain: OperatorChain[OutputT],
        strategy: WatermarkStrategy,
        grace_period_ms: int,
        idle_timeout_ms: float,
    ) -> None:
        grace_ms, idle_ms = strategy.out_of_orderness_ms, strategy.idle_timeout_ms
        alignment = strategy.alignment
        #: What keeps it from running ahead of other sources; None: nothing does.
        self.drift = None if alignment is None else WatermarkDrift(alignment.group, alignment.max_drift_ms)
        #: Consumers were told that nothing comes for now, and nothing has.
        self.is_idle = False
        #: The last watermark that consumers were told of.
        self.told_ms = WATERMARK_MIN_MS
        self._chain = chain
        self._watermark = SourceWatermark(grace_period_ms if grace_ms is None else grace_ms)
        self._idle_timeout_ms = idle_timeout_ms if idle_ms is None else idle_ms
        self._shown_ms = WATERMARK_MIN_MS
        #: Monotonic second at which it last had rows.
        self._data_s = 0.0
        self._consumers_are_idle = False

    @property
    def time_ms(self) -> int:
        """The watermark as of what was read."""
        return self._watermark.time_ms

    @property
    def behind_ms(self) -> int:
        """How far the watermark stays behind the highest event time."""
        return self._watermark.behind_ms

    @property
    def may_read(self) -> bool:
        """Return whether it is not too far ahead of others."""
        return self.drift is None or self.drift.may_read(self._watermark.time_ms)

    def to_json(self, polled: Poll | None = None) -> Json:
        """Returns what a checkpoint has of it; ``polled``: what is being processed, whose rest comes before it."""
        watermark = self._watermark
        if polled is not None:
            watermark = copy.copy(watermark)
            _follow(watermark, polled)
        return times_to_json(watermark.time_ms, ())

    def go_on(self, restored: InputTimes, waiting: Sequence[WaitingRows]) -> None:
        """Begin where a checkpoint was, before any row is read, with rows that waited for steps then."""
        rises = self._watermark.raise_to(restored.shown_ms)
        if waiting:
            self._chain.resume(waiting)
        if rises:
            self._chain.on_watermark(self._watermark.time_ms)

    def has_rows(self, now_s: float) -> None:
        """Note that it had rows at this monotonic second, read or not: it is not idle."""
        self._data_s, self.is_idle = now_s, False

    def follow(self, polled: Poll) -> bool:
        """Take the watermark after what was read, and processed; returns whether it rises."""
        return _follow(self._watermark, polled)

    def be_idle(self) -> None:
        """Do not hold the watermark back until there are rows again."""
        self._data_s = float("-inf")

    def tell(self, now_s: float, *, is_silent: bool = False) -> None:
        """Tell operators and consumers of the watermark, or of idleness, if that is news.

        ``is_silent``: the step that assigns event times has had no rows for long.
        """
        chain, output, early = self._chain, self._chain.output, self._chain.early_sides
        time_ms = self._watermark.time_ms
        is_idle = (now_s - self._data_s) * 1e3 >= self._idle_timeout_ms
        # Of an idle source it rises when its last splits become idle.
        rises = time_ms > self._shown_ms
        if rises or (self._consumers_are_idle and not is_idle and time_ms != WATERMARK_MIN_MS):
            self._shown_ms = time_ms
            chain.on_watermark(time_ms)
            if early:
                output.tell_sides(early, Watermark(time_ms))
        has_idled = is_idle or is_silent
        if has_idled and self.is_idle and not (is_idle and rises):
            return
        left_ms = chain.tell_assigned() if chain.assigns_times else time_ms
        if left_ms > self.told_ms or (self._consumers_are_idle and left_ms != WATERMARK_MIN_MS):
            # Without rows it ends idleness too: an operator here may have dropped all of them.
            self.told_ms = left_ms
            output.broadcast(Watermark(left_ms), but=early)
        self._consumers_are_idle = has_idled
        if has_idled:
            # Behind the watermark, which ends idleness.
            self.is_idle = True
            output.broadcast(Idle(), but=() if is_idle else early)

    def end(self) -> None:
        """Tell operators and consumers, as all was read, how far time had come, whatever their pace."""
        self.tell(self._data_s)


def _follow(watermark: SourceWatermark, polled: Poll) -> bool:
    """Raise the watermark by what was read; it rises without rows too, when a split that held it back has ended."""
    rises = watermark.follow(polled.event_time_ms_max)
    return watermark.raise_to(polled.watermark_ms) or rises
