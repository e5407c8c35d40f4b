"""A subtask with inputs: takes batches from its channels, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from task_manager.checkpoints.checkpoint_inputs import BarrierPassing, CheckpointInputs
from task_manager.exchange.inbox import GONE, ChannelOpened, Delivery, RowsWanted, no_release
from task_manager.ownership.behind_markers import BehindMarkers
from task_manager.ownership.group_ownership import GroupState, Ownership, RescaleReports
from task_manager.progress import InputWatermark
from task_manager.subtasks.mailbox import ToldEvents
from task_manager.subtasks.subtask import Subtask
from task_manager.subtasks.subtask_parts import SubtaskParts
from weir.author.operator import HELD_INPUT, Json
from weir.errors import StateError
from weir.operators.step_flow import StepFlow
from weir.operators.subtask_times import TaskTimes
from weir.protocol.checkpoints.alignment import BarrierAligner
from weir.protocol.rescale.rescale_owner import (
    HandoverReceived,
    InputAdded,
    InputEnded,
    MarkerReceived,
    OwnerEvent,
    OwnerMachine,
)
from weir.rows import row_watermarks
from weir.rows.records import (
    JOINED_BYTES,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    Barrier,
    EndOfStream,
    Idle,
    InputRows,
    RouteMarker,
    Watermark,
    batch_bytes,
)
from weir.state.placement.placed_store import PlacedStore
from weir.types import ChannelId

#: Parked rows up to this size give their credit back at once; beyond, upstream has to wait for the handover.
_PARKED_BYTES_MAX = 64 << 20
_NEVER_S = float("inf")


class TaskSubtask(Subtask):
    """Ends when all inputs have ended and no key group is on its way."""

    def __init__(
        self,
        parts: SubtaskParts,
        inputs: Sequence[ChannelId],
        ended_checkpoint_id: int = 0,
        restored_rows: Sequence[InputRows] = (),
    ) -> None:
        """``ended_checkpoint_id``: checkpoints up to it are over; ``restored_rows`` come before all input."""
        super().__init__(parts)
        soon = parts.timers.watermarks_soon
        self._times = TaskTimes(parts.chain, inputs, parts.timers.watermark_interval_ms, soon=soon)
        self._ownership: Ownership | None = None
        self._behind_markers = BehindMarkers()
        self._held_releases: deque[Callable[[], None]] = deque()
        self._barriers = CheckpointInputs(
            BarrierAligner(inputs, ended_checkpoint_id),
            parts.clock,
            lambda *rows: self._times.in_time(*rows)[0],
        )
        self._passing = BarrierPassing(
            *(self._barriers, parts.mailbox.inbox, parts.clock, parts.checkpoints),
            parts.timers.alignment_timeout_ms,
            self._snapshot,
            self._rest,
        )
        for rows in restored_rows:
            # From itself: no barrier comes after them by that way, so that each that passes them holds what is left.
            channel, batch = ChannelId(self.subtask, self.subtask, rows.input_index), rows.batch
            if not (rows.in_time and parts.restored_times.is_own) and self._times.order is None:
                # What other inputs had come to is not known.
                batch = row_watermarks.standing_still(
                    batch, WATERMARK_MIN_MS, tells_ahead=parts.chain.tells_ahead
                )
            self._barriers.put_last(Delivery(channel, batch, no_release, batch_bytes(batch)))
        self._times.process = self._process_released
        self._state: PlacedStore | None = None
        # A small batch pays for every question.
        self._tells_inputs_apart = self._chain.tells_inputs_apart
        self._assigns_times = self._chain.assigns_times
        self._told = ToldEvents(parts.mailbox)
        #: Rows that are being taken in have made the combined watermark rise.
        self._rows_raise = False
        #: Key groups are on the move in a call: what belongs to a checkpoint is not where one would look for it.
        self._is_moving = False
        #: The input of the rows that are being processed.
        self._taken_edge = 0
        #: Where an operator has done a part of what is due; None: it has nothing left.
        self._paused: StepFlow | None = None

    def own_groups(
        self,
        machine: OwnerMachine,
        state: GroupState,
        reports: RescaleReports,
        backend: PlacedStore | None,
        keyed_inputs: Collection[int],
    ) -> None:
        """Make this a subtask of a stage with HASH inputs; called before the thread starts."""
        self._state = backend
        self._ownership = ownership = Ownership(
            *(machine, state, reports, self._process_input, keyed_inputs, self._settle),
            tells_ahead=self._chain.tells_ahead,
        )
        # Where it minds the time of each row, it stands still by itself: at the markers.
        self._times.is_parked = lambda: ownership.holds_watermark and not self._chain.minds_time

    def tell(self, event: OwnerEvent) -> Future[None] | None:
        """Let it take an event of a rescale in, between two batches; any thread may call it.

        None: it has ended, or its last row is behind it: what it owns it keeps to the end, and what its operators do
        then is done once.
        """
        return self._told.tell(partial(self.handle, event))

    def handle(self, event: OwnerEvent) -> None:
        """Take an event of a rescale in; runs in the subtask's thread, between two batches."""
        if self._ownership is not None:
            # Rows that are under way leave before rows of their keys do elsewhere.
            self._chain.drain()
            # They may be here before the markers.
            self._behind_markers.groups_move |= isinstance(event, HandoverReceived)
            self._is_moving = True
            self._ownership.handle(event)
            self._is_moving = False
            self._after_rescale_event()

    def input_watermarks(self) -> list[InputWatermark]:
        """Return the watermarks of inputs, as :class:`Subtask` says."""
        return [
            InputWatermark(channel.producer, channel.edge_index, time_ms, is_idle)
            for channel, time_ms, is_idle in self._times.known()
        ]

    def want_checkpoint(self, checkpoint_id: int) -> None:
        """A checkpoint has begun, and a source has ended; runs in the subtask's thread.

        Where the ends of all inputs lie behind rows, no barrier comes: it begins here, and the rows belong to it.
        """
        self._passing.wanted_id = checkpoint_id

    def end_checkpoint(self, checkpoint_id: int) -> None:
        """A checkpoint is over, maybe without success: nothing waits for it; runs in the subtask's thread."""
        self._barriers.give_up(checkpoint_id)

    @property
    def _backend(self) -> PlacedStore | None:
        return self._state

    def _known_times(self) -> Json:
        return self._times.to_json(self._paused)

    def _rest(self) -> InputRows | None:
        """Rows that were taken in and are not processed yet; there are some at a pause only."""
        if self._paused is None or self._paused.rest is None:
            return None
        return InputRows(self._taken_edge, self._paused.rest, in_time=True)

    def _pause(self, paused: StepFlow) -> None:
        if self._is_moving:
            return
        super()._pause(paused)
        self._paused = paused
        self._passing.let_pass()
        self._paused = None

    def _loop(self) -> None:
        self._times.go_on(self._restored_times, self._waiting_rows)
        while self._has_input or not self._may_finish or not self._told.may_leave():
            delivery = self._next()
            if delivery is not None:
                self._take(delivery)
            self._forward_watermark()
        if self._ownership is not None and self._ownership.has_parked_rows:
            raise StateError("rows are left whose key groups were never handed over; this is a bug in Weir")
        if self._times.order is not None:
            self._times.show()
        if self._times.order:
            raise StateError("rows are left that wait for their time; this is a bug in Weir")
        self._times.end()
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    @property
    def _has_input(self) -> bool:
        return self._times.inputs.has_open_inputs or bool(self._barriers.ready)

    @property
    def _may_finish(self) -> bool:
        return self._ownership is None or self._ownership.may_finish

    def _next(self) -> Delivery | None:
        """What was put aside comes first, in order; else what arrives."""
        due_s = self._housekeeping()
        barriers, passing, waiting = self._barriers, self._passing, self.mailbox.inbox.barriers_s
        # A small batch pays for each call.
        overdue_s = min(barriers.overdue_s, waiting[0] + passing.timeout_s) if waiting else barriers.overdue_s
        if passing.wanted_id or (overdue_s < _NEVER_S and self._clock.monotonic_s() >= overdue_s):
            passing.let_pass()
        output = self._chain.output
        if output.is_over and not output.has_room():
            self._wait_for_room(min(due_s, barriers.overdue_s))
            return None
        if barriers.ready:
            # First: a command may give up what was put aside before these.
            self._run_commands()
            return barriers.next_ready()
        times = self._times
        is_aware = self._assigns_times and not times.consumers.is_idle
        idle_s = self._chain.idle_at_s if is_aware else _NEVER_S
        told_s, early_s = times.consumers.forward.due_s, times.early.forward.due_s
        until_s = min(due_s, barriers.overdue_s, told_s, early_s, idle_s)
        polled = self._poll(until_s, self._pace.next_s, times.inputs.active_count)
        # A command may have given a checkpoint up meanwhile: then what was put aside for it is older.
        return polled if polled is None or not barriers.ready else barriers.in_turn(polled)

    @property
    def _is_calm(self) -> bool:
        """Return whether nothing is put aside or recorded, nor left of what was: elements are taken as they come."""
        return not self._barriers.aligner.checkpoint_id and not self._barriers.ready

    def _take(self, delivery: Delivery) -> None:
        if not self._is_calm and self._barriers.put_aside(delivery):
            return
        if self._behind_markers.channels and self._behind_markers.put_aside(delivery):
            return
        if isinstance(delivery.element, pa.RecordBatch):
            self._take_rows(delivery)
            return
        element, channel, inputs = delivery.element, delivery.channel, self._times.inputs
        if not isinstance(element, ChannelOpened) and not inputs.is_open(channel):
            # Its producer was given up for lost, and ends it once more.
            delivery.release()
            return
        if isinstance(element, Watermark):
            self._times.advance(channel, element)
        elif isinstance(element, Idle):
            inputs.mark_idle(channel)
        elif isinstance(element, RouteMarker):
            self._times.note_marker(channel, element.routing_version)
            if self._chain.minds_time:
                self._behind_markers.channels.add(channel)
            self.handle(MarkerReceived(channel, element.routing_version))
        elif isinstance(element, Barrier):
            step = self._barriers.aligner.barrier(channel, element.checkpoint_id)
            self._passing.after(step, element.checkpoint_id)
        elif isinstance(element, ChannelOpened):
            self._times.add(channel)
            self._barriers.aligner.add(channel)
            self.handle(InputAdded(channel))
        elif isinstance(element, EndOfStream):
            inputs.end(channel)
            self.handle(InputEnded(channel))
            under_way = self._barriers.aligner.checkpoint_id
            self._passing.after(self._barriers.aligner.end(channel), under_way)
        self._show_watermark()
        delivery.release()
        self._pace.looked(self._clock.monotonic_s())

    def _settle(self) -> None:
        """Key groups are about to move."""
        self._times.show_before_markers()
        self._chain.settle_operators()

    def _process_input(self, rows: InputRows) -> None:
        if not self._times.hold(rows.batch):
            self._process(rows.batch, input_index=rows.input_index)

    def _process_released(self, rows: pa.RecordBatch, input_index: int) -> None:
        """Rows need not wait for their time any more."""
        self._taken_edge = input_index
        self._process(rows, None, input_index)
        if self.sample.is_wanted:
            self.sample.take(rows, self._clock.now_us(), input_index)

    def _take_rows(self, delivery: Delivery) -> None:
        """Process a batch, together with those right after it: many small ones cost as much as large ones."""
        ownership = self._ownership
        may_park = ownership is not None and ownership.may_park
        assert isinstance(delivery.element, pa.RecordBatch)
        taken, rises = self._gather_rows(delivery, delivery.element, may_park)
        batches, size_bytes = [], 0
        for item in taken:
            assert isinstance(item.element, pa.RecordBatch)
            batches.append(item.element)
            size_bytes += item.size_bytes
            # Memory that is shared with the sender is to be free when the credit goes back, which tells of it: else the
            # sender would have to write to other memory.
            item.element = GONE
        if self._times.consumers.is_idle:
            self._times.consumers.end_idleness()
            self.progress.is_idle = False
        if self._times.order is not None:
            batches = self._times.alike(batches)
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        del batches
        index = delivery.channel.edge_index
        rows = batch
        if ownership is not None and may_park:
            rows = ownership.admit(InputRows(index, batch), self._times.shown_ms)
        is_waiting = self._times.order is not None and rows is not None and self._times.hold(rows)
        if rows is not None and not is_waiting:
            self._taken_edge = index
            self._process(rows, size_bytes if rows is batch else None, index)
            if self.sample.is_wanted:
                self.sample.take(rows, self._clock.now_us(), index)
        del batch, rows
        is_parked = ownership is not None and may_park and ownership.parked_bytes > _PARKED_BYTES_MAX
        # The rules that let rows go on come by another input.
        if is_parked or (self._times.is_held and index == HELD_INPUT and self._chain.is_full):
            self._held_releases.extend(item.release for item in taken)
        else:
            for item in taken:
                item.release()
        if rises or self._rows_raise or self._times.is_held or is_waiting:
            self._show_watermark()

    def _gather_rows(
        self, delivery: Delivery, first: pa.RecordBatch, may_park: bool
    ) -> tuple[list[Delivery], bool]:
        """A batch and those that wait after it, of any channel: each channel's rows stay in order.

        Of any input too, unless somebody must know the input of each row.
        Watermarks of single inputs, which mostly do not make the combined one rise, are taken in on the way. After
        the first that does, of which True tells, no rows are taken that came after a watermark of their own channel:
        those of other channels belong to the same wave.
        """
        taken, times = [delivery], self._times
        rows_max = self._parts.rows
        if first.num_rows > rows_max and self._parts.is_limited:
            # Barriers and commands are looked at before the rest.
            self._barriers.put_first(delivery.split(rows_max))
        inbox, is_calm = self.mailbox.inbox, self._is_calm
        if not is_calm:
            self._record(delivery)
        assert isinstance(delivery.element, pa.RecordBatch)
        # Joined batches have the same columns.
        schema, taken_rows = delivery.element.schema, delivery.element.num_rows
        delivery.element, self._rows_raise = times.rows_come(delivery.channel, delivery.element)
        rises, heard = False, set[ChannelId]()
        # Large batches are not joined: that would only copy them.
        wanted = RowsWanted(
            min(self._pace.rows_max, rows_max) - taken_rows, JOINED_BYTES - delivery.size_bytes
        )
        edge = delivery.channel.edge_index if self._tells_inputs_apart or may_park else None
        if self._behind_markers.channels:
            # What comes next may have to be put aside.
            wanted = RowsWanted(0, 0)
        while wanted.rows > 0 and wanted.bytes > 0:
            but = heard if rises else ()
            ready = None if is_calm else self._barriers.ready_rows(wanted, schema, edge, but)
            more = inbox.poll_rows(wanted, schema, edge, but) if ready is None else ready
            for item in more:
                if is_calm or not self._barriers.put_aside(item):
                    if not is_calm:
                        self._record(item)
                    item.element, is_raised = times.rows_come(item.channel, item.element)
                    self._rows_raise = self._rows_raise or is_raised
                    taken.append(item)
            watermark = inbox.poll_watermark() if ready is None else None
            if watermark is None:
                break
            if is_calm or not self._barriers.put_aside(watermark):
                assert isinstance(watermark.element, Watermark)
                watermark.release()
                channel, time_ms = watermark.channel, watermark.element.time_ms
                heard.add(channel)
                if times.inputs.is_open(channel):
                    rises = times.inputs.advance(channel, time_ms) is not None or rises
        return taken, rises

    def _record(self, delivery: Delivery) -> None:
        """Rows have come that may belong to a checkpoint that overtook them."""
        assert isinstance(delivery.element, pa.RecordBatch)
        if delivery.in_checkpoint != self._barriers.aligner.checkpoint_id:
            self._barriers.record(delivery.channel, delivery.element, self._checkpoints)

    def _after_rescale_event(self) -> None:
        """Rows may have left the park: give credit back, and let the watermark go on."""
        self._give_credit_back()
        self._show_watermark()
        self._take_behind_markers()

    def _take_behind_markers(self) -> None:
        """Go on behind the markers, if all are here and the groups have moved."""
        behind, ownership = self._behind_markers, self._ownership
        if ownership is None or not behind.channels:
            return
        behind.groups_move = behind.groups_move or ownership.holds_watermark
        is_awaited = behind.groups_move and behind.awaits_any(channel for channel, *_ in self._times.known())
        if not (is_awaited or ownership.holds_watermark):
            for item in reversed(behind.let_go()):
                self._barriers.put_first(item)

    def _give_credit_back(self) -> None:
        parked_bytes = 0 if self._ownership is None else self._ownership.parked_bytes
        if parked_bytes <= _PARKED_BYTES_MAX and not (self._times.is_held and self._chain.is_full):
            while self._held_releases:
                self._held_releases.popleft()()

    def _show_watermark(self) -> None:
        if self._times.show():
            self._give_credit_back()

    def _forward_watermark(self) -> None:
        times, progress = self._times, self.progress
        if times.is_held:
            self._show_watermark()
        now_s = self._clock.monotonic_s()
        # That of a wave goes with the last of what has gathered.
        ends_wave = self._pace.has_marked_waves and not self.mailbox.inbox.has_gathered
        is_silent = self._assigns_times and now_s >= self._chain.idle_at_s
        times.forward(now_s, progress.records_in, ends_wave=ends_wave, is_silent=is_silent)
        progress.watermark_ms, progress.is_idle = times.left_ms, times.consumers.is_idle
