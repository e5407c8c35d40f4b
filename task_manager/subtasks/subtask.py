"""One subtask: a thread that takes input, runs a chain of operators and sends output until the end of the stream."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import Checkpoints, TakenPart
from task_manager.exchange.channels import Delivery, Inbox, Wave
from task_manager.exchange.credits import CancelledError
from task_manager.exchange.gathering import Gathering
from task_manager.exchange.output import Output
from task_manager.exchange.pace import Pace
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.progress import InputWatermark, SubtaskProgress, SubtaskState
from weir import threads
from weir.clock import Clock
from weir.errors import WeirError, kind_of
from weir.operators.base import NEVER_US, Json
from weir.operators.chain import OperatorChain
from weir.operators.step_errors import StepError
from weir.operators.user_errors import UserErrors
from weir.protocol.event_counts import EventCounts
from weir.records import Barrier, EndOfStream, batch_bytes
from weir.state.placement.placed_store import PlacedStore
from weir.types import SubtaskId

log = logging.getLogger(__name__)

#: Longest sleep of a loop with nothing to do; work, credits and cancellation end it earlier.
_SLEEP_S_MAX = 0.5
#: A subtask that lets rows gather for longer sleeps so long whatever comes; for less, that would be one sleep more.
_LONG_REST_S = 0.004
#: A flush of dirty state takes this share of its interval, in steps at least this far apart.
_FLUSH_SPREAD = 0.5
_FLUSH_STEP_S = 0.005
#: Rows wait for one step no longer than this and one write, also where others have the processor or the GIL.
_FLUSH_HOLD_S = 0.004
#: Intervals after a checkpoint, which writes all dirty state itself: where the next one comes about as soon as a flush
#: would, keys that change all the time are written once and not twice.
_FLUSH_WAITS = 2
#: After a step of the sweep of expired state: this many times its duration is for rows.
_SWEEP_REST = 9
#: Whether there is something to sweep is asked so often.
_SWEEP_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class SubtaskTimers:
    """Intervals of the loop."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    state_flush_interval_ms: float
    #: A barrier that waits longer for those of other inputs overtakes rows.
    alignment_timeout_ms: float
    #: How long a row may wait for others that go the same way, and the rows of the largest batch.
    batch_timeout_ms: float
    batch_rows_max: int
    #: How much longer it waits while the process is busy with small batches.
    gathering: Gathering | None = None
    #: Some step of the job does something when a watermark comes.
    watermarks_soon: bool = True


@dataclass(frozen=True, slots=True)
class SubtaskParts:
    """What a subtask of any kind is made of."""

    subtask: SubtaskId
    chain: OperatorChain[Output]
    mailbox: Mailbox
    timers: SubtaskTimers
    clock: Clock
    #: There is something to report.
    on_change: Callable[[], None]
    checkpoints: Checkpoints
    progress: SubtaskProgress
    #: Logs what the code of the job's author raises.
    errors: UserErrors


class Subtask(ABC):
    """Common frame of source and task subtasks. Other threads call ``start``, ``cancel`` and read ``progress``."""

    def __init__(self, parts: SubtaskParts) -> None:
        subtask, timers = parts.subtask, parts.timers
        self.subtask = subtask
        self.mailbox = parts.mailbox
        self.progress = parts.progress
        self._errors = parts.errors
        self._chain = parts.chain
        self._timers = timers
        self._clock = parts.clock
        self._on_change = parts.on_change
        self._checkpoints = parts.checkpoints
        self._pace = Pace(timers.batch_rows_max, timers.batch_timeout_ms, timers.gathering)
        self._job_start_us: int | None = None
        self._next_flush_s = 0.0
        #: Monotonic second at which expired state is swept next, when it was last, and how idle the subtask was then.
        self._next_sweep_s = self._swept_s = self._swept_idle_s = 0.0
        #: Monotonic second at which the flush under way began; 0: none.
        self._flush_began_s = 0.0
        self._ends_stream_when_cancelled = False
        self._last_commit = threading.Lock()
        self._thread: threads.Running | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threads.start(self.run, f"subtask {self.subtask}")

    def begin(self, job_start_us: int) -> None:
        """Every subtask of the job is ready; called once, by the task manager's server."""
        self._job_start_us = job_start_us
        self.mailbox.inbox.wake()

    def cancel(self, *, end_stream: bool = False) -> None:
        """Ask the thread to stop at the next batch boundary, also when it waits for input or credit.

        With ``end_stream`` its consumers see a regular end: for a subtask that has sent nothing yet.
        """
        self._ends_stream_when_cancelled = end_stream
        self.mailbox.cancel()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread; False if it still runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def input_watermarks(self) -> list[InputWatermark]:
        """How far event time has come on each input channel that has not ended; called by any thread."""
        return []

    @abstractmethod
    def _loop(self) -> None:
        """Run until the input ends; raise CancelledError when told to stop."""

    def run(self) -> None:
        """Run to the end in the calling thread; whatever ends it is told: a function may even call sys.exit()."""
        try:
            self._run_to_end()
        except CancelledError as error:
            if self.mailbox.is_cancelled:
                self._stop()
            else:
                self._fail(error)
        except BaseException as error:
            self._fail(error)
        else:
            self._change(SubtaskState.FINISHED)

    def _run_to_end(self) -> None:
        self._chain.open()
        self._next_flush_s = self._flush_time_s()
        self._change(SubtaskState.DEPLOYED)
        self._loop()
        self._count_output()
        self._chain.output.finish()
        self._run_last_commands()
        self._deliver_last_part()
        self._chain.close()
        self._chain.output.close()

    def _stop(self) -> None:
        """It was told to."""
        try:
            if self._ends_stream_when_cancelled:
                self._chain.output.broadcast(EndOfStream())
        except WeirError as error:
            log.debug("subtask %s: the end of its stream was not told: %s", self.subtask, error)
        self._abandon()
        self._change(SubtaskState.CANCELED)

    def _fail(self, error: BaseException) -> None:
        self._abandon(error)
        self.progress.failure_kind = error.kind if isinstance(error, StepError) else kind_of(error)
        if isinstance(error, StepError) and error.__cause__ is not None:
            self._errors.tell(error.step, error.__cause__, error.batch)
        if isinstance(error, WeirError | StepError):
            self.progress.failed_step = error.step
            self._change(SubtaskState.FAILED, str(error))
        else:
            log.error("subtask %s failed", self.subtask, exc_info=error)
            self._change(SubtaskState.FAILED, f"{type(error).__name__}: {error}")

    def _run_last_commands(self) -> None:
        """The end of the stream was sent; what was ordered before anybody could know is still carried out."""
        while not self.mailbox.close():
            self.mailbox.run_commands()

    def _snapshot(self, checkpoint_id: int) -> TakenPart | None:
        """The barrier is here: pass it on, and note the state; None if that fails, which fails the checkpoint only."""
        self._chain.drain()
        self._chain.output.broadcast(Barrier(checkpoint_id))
        self.progress.passed_id = checkpoint_id
        began_s = self._clock.monotonic_s()
        try:
            position = self._position()
            operators, captures = self._chain.snapshot(checkpoint_id)
            part = self._checkpoints.take(
                self.subtask,
                checkpoint_id,
                position | operators,
                captures,
                self._backend,
                self.progress.passed_id,
            )
            part.counts = self._counts()
            return part
        except WeirError as error:
            self._checkpoints.fail(self.subtask, checkpoint_id, str(error))
            return None
        finally:
            self._next_flush_s, self._flush_began_s = self._flush_time_s(_FLUSH_WAITS), 0.0
            self._note_hold(began_s)

    def _deliver_last_part(self) -> None:
        """What there is at the end counts for every later checkpoint."""
        position = self._position()
        operators, captures = self._chain.snapshot(0)
        part = self._checkpoints.take(
            self.subtask, 0, position | operators, captures, self._backend, self.progress.passed_id
        )
        part.counts = self._counts()
        # The state is closed after it.
        part.wait()
        self._checkpoints.deliver(part)

    def _counts(self) -> EventCounts:
        self._count_output()
        return EventCounts(self.progress.records_in, self.progress.records_out)

    def _position(self) -> dict[str, Json]:
        """What a source adds to the snapshots of its operators."""
        return {}

    @property
    def _backend(self) -> PlacedStore | None:
        """The state of a subtask that owns key groups."""
        return None

    def commit(self, checkpoint_id: int, *, is_last: bool, waits: bool = False) -> Future[None] | None:
        """Let sinks deliver what belongs to a complete checkpoint; ``is_last``: it holds the last part of this subtask.

        ``waits``: the caller waits for it, so that it must not be late where there is nothing to deliver, either.

        Called by the task manager's server. Done in the subtask's thread, which fails if that fails, or here when the
        subtask has ended.

        Returns:
            Done when the sinks have delivered (without ``waits`` some may have begun only, and tell failures at the
            next checkpoint); None: they have, or the subtask has ended.

        Raises:
            WeirError, StepError: a subtask that has ended could not deliver; it can be called again.
        """
        if is_last:
            # Its last part comes a moment before its end.
            self.join()
            # The control plane asks again when an answer is late.
            with self._last_commit:
                if self.progress.state is SubtaskState.FINISHED:
                    self._chain.commit(0)
            return None
        return self.mailbox.post(
            lambda: self._commit(checkpoint_id, waits), wakes=waits or self._chain.minds_commits
        )

    def _commit(self, checkpoint_id: int, waits: bool) -> None:
        # Rows that made a step raise are before this checkpoint.
        if self._chain.isolation is not None:
            self._chain.isolation.relax()
        self._chain.commit(checkpoint_id, waits=waits)

    def _abandon(self, cause: BaseException | None = None) -> None:
        """Free everything after a failure; a second failure on the way must not hide the first."""
        self.mailbox.discard(cause)
        for close in (self._chain.close, self._chain.output.close):
            try:
                close()
            except BaseException:
                log.warning("subtask %s: closing after a failure failed too", self.subtask, exc_info=True)

    def _change(self, state: SubtaskState, cause: str = "") -> None:
        self.progress.cause = cause
        self.progress.state = state
        self._on_change()

    def _process(self, batch: pa.RecordBatch, size_bytes: int | None = None, input_index: int = 0) -> None:
        """Run one batch through the chain and account for the time, also for the pace.

        ``size_bytes``: ``batch_bytes`` of the batch, or nearly, where it is known already; ``input_index``: the input
        that it came from, if the first step tells its inputs apart.
        """
        size_bytes = batch_bytes(batch) if size_bytes is None else size_bytes
        self._account(batch.num_rows, size_bytes, lambda: self._chain.process(batch, input_index=input_index))

    def _account(self, rows: int, size_bytes: int, process: Callable[[], None]) -> None:
        """Process rows of so many bytes, and account for them."""
        progress, output = self.progress, self._chain.output
        progress.records_in += rows
        progress.batches_in += 1
        progress.bytes_in += size_bytes
        progress.first_batch_us = progress.first_batch_us or self._clock.now_us()
        began_s, waited_s = self._clock.monotonic_s(), output.waited_s
        process()
        progress.last_batch_us = self._clock.now_us()
        waited_s = output.waited_s - waited_s
        progress.backpressured_s = output.waited_s
        elapsed_s = self._clock.monotonic_s() - began_s - waited_s
        progress.busy_s += elapsed_s
        self._pace.processed(rows, began_s, elapsed_s, waited_s)
        self.mailbox.inbox.busy_share = self._pace.busy_share
        self._count_output()

    def _count_output(self) -> None:
        output = self._chain.output
        # A chain that ends in a sink has no channels: what the sink received counts.
        self.progress.records_out = output.rows if output.has_channels else self._chain.rows_into_last
        self.progress.batches_out = output.batches
        self.progress.bytes_out = output.bytes_sent

    def _flush_time_s(self, intervals: int = 1) -> float:
        return self._clock.monotonic_s() + intervals * self._timers.state_flush_interval_ms / 1e3

    def _housekeeping(self) -> float:
        """Call operators at their time, send rows that are due, write dirty state; returns when that is needed next.

        That is a monotonic second.
        """
        due_s = self._call_on_time()
        deadline_s = min(due_s, self._chain.output.pump())
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_flush_s:
            self._flush_part(now_s)
        if self._chain.tables.sweeps:
            if now_s >= self._next_sweep_s:
                self._sweep(now_s)
            deadline_s = min(deadline_s, self._next_sweep_s)
        return min(deadline_s, self._next_flush_s)

    def _call_on_time(self) -> float:
        """Let operators do what is due by the clock; returns the monotonic second at which something is next."""
        due_us = self._chain.due_us()
        if due_us >= NEVER_US or self._job_start_us is None:
            return float("inf")
        now_us = self._clock.now_us()
        if due_us <= now_us:
            began_s, waited_s = self._clock.monotonic_s(), self._chain.output.waited_s
            self._chain.on_time()
            waited_s = self._chain.output.waited_s - waited_s
            self.progress.busy_s += self._clock.monotonic_s() - began_s - waited_s
            self._count_output()
            due_us, now_us = self._chain.due_us(), self._clock.now_us()
        return self._clock.monotonic_s() + max(due_us - now_us, 0) / 1e6

    def _flush_part(self, now_s: float) -> None:
        """Write dirty state in steps spread over a part of the interval, so that no row waits for all of it."""
        interval_s = self._timers.state_flush_interval_ms / 1e3
        self._flush_began_s = self._flush_began_s or now_s
        elapsed_s = now_s - self._flush_began_s
        share = min(1.0, (elapsed_s + _FLUSH_STEP_S) / (interval_s * _FLUSH_SPREAD))
        if self._chain.flush_part(share, lambda: self._clock.monotonic_s() - now_s > _FLUSH_HOLD_S):
            self._next_flush_s = self._flush_began_s + interval_s
            self._flush_began_s = 0.0
        else:
            self._next_flush_s = now_s + _FLUSH_STEP_S
        self._note_hold(now_s)

    def _note_hold(self, began_s: float) -> None:
        """State was written or noted since then, and rows waited."""
        hold_s = self._clock.monotonic_s() - began_s
        self.progress.busy_s += hold_s
        self.progress.state_hold_s_max = max(self.progress.state_hold_s_max, hold_s)

    def _sweep(self, now_s: float) -> None:
        """Give space of expired state back: in a tenth of the time at most, in half of it if there is little else."""
        has_more = self._chain.tables.sweeps.step(clock=self._clock)
        idle_s, self._swept_idle_s = self.progress.idle_s - self._swept_idle_s, self.progress.idle_s
        ended_s = self._clock.monotonic_s()
        is_idle = idle_s > (now_s - self._swept_s) / 2
        pause_s = (ended_s - now_s) * (1 if is_idle else _SWEEP_REST) if has_more else _SWEEP_LOOK_S
        self._swept_s, self._next_sweep_s = ended_s, ended_s + pause_s
        self.progress.busy_s += ended_s - now_s

    def _poll(self, until_s: float, gather_until_s: float = 0.0, inputs: int = 1) -> Delivery | None:
        """Sleep until an element, a wake-up or a moment comes.

        Small batches gather until a second moment, and for a moment after the first of them: sources that poll at the
        same time send at the same time, so the others of the ``inputs`` mostly come at once.
        """
        began_s = self._clock.monotonic_s()
        timeout_s = min(until_s - began_s, _SLEEP_S_MAX)
        inbox = self.mailbox.inbox
        is_woken = False
        if self._chain.output.is_held and not inbox.has_gathered:
            self._chain.output.let_go()
        wave_s = self._pace.wave_s if gather_until_s > 0 else 0.0
        if inbox.borrows and (wave_s > 0 or gather_until_s <= 0):
            inbox.stop_borrowing()
        if wave_s > 0:
            rest_s = min(gather_until_s - began_s, timeout_s)
            wave = inbox.await_wave(rest_s, timeout_s - max(rest_s, 0.0), wave_s, inputs)
            if len(inbox):
                self._pace.saw_wave(whole=wave is Wave.WHOLE)
            is_woken = wave is Wave.WOKEN
            timeout_s = 0.0
        elif gather_until_s > 0:
            if gather_until_s - began_s > _LONG_REST_S:
                # What comes before is not looked at: to be woken by the first of it would only cost.
                inbox.rest(min(gather_until_s - began_s, timeout_s))
                timeout_s = min(until_s - self._clock.monotonic_s(), _SLEEP_S_MAX)
            if not self._await_round(inbox, timeout_s, inputs):
                timeout_s = min(until_s - self._clock.monotonic_s(), _SLEEP_S_MAX)
                if inbox.wait_for_one(timeout_s):
                    self._gather(inbox, min(gather_until_s, until_s), inputs)
            timeout_s = 0.0
        delivery = None if is_woken else inbox.poll(timeout_s)
        self.progress.idle_s += self._clock.monotonic_s() - began_s
        # The next call lets it go: what a wave leads to leaves as one message.
        self._chain.output.is_held = wave_s > 0
        self.mailbox.run_commands()
        if self.progress.state is SubtaskState.DEPLOYED and self._job_start_us is not None:
            self._change(SubtaskState.RUNNING)
        return delivery

    def _await_round(self, inbox: Inbox, timeout_s: float, inputs: int) -> bool:
        """Where all inputs bring something at a time: wait for all of it as long as it is to come.

        False: none did, and it is to be waited for otherwise.
        """
        round_s = self._pace.round_s(self._clock.monotonic_s()) if inputs > 1 else 0.0
        elements = 0
        if round_s > 0:
            wait_s, borrows = min(round_s, timeout_s), self._pace.has_long_rounds
            if inbox.borrows and not borrows:
                inbox.stop_borrowing()
            elements = inbox.await_round(wait_s, inputs, self._pace.late_s, borrows=borrows)
            if round_s > timeout_s:
                return True
            if 0 < elements < inputs:
                self._pace.gathered(elements)
        if not elements and inbox.borrows and not inbox.is_woken:
            inbox.stop_borrowing()
        return elements > 0

    def _gather(self, inbox: Inbox, until_s: float, inputs: int) -> None:
        now_s = self._clock.monotonic_s()
        window_s = self._pace.window_s(now_s) if inputs > 1 else 0.0
        if until_s - now_s > window_s:
            inbox.gather(until_s - now_s)
        elif window_s > 0:
            inbox.gather(window_s, inputs)
            self._pace.gathered(len(inbox))
