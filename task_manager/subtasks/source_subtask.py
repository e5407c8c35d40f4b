"""A subtask that reads from outside: takes batches from its reader once the job has started, and makes watermarks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from task_manager.subtasks.subtask import Subtask
from task_manager.subtasks.subtask_parts import SubtaskParts
from weir import threads
from weir.author.operator import Json, OperatorContext, Poll, SourceReader
from weir.author.watermarks import WatermarkStrategy
from weir.errors import InputError
from weir.operators.step_errors import as_kept, name_step, naming_step
from weir.operators.step_flow import StepFlow
from weir.operators.subtask_times import ReaderTimes
from weir.protocol.watermarks.time_reached import WatermarkTimes
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, Block, Watermark


class SourceSubtask(Subtask):
    """Takes batches from a reader, once the job has started, and makes watermarks."""

    def __init__(
        self,
        parts: SubtaskParts,
        reader: SourceReader,
        reader_context: Callable[[int], OperatorContext],
        rows_max: int,
        strategy: WatermarkStrategy,
        have_rows: Collection[int] = (),
    ) -> None:
        """``reader_context`` makes the reader's context from the job's start (epoch µs).

        ``have_rows``: indices of the subtasks that send rows of a checkpoint first, whether they read any or not.
        """
        super().__init__(parts)
        self._reader = reader
        reader.look_ahead(self._chain.look_ahead)
        late_but = self._chain.output.late_columns_but() if self._chain.only_filters else None
        if late_but is not None:
            reader.give_late(late_but)
        self._reader_context = reader_context
        self._rows_max, self._have_rows = rows_max, frozenset(have_rows)
        grace_ms, idle_ms = int(parts.timers.out_of_order_grace_period_ms), parts.timers.idle_timeout_ms
        self._times = ReaderTimes(parts.chain, strategy, grace_ms, idle_ms)
        timers = parts.timers
        self._moments = WatermarkTimes(
            timers.watermark_interval_ms,
            soon=timers.watermarks_soon,
            in_backlogs=timers.watermarks_soon_in_backlogs,
        )
        #: Name of the reader's step, once it is open.
        self._step = ""
        #: Why it reads nothing now, whatever rows there are; empty: it reads.
        self._outside = ""
        #: The savepoint after whose barrier nothing is read; 0: none.
        self._held_by = 0
        #: Checkpoints up to this number are over.
        self._ended_id = 0
        #: It sleeps until all sources read: a barrier leaves with what they read then, at most 0.2 s later.
        self.waits_for_turn = False
        #: What is being processed; None: nothing is.
        self._polled: Poll | None = None
        self._began_s = 0.0

    @property
    def step(self) -> str:
        """Name of the step that reads; empty until it is open. Any thread may ask."""
        return self._step

    def checkpoint(self, checkpoint_id: int, *, holds: bool = False) -> None:
        """Put a barrier after what was sent; runs in the subtask's thread, between two batches.

        With ``holds`` nothing is read after it until :meth:`end_checkpoint`, or until another checkpoint begins:
        whoever wanted the hold is gone then.
        """
        self._held_by = 0
        if not self._step:
            self._checkpoints.fail(
                self.subtask, checkpoint_id, f"source {self.subtask} has not begun to read"
            )
            return
        part = self._snapshot(checkpoint_id)
        if part is not None:
            # The word that it was given up may have come first.
            self._held_by = checkpoint_id if holds and checkpoint_id > self._ended_id else 0
            self._checkpoints.deliver(part)

    def end_checkpoint(self, checkpoint_id: int, *, committed: bool) -> None:
        """A checkpoint is over; if it was given up, what it held is read on. Runs in the subtask's thread."""
        self._ended_id = max(self._ended_id, checkpoint_id)
        if not committed and self._held_by <= checkpoint_id:
            self._held_by = 0

    def _commit(self, checkpoint_id: int, waits: bool) -> None:
        super()._commit(checkpoint_id, waits)
        with naming_step(self._step):
            self._reader.commit(checkpoint_id)

    def _position(self) -> dict[str, Json]:
        with naming_step(self._step):
            position = self._reader.snapshot()
        return {self._step: as_kept(position, self._step)}

    def _known_times(self) -> Json:
        return self._times.to_json(self._polled)

    _has_no_inputs = True

    def _pause(self, paused: StepFlow) -> None:
        # Else a barrier leaves between two polls.
        if (self._clock.monotonic_s() - self._began_s) * 1e3 >= self._timers.alignment_timeout_ms:
            super()._pause(paused)

    def _loop(self) -> None:
        while self._job_start_us is None:
            self._poll(float("inf"))
        # When rows are due, it sends them.
        threads.sleep_to_the_point()
        context = self._reader_context(self._job_start_us)
        try:
            with naming_step(context.operator_name):
                self._reader.open(context)
            self._step = context.operator_name
            self._began_s = self._clock.monotonic_s()
            self._times.go_on(self._restored_times, self._waiting_rows)
            # Others may wait for it before it reads, as it may wait for them.
            self.progress.read_watermark_ms = self._times.time_ms
            if not self._tell_first():
                self._read()
        except BaseException:
            # A second failure must not hide the first.
            with contextlib.suppress(Exception):
                self._reader.close()
            raise
        with naming_step(self._step):
            self._reader.close()
        self._times.end()
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    def _tell_first(self) -> bool:
        """Say what is known of event time before the first row; returns whether none will ever come."""
        with naming_step(self._step):
            began = self._reader.begin()
        without = tuple(index for index in began.without if index not in self._have_rows)
        if without:
            self._chain.output.broadcast(Watermark(WATERMARK_MIN_MS, without))
        self._times.follow(began)
        if not began.finished:
            self._times.tell(self._clock.monotonic_s())
            self.progress.read_watermark_ms = self._times.time_ms
        # Nobody has asked it for rows yet.
        self._times.has_rows()
        return began.finished

    def _read(self) -> None:
        times = self._times
        while True:
            while self._held_by:
                self._poll(self._housekeeping())
            if self._chain.output.is_over and not self._chain.output.has_room():
                self._wait_for_room(self._housekeeping())
                continue
            if not self._may_read:
                self._wait_for_others()
                continue
            # naming_step by hand, as in the operator chain.
            try:
                polled = self._reader.poll(min(self._rows_max, self._parts.rows))
            except BaseException as error:
                name_step(error, self._step)
                raise
            self._began_s = self._clock.monotonic_s()
            if polled.batch is not None or polled.due is not None:
                self._polled = polled
                if polled.due is not None:
                    block, start, stop = polled.due
                    self._account(stop - start, polled.size_bytes, self._process_due, block, start, stop)
                else:
                    self._process(polled.batch, polled.size_bytes)
                self._polled = None
                times.has_rows()
                self.progress.is_idle = False
            times.follow(polled)
            self.progress.read_watermark_ms = times.time_ms
            if polled.finished:
                return
            deadline_s = self._housekeeping()
            # A barrier goes before the watermark, at which consumers look whether all of a wave is there.
            self.mailbox.run_commands()
            now_s, now_us = self._clock.monotonic_s(), self._clock.now_us()
            self._make_watermark(now_s, now_us, is_calm=polled.next_poll_us > 0)
            wait_us = polled.next_poll_us - now_us if polled.next_poll_us else 0
            if wait_us > 0:
                turn_s = self._pace.turn_s(now_s, now_us)
                until_s = max(now_s + wait_us / 1e6, turn_s)
                # A machine that is busy with small batches gets fewer and larger ones.
                # An idle source has no watermark to tell before its next row.
                watermark_s = float("inf") if times.is_idle else self._moments.next_s
                if self._pace.marks_turns:
                    # Not just before the moment, without what is due at it.
                    watermark_s = max(watermark_s, turn_s)
                self.waits_for_turn = turn_s > now_s
                if not self._chain.output.is_held:
                    self._prepare()
                self._poll(min(until_s, deadline_s, watermark_s))
                # Rows of a wave and the watermark after them leave together, when it waits again. Others go at once,
                # and before a consumer of this process is woken, which takes the GIL.
                self._chain.output.is_held = self._pace.has_turns
                self.waits_for_turn = False
            elif self._chain.output.is_held:
                self._chain.output.let_go()

    def _process_due(self, block: Block, start: int, stop: int) -> None:
        try:
            self._chain.process_block(block, start, stop)
        except InputError as error:
            # A column of the block is read on the way.
            name_step(error, self._step)
            raise

    def _prepare(self) -> None:
        """Let the reader decode what is due later, while nothing is due: else the first of it would wait for that."""
        # As for a poll.
        try:
            block = self._reader.prepare()
        except BaseException as error:
            name_step(error, self._step)
            raise
        if block is not None and block.filters == len(self._chain.steps):
            self._chain.output.divide(block)

    def align(self, lowest_ms: Mapping[str, int]) -> None:
        """Tell it of the lowest watermark of each group of sources; called by any thread."""
        drift = self._times.drift
        if drift is None or drift.group not in lowest_ms:
            return
        # A number is assigned, and a sleep ended if that matters.
        if drift.told(lowest_ms[drift.group]) and self.progress.is_held_back:
            self.mailbox.inbox.wake()

    def hold_back(self, reason: str) -> None:
        """Read nothing for this reason; empty: read on. Called by any thread, again and again."""
        is_over = bool(self._outside) and not reason
        self._outside = reason
        if is_over:
            self.mailbox.inbox.wake()

    @property
    def _may_read(self) -> bool:
        return not self._outside and self._times.may_read

    def _wait_for_others(self) -> None:
        """Read nothing until sources that are behind have caught up, a disk has room, or a savepoint is over."""
        self.progress.is_held_back = True
        # It has rows, so that it is not idle; if it was, it says so again when it comes to that.
        self.progress.is_idle = False
        while not self._held_by and not self._may_read:
            self._times.has_rows()
            deadline_s = self._housekeeping()
            self._make_watermark(self._clock.monotonic_s(), self._clock.now_us())
            self._poll(min(deadline_s, self._moments.next_s))
        self.progress.is_held_back = False

    def _make_watermark(self, now_s: float, now_us: int, *, is_calm: bool = False) -> None:
        ends_wave = is_calm and self._pace.marks_turns and self._pace.take_turn(now_s)
        if is_calm and self._pace.marks_turns and not ends_wave:
            # It would tear the next wave.
            return
        rows = self.progress.records_in
        if not self._moments.take(now_s, now_us, rows, is_calm=is_calm, ends_wave=ends_wave):
            return
        times = self._times
        times.tell(now_s, is_silent=now_s >= self._chain.idle_at_s)
        self.progress.watermark_ms, self.progress.is_idle = times.told_ms, times.is_idle
