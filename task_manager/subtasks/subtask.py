"""The subtask: a thread that takes input, runs a chain of operators and sends output until the end of the stream."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.channels import CancelledError
from task_manager.exchange.inbox import Delivery
from task_manager.exchange.pace import Pace
from task_manager.progress import InputWatermark, SubtaskState
from task_manager.subtasks.mailbox import InputWait
from task_manager.subtasks.row_sample import RowSample
from task_manager.subtasks.state_upkeep import StateUpkeep
from task_manager.subtasks.subtask_parts import SubtaskParts
from weir import threads
from weir.author.operator import NEVER_US, Json
from weir.errors import WeirError, kind_of
from weir.operators.step_errors import StepError
from weir.operators.step_flow import PartRows, StepFlow
from weir.protocol.job.event_counts import EventCounts
from weir.rows.records import Barrier, EndOfStream, InputRows, batch_bytes
from weir.state import waits
from weir.state.placement.placed_store import PlacedStore

log = logging.getLogger(__name__)


class Subtask(ABC):
    """Common frame of source and task subtasks. Other threads call ``start``, ``cancel`` and read ``progress``."""

    def __init__(self, parts: SubtaskParts) -> None:
        subtask, timers = parts.subtask, parts.timers
        self.subtask = subtask
        self.name = parts.name
        self.mailbox = parts.mailbox
        self.progress = parts.progress
        self._errors = parts.errors
        self._chain = parts.chain
        self._timers = timers
        self._clock = parts.clock
        self._on_change = parts.on_change
        self._checkpoints = parts.checkpoints
        self._pace = Pace(timers.batch_rows_max, timers.batch_timeout_ms, timers.gathering)
        self._parts = PartRows(timers.batch_rows_max)
        self._upkeep = StateUpkeep(parts.chain, parts.progress, parts.clock, timers.state_flush_interval_ms)
        self._input_wait = InputWait(
            parts.mailbox.inbox, parts.chain.output, self._pace, parts.progress, parts.clock
        )
        self._waiting_rows = parts.waiting_rows
        #: Monotonic second at which operators have something to do by the clock.
        self._timer_s = float("inf")
        self.sample = RowSample()
        self.sample.is_last = not parts.chain.output.has_channels
        self._times_key, self._restored_times = parts.times_key, parts.restored_times
        self._job_start_us: int | None = None
        self._ends_stream_when_cancelled = False
        self._last_commit = threading.Lock()
        self._chain.pauses.on_pause = self._pause
        self._thread: threads.Running | None = None
        #: Tells processors' time of the thread; None before it runs, and where that is not known.
        self._processor_clock: Callable[[], float] | None = None
        #: Of the thread, as ``threading.get_ident``; None before it runs. Another thread may have it after the end.
        self.thread_ident: int | None = None

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

    def processor_s(self) -> float | None:
        """Processors' time that the thread has used; None: not known, or it has ended; called by any thread."""
        try:
            return None if self._processor_clock is None else self._processor_clock()
        except OSError:
            return None

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
        threads.works_on_rows()
        self.thread_ident = threading.get_ident()
        self._processor_clock = threads.processor_clock()
        self._chain.open()
        self._upkeep.begin()
        self._change(SubtaskState.DEPLOYED)
        self._loop()
        self._count_output()
        while not self._chain.output.send_rest():
            self._wait_for_room(float("inf"))
        self._chain.output.finish()
        self._run_last_commands()
        self._deliver_last_part()
        self._chain.close()
        self._chain.output.close()

    def _stop(self) -> None:
        """End the subtask, which was told to stop."""
        try:
            if self._ends_stream_when_cancelled:
                self._chain.output.broadcast(EndOfStream())
        except WeirError as error:
            log.debug("%s: the end of its stream was not told: %s", self.name, error)
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
            log.error("%s failed", self.name, exc_info=error)
            self._change(SubtaskState.FAILED, f"{type(error).__name__}: {error}")

    def _run_last_commands(self) -> None:
        """The end of the stream was sent; what was ordered before anybody could know is still carried out."""
        while not self.mailbox.close():
            self.mailbox.run_commands()

    def _snapshot(self, checkpoint_id: int) -> TakenPart | None:
        """The barrier is here: pass it on, and note the state; None if that fails, which fails the checkpoint only."""
        waiting = self._parked()
        self._chain.output.broadcast(Barrier(checkpoint_id))
        self.progress.passed_id = checkpoint_id
        began_s = self._clock.monotonic_s()
        try:
            position = self._position()
            operators, captures = self._chain.snapshot(checkpoint_id)
            part = self._checkpoints.take(
                self.subtask,
                checkpoint_id,
                position | operators | {self._times_key: self._known_times()},
                captures,
                self._backend,
                self.progress.passed_id,
            )
            part.counts = self._counts()
            part.sync, part.waiting = self._chain.sync, waiting
            return part
        except WeirError as error:
            self._checkpoints.fail(self.subtask, checkpoint_id, str(error))
            return None
        finally:
            self._upkeep.wrote_all(began_s)

    def _parked(self) -> list[InputRows]:
        """Rows that wait for steps within the stage, as a checkpoint has them."""
        now_s, timeout_s = self._clock.monotonic_s(), self._timers.alignment_timeout_ms / 1e3
        self._chain.drain(now_s if self._chain.pauses.paused_at is not None else now_s + timeout_s)
        index = self.subtask.subtask_index
        return [
            InputRows(
                0, rows.batch, in_time=True, step=rows.step, known_ms=rows.known_ms, subtask_index=index
            )
            for rows in self._chain.park(with_first=self._has_no_inputs)
        ]

    #: Rows that its first operator was given came from no input.
    _has_no_inputs = False

    def _deliver_last_part(self) -> None:
        """What there is at the end counts for every later checkpoint."""
        position = self._position()
        operators, captures = self._chain.snapshot(0)
        part = self._checkpoints.take(
            self.subtask, 0, position | operators, captures, self._backend, self.progress.passed_id
        )
        part.counts = self._counts()
        # State and files are closed after it.
        part.wait()
        self._chain.sync()
        self._checkpoints.deliver(part)

    def _counts(self) -> EventCounts:
        self._count_output()
        return EventCounts(self.progress.records_in, self.progress.records_out)

    def _position(self) -> dict[str, Json]:
        """What a source adds to the snapshots of its operators."""
        return {}

    @abstractmethod
    def _known_times(self) -> Json:
        """How far event time has come, in the form of ``weir.protocol.watermarks.input_times``."""

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
            lambda: self._commit(checkpoint_id, waits),
            wakes=waits or self._chain.minds_commits,
            at_pauses=True,
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
                log.warning("%s: closing after a failure failed too", self.name, exc_info=True)

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
        self._account(batch.num_rows, size_bytes, self._chain.process, batch, 0, input_index)

    def _account(self, rows: int, size_bytes: int, process: Callable[..., None], *given: object) -> None:
        """Process rows of so many bytes, by a call with what is given, and account for them."""
        progress, output = self.progress, self._chain.output
        progress.records_in += rows
        progress.batches_in += 1
        progress.bytes_in += size_bytes
        progress.first_batch_us = progress.first_batch_us or self._clock.now_us()
        began_s, waited_s, stored_s = self._clock.monotonic_s(), output.waited_s, waits.of_thread.seconds
        process(*given)
        stored_s = waits.of_thread.seconds - stored_s
        progress.last_batch_us = self._clock.now_us()
        waited_s = output.waited_s - waited_s
        progress.backpressured_s = output.waited_s
        elapsed_s = self._clock.monotonic_s() - began_s - waited_s
        progress.busy_s += elapsed_s
        self._pace.processed(rows, began_s, elapsed_s, waited_s, stored_s)
        self._parts.took(rows, elapsed_s + waited_s, stored_s)
        self.mailbox.inbox.busy_share = self._pace.busy_share
        self._count_output()

    def _count_output(self) -> None:
        output = self._chain.output
        # A chain that ends in a sink has no channels: what the sink received counts.
        self.progress.records_out = output.rows if output.has_channels else self._chain.rows_into_last
        self.progress.batches_out = output.batches

    def _wait_for_room(self, until_s: float) -> None:
        """Rows that were sent wait for credit: sleep until some comes, or a moment, and do what was ordered."""
        output = self._chain.output
        waited_s = output.waited_s
        output.wait_for_room(max(until_s - self._clock.monotonic_s(), 0.0))
        self._pace.held_up(self._clock.monotonic_s(), output.waited_s - waited_s)
        self.progress.backpressured_s = output.waited_s
        self.mailbox.inbox.busy_share = self._pace.busy_share
        self._run_commands()

    def _pause(self, paused: StepFlow) -> None:
        """An operator has done a part of what is due: do what was ordered meanwhile, and may be done now."""
        self.mailbox.run_at_pause()
        self._note_start()
        self._chain.output.pump()

    def _run_commands(self) -> None:
        """Do what was ordered; between two batches."""
        self.mailbox.run_commands()
        self._note_start()

    def _note_start(self) -> None:
        if self.progress.state is SubtaskState.DEPLOYED and self._job_start_us is not None:
            self._change(SubtaskState.RUNNING)

    def _housekeeping(self) -> float:
        """Call operators at their time, send rows that are due, write dirty state; returns when that is needed next.

        That is a monotonic second.
        """
        chain = self._chain
        self._timer_s = self._call_on_time() if chain.is_timed else float("inf")
        sent_s = chain.output.pump()
        if self._clock.monotonic_s() >= self._upkeep.due_s:
            self._upkeep.step()
        return min(self._timer_s, sent_s, self._upkeep.due_s)

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

    def _poll(self, until_s: float, gather_until_s: float = 0.0, inputs: int = 1) -> Delivery | None:
        """Sleep as :meth:`InputWait.poll` does, and do what was ordered meanwhile."""
        delivery = self._input_wait.poll(until_s, gather_until_s, inputs, self._timer_s)
        # As in _run_commands: a small batch pays for each call.
        self.mailbox.run_commands()
        if self.progress.state is SubtaskState.DEPLOYED and self._job_start_us is not None:
            self._change(SubtaskState.RUNNING)
        return delivery
