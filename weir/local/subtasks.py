"""Subtasks without threads: each does what ``task_manager``'s does, when it is handed an element or told to poll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from weir.author.operator import HELD_INPUT, NEVER_US, Json, OperatorContext, Poll, SourceReader
from weir.author.watermarks import WatermarkAlignment
from weir.clock import Clock
from weir.local.channels import LocalOutput
from weir.operators.chain import OperatorChain
from weir.operators.step_errors import as_kept, naming_step
from weir.protocol.checkpoints.alignment import BarrierAligner, Step
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.watermarks.combined_watermarks import WatermarkTracker, channels_by_edge
from weir.protocol.watermarks.input_times import InputTimes, times_to_json
from weir.protocol.watermarks.source_watermark import SourceWatermark
from weir.protocol.watermarks.watermark_drift import AlignedSource, WatermarkDrift
from weir.rows import row_watermarks
from weir.rows.records import (
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    Barrier,
    Element,
    EndOfStream,
    Idle,
    Watermark,
)
from weir.types import ChannelId, SubtaskId

#: Called at a barrier, and with id 0 at the end: subtask, checkpoint id.
OnBarrier = Callable[["LocalSubtask", int], None]


class LocalSubtask(ABC):
    """One subtask and its chain; base of those with inputs and of sources."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain[LocalOutput],
        output: LocalOutput,
        on_barrier: OnBarrier,
    ) -> None:
        self.subtask = subtask
        self.chain = chain
        self.finished = False
        self._rows_in = 0
        #: Its last part is covered by a checkpoint, or there are none: sinks have delivered all.
        self.delivered = False
        self._output = output
        self._on_barrier = on_barrier
        #: What the operators know, and what consumers do.
        self._shown_ms = self._told_ms = WATERMARK_MIN_MS

    def open(self) -> None:
        """Open all operators."""
        self.chain.open()

    @property
    def counts(self) -> EventCounts:
        """Rows that it has taken and sent on; of a sink, those that it has received."""
        output = self._output
        return EventCounts(self._rows_in, output.rows if output.has_channels else self.chain.rows_into_last)

    def position(self) -> dict[str, Json]:
        """What a source adds to the snapshots of its operators."""
        return {}

    @abstractmethod
    def known_times(self) -> Json:
        """How far event time has come, in the form of ``weir.protocol.watermarks.input_times``."""

    @abstractmethod
    def go_on_in_time(self, restored: InputTimes) -> None:
        """Watermarks are where they were at the checkpoint; called when all are open, before any row comes."""

    def on_time(self, now_us: int) -> tuple[bool, int]:
        """Let operators do what is due by the clock.

        Returns:
            Whether anything was, and the wall clock (epoch µs) at which something is next.
        """
        if self.finished:
            return False, NEVER_US
        due_us = self.chain.due_us()
        if due_us > now_us:
            return False, due_us
        self.chain.on_time()
        return True, self.chain.due_us()

    def close(self) -> None:
        """Release what is open, whatever fails on the way; the first error is raised at the end."""
        self.chain.close()

    def _pass_barrier(self, checkpoint_id: int) -> None:
        self.chain.drain()
        self._output.broadcast(Barrier(checkpoint_id))
        self._on_barrier(self, checkpoint_id)

    def _show_watermark(self, time_ms: int, *, is_restored: bool = False) -> None:
        """Tell the operators, then the consumers, of a watermark that has risen; one that was told before, always."""
        if self._shown_ms < time_ms != WATERMARK_MAX_MS and (is_restored or not self.chain.holds_time):
            self._shown_ms = time_ms
            self.chain.on_watermark(time_ms)
            if not self.chain.assigns_times:
                self._told_ms = time_ms
                self._output.broadcast(Watermark(time_ms))
            else:
                self._output.tell_sides(self.chain.early_sides, Watermark(time_ms))
        if self.chain.assigns_times:
            self._show_assigned()

    def _show_assigned(self) -> None:
        """The same where a step assigns event times: its watermark follows the rows."""
        time_ms = self.chain.tell_assigned()
        if time_ms > self._told_ms:
            self._told_ms = time_ms
            self._output.broadcast(Watermark(time_ms), but=self.chain.early_sides)

    def _end(self) -> None:
        """All input was processed."""
        self.chain.finish()
        self._output.broadcast(Watermark(WATERMARK_MAX_MS))
        self._output.broadcast(EndOfStream())
        self.finished = True
        # What there is at the end counts for every later checkpoint.
        self._on_barrier(self, 0)
        self.close()


class LocalTask(LocalSubtask):
    """A subtask with inputs."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain[LocalOutput],
        output: LocalOutput,
        on_barrier: OnBarrier,
        inputs: Sequence[ChannelId],
    ) -> None:
        super().__init__(subtask, chain, output, on_barrier)
        self._watermarks = WatermarkTracker(inputs)
        self._barriers = BarrierAligner(inputs)
        self._channels = channels_by_edge(inputs)
        #: The watermark stands still: an operator holds rows back.
        self._is_held = False

    def known_times(self) -> Json:
        """See the base class."""
        known = [(c, at) for c, at, _ in self._watermarks.known() if isinstance(c, ChannelId)]
        return times_to_json(self._shown_ms, known, self._watermarks.combined_ms)

    def go_on_in_time(self, restored: InputTimes) -> None:
        """See the base class."""
        channels = [channel for channels in self._channels.values() for channel in channels]
        self._watermarks.restore(restored.combined_ms, restored.of_all(channels))
        for edge in self._channels:
            self._show_inputs(edge)
        self._is_held = self.chain.holds_time
        self._show_watermark(restored.shown_ms, is_restored=True)

    def take(self, channel: ChannelId, element: Element) -> None:
        """Process one element of an input; in order within each of them."""
        if isinstance(element, Watermark):
            self._watermarks.advance(channel, element.time_ms)
        elif isinstance(element, Idle):
            self._watermarks.mark_idle(channel)
        elif isinstance(element, Barrier):
            # Sources wait until a checkpoint is complete: no row can come after its barriers.
            if self._barriers.barrier(channel, element.checkpoint_id) is Step.SNAPSHOT:
                self._pass_barrier(element.checkpoint_id)
        elif isinstance(element, EndOfStream):
            self._end_input(channel)
            return
        else:
            self._watermarks.mark_active(channel)
            self._rows_in += element.num_rows
            rises = False
            if row_watermarks.column_of(element) is not None:
                known_ms = self._watermarks.combined_ms
                is_held = self._is_held and channel.edge_index == HELD_INPUT
                others_ms = self._watermarks.others_ms(
                    channel, self._channels[HELD_INPUT] if is_held else None
                )
                element, channel_ms = row_watermarks.combined(element, others_ms, known_ms)
                rises = self._watermarks.advance(channel, channel_ms) is not None
            self.chain.process(element, input_index=channel.edge_index)
            if self.chain.assigns_times:
                self._show_assigned()
            if not rises and not self._is_held:
                return
        self._show_inputs(channel.edge_index)
        self._show_combined()
        if isinstance(element, Idle) and self._watermarks.all_idle and not self._is_held:
            # Behind the watermark, which ends idleness.
            self._output.broadcast(element)

    def _show_combined(self) -> None:
        """Let rows go that are held back no more, and show the watermark unless some are."""
        self.chain.release(self._watermarks.combined_ms)
        was_held, self._is_held = self._is_held, self.chain.holds_time
        self._show_watermark(self._watermarks.combined_ms)
        if was_held and not self._is_held and self._watermarks.all_idle:
            self._output.broadcast(Idle())

    def _show_inputs(self, edge: int) -> None:
        """Tell the operator of the watermark of an input alone."""
        if self.chain.tells_inputs_apart:
            self.chain.on_input_watermark(edge, self._watermarks.lowest_ms(self._channels[edge]))

    def _end_input(self, channel: ChannelId) -> None:
        self._watermarks.end(channel)
        under_way = self._barriers.checkpoint_id
        if self._barriers.end(channel) is Step.SNAPSHOT:
            self._pass_barrier(under_way)
        self._show_inputs(channel.edge_index)
        self._show_combined()
        if not self._watermarks.open_inputs:
            self._end()
        elif self._watermarks.all_idle and not self._is_held:
            self._output.broadcast(Idle())


class LocalSource(LocalSubtask):
    """A subtask that reads from outside: one batch for each call of :meth:`poll`."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain[LocalOutput],
        output: LocalOutput,
        on_barrier: OnBarrier,
        reader: SourceReader,
        context: OperatorContext,
        grace_period_ms: int,
        idle_timeout_ms: float | None,
        alignment: WatermarkAlignment | None = None,
    ) -> None:
        """``grace_period_ms`` is taken off the highest event time; ``idle_timeout_ms`` None: it is never idle.

        ``alignment``: not to run ahead of others.
        """
        super().__init__(subtask, chain, output, on_barrier)
        self.reader = reader
        self._context = context
        self._clock: Clock = context.clock
        self._watermark = SourceWatermark(grace_period_ms)
        self._idle_timeout_ms = idle_timeout_ms
        self.drift = None if alignment is None else WatermarkDrift(alignment.group, alignment.max_drift_ms)
        #: The latest poll has moved the watermark.
        self.watermark_rose = False
        self._last_data_s = 0.0
        self._idle = False
        self._is_reading = False

    def known_times(self) -> Json:
        """See the base class."""
        return times_to_json(self._watermark.time_ms, ())

    def go_on_in_time(self, restored: InputTimes) -> None:
        """See the base class."""
        if self._watermark.raise_to(restored.shown_ms):
            self._show_watermark(restored.shown_ms)

    @property
    def step(self) -> str:
        """Name of the reader's step."""
        return self._context.operator_name

    def begin(self) -> None:
        """Open the reader; every subtask of the job is ready."""
        self._is_reading = True
        with naming_step(self.step):
            self.reader.open(self._context)
        self._last_data_s = self._clock.monotonic_s()

    @property
    def aligned(self) -> AlignedSource | None:
        """What others of its group, that do not run ahead of it, know of it; None: it waits for nobody."""
        return (
            None
            if self.drift is None
            else AlignedSource(self.drift.group, self._watermark.time_ms, self._idle)
        )

    def may_read(self, lowest_ms: Mapping[str, int]) -> bool:
        """Whether it is not too far ahead of others; told the lowest watermark of each group."""
        if self.drift is None:
            return True
        self.drift.told(lowest_ms[self.drift.group])
        if self.drift.may_read(self._watermark.time_ms):
            return True
        # It has rows, so that it is not idle.
        self._last_data_s = self._clock.monotonic_s()
        return False

    def poll(self) -> Poll:
        """Take what the reader has, process it and all that follows from it, and move the watermark."""
        with naming_step(self.step):
            polled = self.reader.poll(self._context.batch_size)
        if polled.batch is not None:
            self._rows_in += polled.batch.num_rows
            self.chain.process(polled.batch)
            self._last_data_s = self._clock.monotonic_s()
            self._wake_up()
        followed = self._watermark.follow(polled.event_time_ms_max)
        self.watermark_rose = self._watermark.raise_to(polled.watermark_ms) or followed
        if polled.finished:
            self.end()
        else:
            self._make_watermark()
        return polled

    def end(self) -> None:
        """Nothing is read any more, as at the end of the input."""
        self._end()

    def checkpoint(self, checkpoint_id: int) -> None:
        """Put a barrier after what was sent; called between two polls."""
        self._pass_barrier(checkpoint_id)

    def mark_idle(self) -> None:
        """Do not hold back the watermark until there are rows again."""
        self._idle = True
        self._output.broadcast(Idle())

    def position(self) -> dict[str, Json]:
        """Where the reader is."""
        with naming_step(self.step):
            position = self.reader.snapshot()
        return {self.step: as_kept(position, self.step)}

    def close(self) -> None:
        """Close the reader too."""
        try:
            if self._is_reading:
                self._is_reading = False
                self.reader.close()
        finally:
            super().close()

    def _wake_up(self) -> None:
        """A watermark without rows ends idleness too: an operator here may have dropped all rows."""
        if self._idle:
            self._idle = False
            early = self.chain.early_sides
            if self._told_ms != WATERMARK_MIN_MS:
                self._output.broadcast(Watermark(self._told_ms), but=early)
            if early and self._shown_ms != WATERMARK_MIN_MS:
                self._output.tell_sides(early, Watermark(self._shown_ms))

    def _make_watermark(self) -> None:
        # Of an idle source it rises when its last splits become idle.
        rises = self._watermark.time_ms > self._shown_ms
        if not self._idle or rises:
            self._show_watermark(self._watermark.time_ms)
        if self._idle:
            if rises:
                self.mark_idle()
        elif self._idle_timeout_ms is not None:
            idle_ms = (self._clock.monotonic_s() - self._last_data_s) * 1e3
            if idle_ms >= self._idle_timeout_ms:
                self.mark_idle()
