"""Subtasks without threads: each does what ``task_manager``'s does, when it is handed an element or told to poll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from weir.author.operator import NEVER_US, Json, OperatorContext, Poll, SourceReader
from weir.clock import Clock
from weir.local.channels import LocalOutput
from weir.operators.chain import OperatorChain
from weir.operators.step_errors import as_kept, naming_step
from weir.operators.subtask_times import ReaderTimes, TaskTimes
from weir.protocol.checkpoints.alignment import BarrierAligner, Step
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.watermarks.watermark_drift import AlignedSource
from weir.rows.records import WATERMARK_MAX_MS, Barrier, Element, EndOfStream, Idle, InputRows, Watermark
from weir.types import ChannelId, SubtaskId

#: Called at a barrier, and with id 0 at the end: subtask, checkpoint id.
OnBarrier = Callable[["LocalSubtask", int], None]


class LocalSubtask(ABC):
    """A subtask and its chain; base of those with inputs and of sources."""

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

    @property
    @abstractmethod
    def times(self) -> TaskTimes[LocalOutput] | ReaderTimes[LocalOutput]:
        """How far event time has come."""

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

    def _end(self) -> None:
        """End the subtask: all input was processed."""
        self.times.end()
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
        clock: Clock,
    ) -> None:
        super().__init__(subtask, chain, output, on_barrier)
        self._times = TaskTimes(chain, inputs)
        self._barriers = BarrierAligner(inputs)
        self._clock = clock

    @property
    @override
    def times(self) -> TaskTimes[LocalOutput]:
        return self._times

    def take(self, channel: ChannelId, element: Element) -> None:
        """Process one element of an input; in order within each of them."""
        times, inputs, rises = self._times, self._times.inputs, True
        if isinstance(element, Watermark):
            inputs.advance(channel, element.time_ms)
        elif isinstance(element, Idle):
            inputs.mark_idle(channel)
        elif isinstance(element, Barrier):
            # Sources wait until a checkpoint is complete: no row can come after its barriers.
            if self._barriers.barrier(channel, element.checkpoint_id) is Step.SNAPSHOT:
                self._pass_barrier(element.checkpoint_id)
            return
        elif isinstance(element, EndOfStream):
            inputs.end(channel)
            under_way = self._barriers.checkpoint_id
            if self._barriers.end(channel) is Step.SNAPSHOT:
                self._pass_barrier(under_way)
        else:
            self._rows_in += element.num_rows
            rows, rises = times.rows_come(channel, element)
            is_waiting = times.hold(rows)
            if not is_waiting:
                self.chain.process(rows, input_index=channel.edge_index)
            rises = rises or is_waiting
        if rises or times.is_held:
            times.show()
        self.forward()
        if not inputs.has_open_inputs:
            self._end()

    def take_restored(self, rows: InputRows) -> None:
        """Process rows that were under way to it at a checkpoint; or they wait, as they did."""
        batch, _ = self._times.rows_come(ChannelId(self.subtask, self.subtask, rows.input_index), rows.batch)
        if self._times.hold(batch):
            self._times.show()
        else:
            self.chain.process(rows.batch, input_index=rows.input_index)

    def forward(self) -> None:
        """Tell consumers of the watermark, or that the step which assigns event times has had no rows for long."""
        chain = self.chain
        self._times.forward(is_silent=chain.assigns_times and self._clock.monotonic_s() >= chain.idle_at_s)


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
        times: ReaderTimes[LocalOutput],
    ) -> None:
        super().__init__(subtask, chain, output, on_barrier)
        self.reader = reader
        self._context = context
        self._clock: Clock = context.clock
        self._times = times
        #: The latest poll has moved the watermark.
        self.watermark_rose = False
        self._is_reading = False

    @property
    @override
    def times(self) -> ReaderTimes[LocalOutput]:
        return self._times

    @property
    def step(self) -> str:
        """Name of the reader's step."""
        return self._context.operator_name

    def begin(self) -> None:
        """Open the reader; every subtask of the job is ready."""
        self._is_reading = True
        with naming_step(self.step):
            self.reader.open(self._context)

    def tell_first(self) -> None:
        """Say what is known of event time before the first row; every source is open."""
        with naming_step(self.step):
            began = self.reader.begin()
        self._times.follow(began)
        if began.finished:
            self.end()
        else:
            self._times.tell(self._clock.monotonic_s())
            # Nobody has asked it for rows yet.
            self._times.has_rows()

    @property
    def aligned(self) -> AlignedSource | None:
        """What others of its group, that do not run ahead of it, know of it; None: it waits for nobody."""
        times = self._times
        return None if times.drift is None else AlignedSource(times.drift.group, times.time_ms, times.is_idle)

    def may_read(self, lowest_ms: Mapping[str, int]) -> bool:
        """Return whether it is not too far ahead of others; told the lowest watermark of each group."""
        times = self._times
        if times.drift is not None:
            times.drift.told(lowest_ms[times.drift.group])
        if not times.may_read:
            # It has rows, so that it is not idle.
            times.has_rows()
        return times.may_read

    def poll(self) -> Poll:
        """Take what the reader has, process it and all that follows from it, and move the watermark."""
        with naming_step(self.step):
            polled = self.reader.poll(self._context.batch_size)
        if polled.batch is not None:
            self._rows_in += polled.batch.num_rows
            self.chain.process(polled.batch)
            self._times.has_rows()
        self.watermark_rose = self._times.follow(polled)
        if polled.finished:
            self.end()
        else:
            now_s = self._clock.monotonic_s()
            self._times.tell(now_s, is_silent=now_s >= self.chain.idle_at_s)
        return polled

    def end(self) -> None:
        """Nothing is read any more, as at the end of the input."""
        self._end()

    def checkpoint(self, checkpoint_id: int) -> None:
        """Put a barrier after what was sent; called between two polls."""
        self._pass_barrier(checkpoint_id)

    def mark_idle(self) -> None:
        """Do not hold back the watermark until there are rows again."""
        self._times.be_idle()
        self._times.tell(self._clock.monotonic_s())

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
