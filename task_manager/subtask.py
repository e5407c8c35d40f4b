"""One subtask: a thread that takes input, runs a chain of operators and sends output until the end of the stream."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from task_manager.channels import Delivery
from task_manager.credits import CancelledError
from task_manager.mailbox import Mailbox
from task_manager.operator_chain import OperatorChain, StepError, naming_step
from task_manager.progress import SubtaskProgress, SubtaskState
from weir.clock import Clock
from weir.errors import WeirError
from weir.operators.base import OperatorContext, SourceReader
from weir.protocol.watermarks import WatermarkTracker
from weir.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    EndOfStream,
    Idle,
    Watermark,
    batch_bytes,
    int64_column,
)
from weir.types import ChannelId, SubtaskId

log = logging.getLogger(__name__)

#: Longest sleep of a loop with nothing to do; work, credits and cancellation end it earlier.
_SLEEP_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class SubtaskTimers:
    """Intervals of the loop."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    state_flush_interval_ms: float


class Subtask(ABC):
    """Common frame of source and task subtasks. Other threads call ``start``, ``cancel`` and read ``progress``."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain,
        mailbox: Mailbox,
        timers: SubtaskTimers,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self.subtask = subtask
        self.mailbox = mailbox
        self.progress = SubtaskProgress()
        self._chain = chain
        self._timers = timers
        self._clock = clock
        self._on_change = on_change
        self._job_start_us: int | None = None
        self._next_flush_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"subtask {subtask}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self, job_start_us: int) -> None:
        """Every subtask of the job is ready; called once, by the task manager's server."""
        self._job_start_us = job_start_us
        self.mailbox.inbox.wake()

    def cancel(self) -> None:
        """Ask the thread to stop at the next batch boundary, also when it waits for input or credit."""
        self.mailbox.cancel()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread; False if it still runs."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def _loop(self) -> None:
        """Run until the input ends; raise CancelledError when told to stop."""

    def _run(self) -> None:
        try:
            self._chain.open()
            self._next_flush_s = self._flush_time_s()
            self._change(SubtaskState.DEPLOYED)
            self._loop()
            self._chain.close()
            self._count_output()
            self._chain.output.finish()
            self._chain.output.close()
        except CancelledError:
            self._abandon()
            self._change(SubtaskState.CANCELED)
        except (WeirError, StepError) as error:
            self._abandon()
            self._change(SubtaskState.FAILED, f"subtask {self.subtask}: {error}")
        except Exception as error:
            log.exception("subtask %s failed", self.subtask)
            self._abandon()
            self._change(SubtaskState.FAILED, f"subtask {self.subtask}: {type(error).__name__}: {error}")
        else:
            self._change(SubtaskState.FINISHED)

    def _abandon(self) -> None:
        """Free everything after a failure; a second failure on the way must not hide the first."""
        try:
            self._chain.close()
        except Exception:
            log.warning("subtask %s: closing after a failure failed too", self.subtask, exc_info=True)
        self._chain.output.close()

    def _change(self, state: SubtaskState, cause: str = "") -> None:
        self.progress.cause = cause
        self.progress.state = state
        self._on_change()

    def _process(self, batch: pa.RecordBatch) -> None:
        """Run one batch through the chain and account for the time."""
        progress, output = self.progress, self._chain.output
        progress.records_in += batch.num_rows
        progress.batches_in += 1
        progress.bytes_in += batch_bytes(batch)
        progress.first_batch_us = progress.first_batch_us or self._clock.now_us()
        began_s, waited_s = time.monotonic(), output.waited_s
        self._chain.process(batch)
        progress.last_batch_us = self._clock.now_us()
        waited_s = output.waited_s - waited_s
        progress.backpressured_s += waited_s
        progress.busy_s += time.monotonic() - began_s - waited_s
        self._count_output()

    def _count_output(self) -> None:
        output = self._chain.output
        # A chain that ends in a sink has no channels: what the sink received counts.
        self.progress.records_out = output.rows if output.has_channels else self._chain.rows_into_last
        self.progress.batches_out = output.batches
        self.progress.bytes_out = output.bytes_sent

    def _flush_time_s(self) -> float:
        return time.monotonic() + self._timers.state_flush_interval_ms / 1e3

    def _housekeeping(self) -> float:
        """Send rows that are due and write dirty state; gives the monotonic second of the next need."""
        deadline_s = self._chain.output.pump()
        now_s = time.monotonic()
        if now_s >= self._next_flush_s:
            self._chain.flush()
            self.progress.busy_s += time.monotonic() - now_s
            self._next_flush_s = self._flush_time_s()
        return min(deadline_s, self._next_flush_s)

    def _poll(self, until_s: float) -> Delivery | None:
        """Sleep until an element, a wake-up or a moment comes."""
        began_s = time.monotonic()
        delivery = self.mailbox.inbox.poll(min(until_s - began_s, _SLEEP_S_MAX))
        self.progress.idle_s += time.monotonic() - began_s
        self.mailbox.run_commands()
        if self.progress.state is SubtaskState.DEPLOYED and self._job_start_us is not None:
            self._change(SubtaskState.RUNNING)
        return delivery


class TaskSubtask(Subtask):
    """Takes batches from its input channels."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain,
        mailbox: Mailbox,
        timers: SubtaskTimers,
        clock: Clock,
        on_change: Callable[[], None],
        inputs: Iterable[ChannelId],
    ) -> None:
        super().__init__(subtask, chain, mailbox, timers, clock, on_change)
        self._watermarks = WatermarkTracker(inputs)
        self._forwarded_s = float("-inf")
        self._idle_forwarded = False

    def _loop(self) -> None:
        while self._watermarks.open_inputs:
            delivery = self._poll(self._housekeeping())
            if delivery is not None:
                self._take(delivery)
            self._forward_watermark()
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    def _take(self, delivery: Delivery) -> None:
        element, channel = delivery.element, delivery.channel
        if isinstance(element, pa.RecordBatch):
            self._watermarks.mark_active(channel)
            self._process(element)
        elif isinstance(element, Watermark):
            self._raise_watermark(self._watermarks.advance(channel, element.time_ms))
        elif isinstance(element, Idle):
            self._raise_watermark(self._watermarks.mark_idle(channel))
        elif isinstance(element, EndOfStream):
            self._raise_watermark(self._watermarks.end(channel))
        delivery.release()

    def _raise_watermark(self, time_ms: int | None) -> None:
        if time_ms is not None and time_ms != WATERMARK_MAX_MS:
            self._chain.on_watermark(time_ms)
            self.progress.watermark_ms = time_ms

    def _forward_watermark(self) -> None:
        """Pass the combined watermark on, at most once per interval; idleness at once."""
        if self._watermarks.all_idle:
            if not self._idle_forwarded:
                self._idle_forwarded = True
                self._chain.output.broadcast(Idle())
            return
        # A watermark without rows ends idleness too (an operator upstream may drop all rows).
        self._idle_forwarded = False
        now_s = time.monotonic()
        if (now_s - self._forwarded_s) * 1e3 < self._timers.watermark_interval_ms:
            return
        time_ms = self._watermarks.combined_ms
        if time_ms not in (WATERMARK_MIN_MS, WATERMARK_MAX_MS):
            self._forwarded_s = now_s
            self._chain.output.broadcast(Watermark(time_ms))


class SourceSubtask(Subtask):
    """Takes batches from a reader, once the job has started, and makes watermarks."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain,
        mailbox: Mailbox,
        timers: SubtaskTimers,
        clock: Clock,
        on_change: Callable[[], None],
        reader: SourceReader,
        reader_context: Callable[[int], OperatorContext],
        rows_max: int,
    ) -> None:
        """``reader_context`` makes the reader's context from the job's start (epoch µs)."""
        super().__init__(subtask, chain, mailbox, timers, clock, on_change)
        self._reader = reader
        self._reader_context = reader_context
        self._rows_max = rows_max
        self._event_time_ms_max = WATERMARK_MIN_MS
        self._last_data_s = 0.0
        self._next_watermark_s = 0.0
        self._idle = False

    def _loop(self) -> None:
        while self._job_start_us is None:
            self._poll(float("inf"))
        context = self._reader_context(self._job_start_us)
        try:
            with naming_step(context.operator_name):
                self._reader.open(context)
                self._read()
        finally:
            self._reader.close()
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    def _read(self) -> None:
        self._last_data_s = time.monotonic()
        while True:
            polled = self._reader.poll(self._rows_max)
            if polled.batch is not None:
                self._emit(polled.batch)
            if polled.finished:
                return
            deadline_s = self._housekeeping()
            self._make_watermark()
            self.mailbox.run_commands()
            wait_us = polled.next_poll_us - self._clock.now_us() if polled.next_poll_us else 0
            if wait_us > 0:
                until_s = time.monotonic() + wait_us / 1e6
                self._poll(min(until_s, deadline_s, self._next_watermark_s))

    def _emit(self, batch: pa.RecordBatch) -> None:
        self._process(batch)
        newest_ms = int(np.max(int64_column(batch, EVENT_TIME_COLUMN)))
        self._event_time_ms_max = max(self._event_time_ms_max, newest_ms)
        self._last_data_s = time.monotonic()
        self._idle = False

    def _make_watermark(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_watermark_s:
            return
        self._next_watermark_s = now_s + self._timers.watermark_interval_ms / 1e3
        if (now_s - self._last_data_s) * 1e3 >= self._timers.idle_timeout_ms:
            if not self._idle:
                self._idle = True
                self._chain.output.broadcast(Idle())
        elif self._event_time_ms_max != WATERMARK_MIN_MS:
            time_ms = self._event_time_ms_max - int(self._timers.out_of_order_grace_period_ms)
            self._chain.on_watermark(time_ms)
            self.progress.watermark_ms = time_ms
            self._chain.output.broadcast(Watermark(time_ms))
