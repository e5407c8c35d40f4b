"""Event time of a subtask: how far what it reads has come, what its operators know of it, and its consumers.

Used by the subtasks of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import pyarrow as pa

from weir.author.operator import HELD_INPUT, Json, Poll
from weir.author.watermarks import WatermarkStrategy
from weir.operators.chain import OperatorChain
from weir.operators.chain_ports import SubtaskOutput
from weir.operators.step_flow import StepFlow, WaitingRows
from weir.protocol.watermarks.input_times import InputTimes, times_to_json
from weir.protocol.watermarks.time_reached import (
    SourceWatermark,
    WatermarkForward,
    WatermarkTracker,
    channels_by_edge,
)
from weir.protocol.watermarks.watermark_drift import WatermarkDrift
from weir.rows import row_watermarks
from weir.rows.records import (
    KEY_HASH_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    Idle,
    Watermark,
    watermarks_of,
)
from weir.types import ChannelId

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
        #: Monotonic second at which it was first seen without rows since it last had some; None: not yet.
        self._silent_s: float | None = None
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

    def has_rows(self) -> None:
        """Note that it has rows, read or not: it is not idle."""
        self._silent_s, self.is_idle = None, False

    def follow(self, polled: Poll) -> bool:
        """Take the watermark after what was read, and processed; returns whether it rises."""
        return _follow(self._watermark, polled)

    def be_idle(self) -> None:
        """Do not hold the watermark back until there are rows again."""
        self._silent_s = float("-inf")

    def tell(self, now_s: float, *, is_silent: bool = False) -> None:
        """Tell operators and consumers of the watermark, or of idleness, if that is news.

        ``is_silent``: the step that assigns event times has had no rows for long.
        """
        chain, output, early = self._chain, self._chain.output, self._chain.early_sides
        time_ms = self._watermark.time_ms
        if self._silent_s is None:
            # Nobody looked since it had rows: a process that got no processor for so long is not an idle source.
            self._silent_s = now_s
        is_idle = (now_s - self._silent_s) * 1e3 >= self._idle_timeout_ms
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
        self._silent_s = None
        self.tell(0.0)


def _follow(watermark: SourceWatermark, polled: Poll) -> bool:
    """Raise the watermark by what was read; it rises without rows too, when a split that held it back has ended."""
    rises = watermark.follow(polled.event_time_ms_max)
    return watermark.raise_to(polled.watermark_ms) or rises


class Told:
    """What some of the consumers were told."""

    def __init__(self, tell: Callable[[Watermark | Idle], None], interval_ms: float, *, soon: bool) -> None:
        self.tell = tell
        #: Says when there is a watermark to tell.
        self.forward = WatermarkForward(interval_ms, soon=soon)
        #: That nothing comes for now.
        self.is_idle = False

    def of_idleness(self, shown_ms: int) -> None:
        """Nothing comes for now; that goes behind the watermark, which ends idleness."""
        if not self.is_idle:
            self.is_idle = True
            if self.forward.take_before_idleness(shown_ms):
                self.tell(Watermark(shown_ms))
            self.tell(Idle())

    def end_idleness(self) -> None:
        """Something has come: consumers that think otherwise learn the watermark again."""
        self.is_idle = False
        self.forward.again()


class TaskTimes(Generic[OutputT]):
    """Called by the subtask's thread; :attr:`inputs` may be asked by any.

    Args:
        chain: the operators, with the way to consumers.
        inputs: all channels.
        interval_ms: between two watermarks of sources, which consumers are told of at the same pace; 0: they are told
            whenever it rises.
        soon: some step of the job does something when a watermark comes.
    """

    def __init__(
        self,
        chain: OperatorChain[OutputT],
        inputs: Iterable[ChannelId],
        interval_ms: float = 0.0,
        *,
        soon: bool = True,
    ) -> None:
        self.inputs = WatermarkTracker(inputs)
        #: The watermark that operators were told of, and that of what leaves.
        self.shown_ms = self.left_ms = WATERMARK_MIN_MS
        #: It stands still: an operator holds rows back.
        self.is_held = False
        #: Whether it also stands still because rows are parked, here or elsewhere.
        self.is_parked: Callable[[], bool] = _never
        self._chain = chain
        channels = self._channels = channels_by_edge(inputs)
        #: Rows that wait until all inputs have come as far as their own had; None: none do.
        self.order = chain.order
        #: Takes rows that need not wait any more, with an input that they came by.
        self.process: Callable[[pa.RecordBatch, int], None] = chain.process_of
        self._tells_ahead = chain.tells_ahead
        #: From one channel rows come in the order of time by themselves.
        self._comes_by_many = sum(map(len, channels.values())) > 1
        self._ordered_edge = 0
        #: The watermark of each channel where its rows began to go to the new owners of their key groups, and whether
        #: it was idle; of the last rescale.
        self._at_markers: dict[ChannelId, tuple[int, bool]] = {}
        self._markers_version = 0
        # A small batch pays for every question.
        self._tells_inputs_apart = chain.tells_inputs_apart
        self._assigns_times = chain.assigns_times
        #: While rows of a checkpoint that waited for steps are processed: what was shown before it.
        self._resumed_ms = WATERMARK_MIN_MS
        sides = self._early_sides = chain.early_sides
        self.consumers = Told(lambda element: chain.output.broadcast(element, sides), interval_ms, soon=soon)
        #: Side outputs of steps before one that assigns event times: theirs are other watermarks.
        self.early = Told(lambda element: chain.output.tell_sides(sides, element), interval_ms, soon=soon)

    def add(self, channel: ChannelId) -> None:
        """Take in a new channel."""
        self.inputs.add(channel)
        self._channels.setdefault(channel.edge_index, []).append(channel)
        self._comes_by_many = True

    def known(self) -> list[tuple[ChannelId, int, bool]]:
        """Returns of each open channel its watermark and whether it is idle; any thread may ask."""
        return [(c, at, is_idle) for c, at, is_idle in self.inputs.known() if isinstance(c, ChannelId)]

    def to_json(self, paused: StepFlow | None = None) -> Json:
        """Returns what a checkpoint has of it (``weir.protocol.watermarks.input_times``)."""
        known = [(channel, at) for channel, at, _ in self.known()]
        shown_ms, combined_ms = max(self.shown_ms, self._resumed_ms), self.inputs.combined_ms
        if paused is not None and paused.rest is not None:
            # Inputs are as far as after the rows that are left, which will say themselves how far.
            known = [(channel, min(at, paused.known_ms)) for channel, at in known]
            shown_ms, combined_ms = min(shown_ms, paused.known_ms), min(combined_ms, paused.known_ms)
        waiting = 0 if self.order is None else self.order.rows
        return times_to_json(shown_ms, known, combined_ms, waiting)

    def go_on(self, restored: InputTimes, waiting: Sequence[WaitingRows]) -> None:
        """Begin where a checkpoint was, before any row comes, with rows that waited for steps then."""
        channels = [channel for channels in self._channels.values() for channel in channels]
        self.inputs.restore(restored.combined_ms, restored.of_all(channels))
        self._resumed_ms = restored.shown_ms
        self._chain.resume(waiting)
        self._resumed_ms = WATERMARK_MIN_MS
        if self._tells_inputs_apart:
            self._show_inputs()
        self.is_held = self._chain.holds_time
        # What was shown stays, whatever is held; rows that move with their key groups may be parked from the start.
        if not self.is_parked():
            self._release_in_order(self.inputs.combined_ms)
            self._show(restored.shown_ms if self.is_held else self.inputs.combined_ms)

    def advance(self, channel: ChannelId, watermark: Watermark) -> None:
        """Note a watermark, and which other subtasks of its producer's stage have nothing to send."""
        self.inputs.advance(channel, watermark.time_ms)
        for index in watermark.without:
            other = replace(channel, producer=replace(channel.producer, subtask_index=index))
            if self.inputs.is_open(other):
                self.inputs.advance(other, WATERMARK_MAX_MS)

    def rows_come(self, channel: ChannelId, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
        """Note rows of a channel: it is not idle.

        Returns:
            The rows, as of the watermarks of all inputs, and whether these have come further together. Rows that may
            have to wait are as of their own channel (``row_watermarks.of_channel``): they are for :meth:`hold`.
        """
        inputs, is_restored = self.inputs, channel.producer == channel.consumer
        if not is_restored:
            inputs.mark_active(channel)
        if self.order is not None and self._may_wait(batch):
            known_ms = WATERMARK_MIN_MS if is_restored else inputs.known_ms(channel)
            batch, channel_ms = row_watermarks.of_channel(batch, known_ms, sorts_times=self.order.sorts_times)
            self._ordered_edge = channel.edge_index
        elif watermarks_of(batch) is None:
            return batch, False
        else:
            batch, channel_ms = self.in_time(channel, batch)
        if is_restored or not inputs.is_open(channel):
            return batch, False
        return batch, inputs.advance(channel, channel_ms) is not None

    def in_time(self, channel: ChannelId, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Rows say what the watermark of their channel is as of each: it becomes that of all inputs.

        Returns:
            The rows, and the watermark of the channel after them.
        """
        if watermarks_of(batch) is None:
            return batch, WATERMARK_MIN_MS
        inputs, known_ms = self.inputs, self.inputs.combined_ms
        if self.order is not None and self._may_wait(batch):
            # That of the channel: what others have come to shows when they have.
            own_ms = WATERMARK_MIN_MS if channel.producer == channel.consumer else inputs.known_ms(channel)
            return row_watermarks.combined(batch, WATERMARK_MAX_MS, own_ms, tells_ahead=True)
        if channel.producer == channel.consumer:
            # A restart brought them back: other inputs are behind them.
            return row_watermarks.combined(batch, WATERMARK_MAX_MS, known_ms, tells_ahead=self._tells_ahead)
        is_held_back = self.is_held and channel.edge_index == HELD_INPUT
        others_ms = inputs.others_ms(channel, self._channels[HELD_INPUT] if is_held_back else None)
        # So it does for rules, while rows wait that others have come to.
        stands_still = self.is_parked() or (self.order is not None and bool(self.order))
        cap_ms = self.shown_ms if stands_still else WATERMARK_MAX_MS
        return row_watermarks.combined(batch, others_ms, known_ms, cap_ms, tells_ahead=self._tells_ahead)

    def _may_wait(self, batch: pa.RecordBatch) -> bool:
        """Whether rows have to come into the order of time: such as come by key, from several channels or splits."""
        order = self.order
        if order is None or batch.schema.get_field_index(KEY_HASH_COLUMN) < 0:
            return False
        many = order.sorts_times or self._comes_by_many or bool(order)
        return many or row_watermarks.has_rows_ahead(batch)

    def alike(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Batches of :meth:`rows_come`, with the same columns: all may have to wait, or none."""
        wait = [batch.schema.get_field_index(row_watermarks.AS_OF_COLUMN) >= 0 for batch in batches]
        if all(wait) or not any(wait):
            return batches
        sorts_times = self.order is not None and self.order.sorts_times
        return [
            batch if waits else row_watermarks.of_channel(batch, WATERMARK_MIN_MS, sorts_times=sorts_times)[0]
            for batch, waits in zip(batches, wait, strict=True)
        ]

    def hold(self, batch: pa.RecordBatch) -> bool:
        """Keep rows of :meth:`rows_come` that may have to wait, until :meth:`show` lets them go.

        Returns:
            Whether they do; else they are to be processed now.
        """
        if self.order is None or batch.schema.get_field_index(row_watermarks.AS_OF_COLUMN) < 0:
            return False
        self.order.put(batch)
        return True

    def note_marker(self, channel: ChannelId, version: int) -> None:
        """Note that later rows of the channel may go to the new owners of their key groups, by this routing table."""
        if version != self._markers_version:
            self._markers_version, self._at_markers = version, {}
        self._at_markers[channel] = next(
            (at_ms, idle) for known, at_ms, idle in self.known() if known == channel
        )

    def show_before_markers(self) -> None:
        """Do what was due before the markers, and process the rows that waited for it: key groups are about to move.

        Their new owners have been shown no more, because their watermarks stand still from the markers on. So nothing
        moves that is due before what its new owner has told its consumers: there it would be late.
        """
        # Inputs may have ended since: those of a subtask that retires end behind their markers.
        counted = (at_ms for at_ms, is_idle in self._at_markers.values() if not is_idle)
        until_ms = min([self.inputs.combined_ms, *counted])
        self._release_in_order(until_ms)
        if self.is_held:
            return
        if self._tells_inputs_apart:
            for index in self._channels:
                known = (
                    at_ms for channel, (at_ms, _) in self._at_markers.items() if channel.edge_index == index
                )
                self._chain.on_input_watermark(index, min(known, default=WATERMARK_MAX_MS))
        self._show(until_ms)

    def _release_in_order(self, until_ms: int) -> None:
        """Process the rows as of this watermark at most."""
        order = self.order
        if order is not None:
            while (rows := order.take(until_ms, self.shown_ms)) is not None:
                self.process(rows, self._ordered_edge)

    def show(self) -> bool:
        """Tell operators how far inputs have come; the watermark stands still while rows are parked or held back.

        Returns:
            Whether an operator that held rows back has let the last of them go.
        """
        is_parked = self.is_parked()
        if self.order is not None and not is_parked:
            self._release_in_order(self.inputs.combined_ms)
        if self._tells_inputs_apart and not is_parked:
            self._show_inputs()
            self._chain.release(self.inputs.combined_ms)
        was_held, self.is_held = self.is_held, self._chain.holds_time
        if not (is_parked or self.is_held):
            self._show(self.inputs.combined_ms)
        return was_held and not self.is_held

    def _show_inputs(self) -> None:
        for index, channels in self._channels.items():
            self._chain.on_input_watermark(index, self.inputs.lowest_ms(channels))

    def _show(self, time_ms: int) -> None:
        if self.shown_ms < time_ms != WATERMARK_MAX_MS:
            self.shown_ms = time_ms
            self._chain.on_watermark(time_ms)
            if not self._assigns_times:
                self.left_ms = time_ms

    def forward(
        self, now_s: float = 0.0, rows: int = 0, *, ends_wave: bool = False, is_silent: bool = False
    ) -> None:
        """Tell consumers of the watermark when it has risen, and of idleness at once.

        Args:
            now_s: monotonic seconds.
            rows: processed so far.
            ends_wave: this is the last of what has gathered.
            is_silent: the step that assigns event times has had no rows for long.
        """
        all_idle = self.inputs.all_idle
        if self._early_sides:
            early = self.early
            if all_idle:
                early.of_idleness(self.shown_ms)
            else:
                if early.is_idle:
                    early.end_idleness()
                if early.forward.take(self.shown_ms, now_s, rows, ends_wave=ends_wave):
                    early.tell(Watermark(self.shown_ms))
        consumers = self.consumers
        if is_silent or (all_idle and not (self.is_held or self.is_parked())):
            consumers.of_idleness(WATERMARK_MIN_MS if self._assigns_times else self.shown_ms)
            return
        # A watermark without rows ends idleness too (an operator upstream may drop all rows).
        if consumers.is_idle:
            consumers.end_idleness()
        if not self._assigns_times:
            if consumers.forward.take(self.shown_ms, now_s, rows, ends_wave=ends_wave):
                consumers.tell(Watermark(self.shown_ms))
        # Parked rows may have earlier times.
        elif not self.is_parked() and consumers.forward.take(
            self._chain.assigned_ms, now_s, rows, ends_wave=ends_wave
        ):
            self.left_ms = self._chain.tell_assigned()
            consumers.tell(Watermark(self.left_ms))

    def end(self) -> None:
        """Tell operators and consumers, as all inputs have ended, how far time had come, whatever their pace.

        That is where the input that was ahead has come, whichever has ended first. Called before the chain ends.
        """
        if not self.is_held:
            self._show(self.inputs.highest_ms)
        if self._early_sides and self.early.forward.take_before_idleness(self.shown_ms):
            self.early.tell(Watermark(self.shown_ms))
        if self._assigns_times:
            self.left_ms = self._chain.tell_assigned()
        if self.consumers.forward.take_before_idleness(self.left_ms):
            self.consumers.tell(Watermark(self.left_ms))


def _never() -> bool:
    return False
