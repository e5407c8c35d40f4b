"""A subtask with inputs: takes batches from its channels, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock

import pyarrow as pa

from task_manager.checkpoints.checkpoint_inputs import CheckpointInputs
from task_manager.exchange.deliveries import GONE, ChannelOpened, Delivery, RowsWanted, no_release
from task_manager.ownership.group_ownership import GroupState, Ownership, RescaleReports
from task_manager.progress import InputWatermark
from task_manager.subtasks.subtask import Subtask
from task_manager.subtasks.subtask_parts import SubtaskParts
from weir.author.operator import HELD_INPUT, Json
from weir.errors import StateError
from weir.operators.pauses import Paused
from weir.protocol.checkpoints.alignment import BarrierAligner, Step
from weir.protocol.rescale.rescale_owner import (
    InputAdded,
    InputEnded,
    MarkerReceived,
    OwnerEvent,
    OwnerMachine,
)
from weir.protocol.watermarks.combined_watermarks import WatermarkTracker, channels_by_edge
from weir.protocol.watermarks.input_times import times_to_json
from weir.protocol.watermarks.watermark_forward import WatermarkForward
from weir.protocol.watermarks.watermark_hold import WatermarkHold
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
        self._watermarks = WatermarkTracker(inputs)
        self._hold = WatermarkHold()
        self._ownership: Ownership | None = None
        self._held_releases: deque[Callable[[], None]] = deque()
        soon = parts.timers.watermarks_soon
        self._forward = WatermarkForward(parts.timers.watermark_interval_ms, soon=soon)
        #: To side outputs of steps before one that assigns event times.
        self._early_forward = WatermarkForward(parts.timers.watermark_interval_ms, soon=soon)
        self._early_idle = False
        self._shown_ms = WATERMARK_MIN_MS
        self._idle_forwarded = False
        self._barriers = CheckpointInputs(
            BarrierAligner(inputs, ended_checkpoint_id), parts.clock, lambda *rows: self._in_time(*rows)[0]
        )
        #: While rows of a checkpoint that waited for steps are processed: what was shown before it.
        self._resumed_ms = WATERMARK_MIN_MS
        for rows in restored_rows:
            # From itself: no barrier comes after them by that way, so that each that passes them holds what is left.
            channel, batch = ChannelId(self.subtask, self.subtask, rows.input_index), rows.batch
            if not (rows.in_time and parts.restored_times.is_own):
                # What other inputs had come to is not known.
                batch = row_watermarks.standing_still(batch, WATERMARK_MIN_MS)
            self._barriers.put_last(Delivery(channel, batch, no_release, batch_bytes(batch)))
        self._state: PlacedStore | None = None
        # A small batch pays for every question.
        self._tells_inputs_apart = self._chain.tells_inputs_apart
        self._assigns_times = self._chain.assigns_times
        self._channels = channels_by_edge(inputs)
        self._telling = Lock()
        #: Events of a rescale that wait in the mailbox.
        self._told = 0
        #: The last row is behind it: no event is taken any more.
        self._is_leaving = False
        #: Rows that are being taken in have made the combined watermark rise.
        self._rows_raise = False
        #: The watermark stands still: an operator holds rows back.
        self._is_held = False
        #: A checkpoint whose barrier may not come, because those before this one have ended; 0: none.
        self._wanted_id = 0
        #: Key groups are on the move in a call: what belongs to a checkpoint is not where one would look for it.
        self._is_moving = False
        #: The input of the rows that are being processed.
        self._taken_edge = 0
        #: Where an operator has done a part of what is due; None: it has nothing left.
        self._paused: Paused | None = None

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
        self._ownership = Ownership(
            machine, state, reports, self._process_input, keyed_inputs, self._chain.settle_operators
        )

    def tell(self, event: OwnerEvent) -> Future[None] | None:
        """Let it take an event of a rescale in, between two batches; any thread may call it.

        None: it has ended, or its last row is behind it: what it owns it keeps to the end, and what its operators do
        then is done once.
        """
        with self._telling:
            if self._is_leaving:
                return None
            self._told += 1
            return self.mailbox.post(partial(self._take_told, event))

    def _take_told(self, event: OwnerEvent) -> None:
        try:
            self.handle(event)
        finally:
            with self._telling:
                self._told -= 1

    def _may_leave(self) -> bool:
        """Take no more events, unless some wait that were taken."""
        with self._telling:
            self._is_leaving = self._told == 0
            return self._is_leaving

    def handle(self, event: OwnerEvent) -> None:
        """Take an event of a rescale in; runs in the subtask's thread, between two batches."""
        if self._ownership is not None:
            # Rows that are under way leave before rows of their keys do elsewhere.
            self._chain.drain()
            self._is_moving = True
            self._ownership.handle(event)
            self._is_moving = False
            self._after_rescale_event()

    def input_watermarks(self) -> list[InputWatermark]:
        """See :class:`Subtask`."""
        return [
            InputWatermark(channel.producer, channel.edge_index, time_ms, is_idle)
            for channel, time_ms, is_idle in self._watermarks.known()
            if isinstance(channel, ChannelId)
        ]

    def want_checkpoint(self, checkpoint_id: int) -> None:
        """A checkpoint has begun, and a source has ended; runs in the subtask's thread.

        Where the ends of all inputs lie behind rows, no barrier comes: it begins here, and the rows belong to it.
        """
        self._wanted_id = checkpoint_id

    def _begin_wanted(self) -> None:
        barriers, aligner, inbox = self._barriers, self._barriers.aligner, self.mailbox.inbox
        checkpoint_id = self._wanted_id
        if checkpoint_id <= max(aligner.checkpoint_id, aligner.ended_id):
            # Its barrier came, or it is over.
            self._wanted_id = 0
            return
        if not aligner.all_among(inbox.ended) or not barriers.pull(inbox):
            return
        self._wanted_id = 0
        aligner.begin(checkpoint_id)
        part = self._snapshot(checkpoint_id)
        barriers.overtake(part, self._rest)
        if part is not None:
            step = barriers.overtake_waiting(self._checkpoints)
            # Their ends may have been noted by an earlier one.
            self._after_barrier(aligner.look() if step is Step.GO_ON else step, Barrier(checkpoint_id))

    def end_checkpoint(self, checkpoint_id: int) -> None:
        """A checkpoint is over, maybe without success: nothing waits for it; runs in the subtask's thread."""
        self._barriers.give_up(checkpoint_id)

    @property
    def _backend(self) -> PlacedStore | None:
        return self._state

    def _known_times(self) -> Json:
        known = [(c, at) for c, at, _ in self._watermarks.known() if isinstance(c, ChannelId)]
        paused, combined_ms = self._paused, self._watermarks.combined_ms
        shown_ms = max(self._shown_ms, self._resumed_ms)
        if paused is not None and paused.rest is not None:
            # Inputs are as far as after the rows that are left, which will say themselves how far.
            known = [(channel, min(at, paused.known_ms)) for channel, at in known]
            shown_ms, combined_ms = min(shown_ms, paused.known_ms), min(combined_ms, paused.known_ms)
        return times_to_json(shown_ms, known, combined_ms)

    @property
    def _rest(self) -> InputRows | None:
        """Rows that were taken in and are not processed yet; there are some at a pause only."""
        if self._paused is None or self._paused.rest is None:
            return None
        return InputRows(self._taken_edge, self._paused.rest, in_time=True)

    def _pause(self, paused: Paused) -> None:
        if self._is_moving:
            return
        super()._pause(paused)
        self._paused = paused
        self._let_barriers_pass()
        self._paused = None

    def _let_barriers_pass(self) -> None:
        """Begin what checkpoint is wanted, and let barriers that have waited for long overtake what is before them."""
        if self._wanted_id:
            self._begin_wanted()
        if self._is_barrier_late():
            self._overtake()

    def _go_on_in_time(self) -> None:
        """Watermarks are where they were at the checkpoint, before any row comes."""
        restored = self._restored_times
        channels = [channel for channels in self._channels.values() for channel in channels]
        self._watermarks.restore(restored.combined_ms, restored.of_all(channels))
        self._resumed_ms = restored.shown_ms
        self._chain.resume(self._waiting_rows)
        self._resumed_ms = WATERMARK_MIN_MS
        self._show_watermark(restored.shown_ms)

    def _loop(self) -> None:
        self._go_on_in_time()
        while self._has_input or not self._may_finish or not self._may_leave():
            delivery = self._next()
            if delivery is not None:
                self._take(delivery)
            self._forward_watermark()
        if self._ownership is not None and self._ownership.has_parked_rows:
            raise StateError("rows are left whose key groups were never handed over; this is a bug in Weir")
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    @property
    def _has_input(self) -> bool:
        return self._watermarks.has_open_inputs or bool(self._barriers.waiting)

    @property
    def _may_finish(self) -> bool:
        return self._ownership is None or self._ownership.may_finish

    def _next(self) -> Delivery | None:
        """What was put aside comes first, in order; else what arrives."""
        due_s = self._housekeeping()
        barriers = self._barriers
        # A small batch pays for each call.
        if self._wanted_id or barriers.overdue_s < _NEVER_S or self.mailbox.inbox.barriers_s:
            self._let_barriers_pass()
        output = self._chain.output
        if output.is_over and not output.has_room():
            self._wait_for_room(min(due_s, barriers.overdue_s))
            return None
        if not barriers.is_calm:
            delivery = barriers.next_ready()
            if delivery is not None:
                self._run_commands()
                return delivery
        is_aware = self._assigns_times and not self._idle_forwarded
        idle_s = self._chain.idle_at_s if is_aware else float("inf")
        until_s = min(due_s, barriers.overdue_s, self._forward.due_s, self._early_forward.due_s, idle_s)
        polled = self._poll(until_s, self._pace.next_s, self._watermarks.active_count)
        # A command may have given a checkpoint up meanwhile: then what was put aside for it is older.
        return None if polled is None else barriers.in_turn(polled)

    def _take(self, delivery: Delivery) -> None:
        if not self._barriers.is_calm and self._barriers.put_aside(delivery):
            return
        if isinstance(delivery.element, pa.RecordBatch):
            self._take_rows(delivery)
            return
        element, channel = delivery.element, delivery.channel
        if not isinstance(element, ChannelOpened) and not self._watermarks.is_open(channel):
            # Its producer was given up for lost, and ends it once more.
            delivery.release()
            return
        if isinstance(element, Watermark):
            self._watermarks.advance(channel, element.time_ms)
        elif isinstance(element, Idle):
            self._watermarks.mark_idle(channel)
        elif isinstance(element, RouteMarker):
            self.handle(MarkerReceived(channel, element.routing_version))
        elif isinstance(element, Barrier):
            self._after_barrier(self._barriers.aligner.barrier(channel, element.checkpoint_id), element)
        elif isinstance(element, ChannelOpened):
            self._watermarks.add(channel)
            self._channels.setdefault(channel.edge_index, []).append(channel)
            self._barriers.aligner.add(channel)
            self.handle(InputAdded(channel))
        elif isinstance(element, EndOfStream):
            self._watermarks.end(channel)
            self.handle(InputEnded(channel))
            under_way = Barrier(self._barriers.aligner.checkpoint_id)
            self._after_barrier(self._barriers.aligner.end(channel), under_way)
        self._show_watermark()
        delivery.release()
        self._pace.looked(self._clock.monotonic_s())

    def _after_barrier(self, step: Step, barrier: Barrier) -> None:
        match step:
            case Step.BEGIN:
                self._barriers.begin(self._timers.alignment_timeout_ms)
            case Step.SNAPSHOT:
                part = self._snapshot(barrier.checkpoint_id)
                if part is not None:
                    self._checkpoints.deliver(part)
                self._barriers.go_on()
            case Step.RECORDED:
                self._barriers.deliver_recorded(self._checkpoints)
            case Step.GO_ON:
                pass

    def _is_barrier_late(self) -> bool:
        """Whether a barrier has waited for long, for others or behind rows."""
        waiting = self.mailbox.inbox.barriers_s
        due_s = waiting[0] + self._timers.alignment_timeout_ms / 1e3 if waiting else _NEVER_S
        return self._clock.monotonic_s() >= min(due_s, self._barriers.overdue_s)

    def _overtake(self) -> None:
        """Barriers have waited too long for others, or behind rows: they overtake the rows before them."""
        barriers, aligner = self._barriers, self._barriers.aligner
        may_pass = barriers.pull(self.mailbox.inbox)
        newest = barriers.newest_barrier() if may_pass else None
        if newest is not None and isinstance(newest.element, Barrier):
            aligner.begin(newest.element.checkpoint_id)
        checkpoint_id = aligner.checkpoint_id
        if not checkpoint_id:
            return
        if not aligner.is_recording:
            part = self._snapshot(checkpoint_id)
            barriers.overtake(part, self._rest)
            if part is None:
                return
        if may_pass:
            step = barriers.overtake_waiting(self._checkpoints)
            self._after_barrier(step, Barrier(checkpoint_id))

    def _process_input(self, rows: InputRows) -> None:
        self._process(rows.batch, input_index=rows.input_index)

    def _take_rows(self, delivery: Delivery) -> None:
        """Process a batch, together with those right after it: many small ones cost as much as large ones."""
        ownership = self._ownership
        may_park = ownership is not None and ownership.may_park
        assert isinstance(delivery.element, pa.RecordBatch)
        self._rows_raise = False
        taken, rises = self._gather_rows(delivery, delivery.element, may_park)
        batches, size_bytes = [], 0
        for item in taken:
            assert isinstance(item.element, pa.RecordBatch)
            batches.append(item.element)
            size_bytes += item.size_bytes
            # Memory that is shared with the sender is to be free when the credit goes back, which tells of it: else the
            # sender would have to write to other memory.
            item.element = GONE
        if self._idle_forwarded:
            self._end_idleness()
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        batches.clear()
        index = delivery.channel.edge_index
        rows = batch
        if ownership is not None and may_park:
            rows = ownership.admit(InputRows(index, batch), self._shown_ms)
        if rows is not None:
            self._taken_edge = index
            self._process(rows, size_bytes if rows is batch else None, index)
        del batch, rows
        is_parked = ownership is not None and may_park and ownership.parked_bytes > _PARKED_BYTES_MAX
        # The rules that let rows go on come by another input.
        if is_parked or (self._is_held and index == HELD_INPUT and self._chain.is_full):
            self._held_releases.extend(item.release for item in taken)
        else:
            for item in taken:
                item.release()
        if rises or self._rows_raise or self._is_held:
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
        taken = [delivery]
        rows_max = self._parts.rows
        if first.num_rows > rows_max and self._parts.is_limited:
            # Barriers and commands are looked at before the rest.
            self._barriers.put_first(delivery.split(rows_max))
        inbox, is_calm = self.mailbox.inbox, self._barriers.is_calm
        self._note_rows(delivery, is_calm)
        # As they are now: joined batches have the same columns.
        assert isinstance(delivery.element, pa.RecordBatch)
        first = delivery.element
        rises, heard = False, set[ChannelId]()
        # Large batches are not joined: that would only copy them.
        wanted = RowsWanted(
            min(self._pace.rows_max, rows_max) - first.num_rows, JOINED_BYTES - delivery.size_bytes
        )
        edge = delivery.channel.edge_index if self._tells_inputs_apart or may_park else None
        while wanted.rows > 0 and wanted.bytes > 0:
            but = heard if rises else ()
            ready = None if is_calm else self._barriers.ready_rows(wanted, first.schema, edge, but)
            more = inbox.poll_rows(wanted, first.schema, edge, but) if ready is None else ready
            for item in more:
                if is_calm or not self._barriers.put_aside(item):
                    self._note_rows(item, is_calm)
                    taken.append(item)
            watermark = inbox.poll_watermark() if ready is None else None
            if watermark is None:
                break
            if is_calm or not self._barriers.put_aside(watermark):
                assert isinstance(watermark.element, Watermark)
                watermark.release()
                channel, time_ms = watermark.channel, watermark.element.time_ms
                heard.add(channel)
                if self._watermarks.is_open(channel):
                    rises = self._watermarks.advance(channel, time_ms) is not None or rises
        return taken, rises

    def _note_rows(self, delivery: Delivery, is_calm: bool) -> None:
        """Rows have come: they may belong to a checkpoint that overtook them, and their channel is not idle."""
        if not is_calm:
            assert isinstance(delivery.element, pa.RecordBatch)
            if delivery.in_checkpoint != self._barriers.aligner.checkpoint_id:
                self._barriers.record(delivery.channel, delivery.element, self._checkpoints)
        is_restored = delivery.channel.producer == self.subtask
        if not is_restored:
            self._watermarks.mark_active(delivery.channel)
        if row_watermarks.column_of(delivery.element) is None:
            return
        watermarks, channel = self._watermarks, delivery.channel
        delivery.element, channel_ms = self._in_time(channel, delivery.element)
        if is_restored or not watermarks.is_open(channel):
            return
        if watermarks.advance(channel, channel_ms) is not None:
            self._rows_raise = True

    def _in_time(self, channel: ChannelId, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Rows say what the watermark of their channel is as of each: it becomes that of all inputs.

        Returns:
            The rows, and the watermark of the channel after them.
        """
        if row_watermarks.column_of(batch) is None:
            return batch, WATERMARK_MIN_MS
        watermarks, known_ms = self._watermarks, self._watermarks.combined_ms
        if channel.producer == self.subtask:
            return row_watermarks.combined(batch, WATERMARK_MAX_MS, known_ms)
        is_held_back = self._is_held and channel.edge_index == HELD_INPUT
        among = self._channels[HELD_INPUT] if is_held_back else None
        is_held = self._ownership is not None and self._ownership.holds_watermark
        cap_ms = self._shown_ms if is_held else WATERMARK_MAX_MS
        return row_watermarks.combined(batch, watermarks.others_ms(channel, among), known_ms, cap_ms)

    def _after_rescale_event(self) -> None:
        """Rows may have left the park: give credit back, and let the watermark go on."""
        self._give_credit_back()
        self._show_watermark()

    def _give_credit_back(self) -> None:
        parked_bytes = 0 if self._ownership is None else self._ownership.parked_bytes
        if parked_bytes <= _PARKED_BYTES_MAX and not (self._is_held and self._chain.is_full):
            while self._held_releases:
                self._held_releases.popleft()()

    def _show_watermark(self, restored_ms: int | None = None) -> None:
        """Tell the operators of the combined watermark; it stands still while rows are parked, here or elsewhere.

        Also while an operator holds rows back, but for what was shown before a restart.
        """
        is_parked = self._ownership is not None and self._ownership.holds_watermark
        if self._tells_inputs_apart and not is_parked:
            for index, channels in self._channels.items():
                self._chain.on_input_watermark(index, self._watermarks.lowest_ms(channels))
            if restored_ms is None:
                self._chain.release(self._watermarks.combined_ms)
        was_held, self._is_held = self._is_held, self._chain.holds_time
        if was_held and not self._is_held:
            self._give_credit_back()
        time_ms, stands_still = self._watermarks.combined_ms, is_parked or self._is_held
        if self._is_held and restored_ms is not None:
            time_ms, stands_still = restored_ms, is_parked
        time_ms = self._hold.visible_ms(time_ms, is_held=stands_still)
        if time_ms > self._shown_ms and time_ms != WATERMARK_MAX_MS:
            self._shown_ms = time_ms
            self._chain.on_watermark(time_ms)
            if not self._chain.assigns_times:
                self.progress.watermark_ms = time_ms

    def _end_idleness(self) -> None:
        """Something has come: consumers that think otherwise learn the watermark again."""
        self._idle_forwarded = self.progress.is_idle = False
        self._forward.again()

    def _forward_watermark(self) -> None:
        """Pass the watermark on when it has risen; idleness at once."""
        early = self._chain.early_sides
        if early:
            self._forward_early(early)
        if self._is_held:
            self._show_watermark()
        now_s = self._clock.monotonic_s()
        is_idle = self._watermarks.all_idle and not self._is_held
        if is_idle or (self._assigns_times and now_s >= self._chain.idle_at_s):
            if not self._idle_forwarded:
                self._idle_forwarded = self.progress.is_idle = True
                # Behind the watermark, which ends idleness.
                if not self._assigns_times and self._forward.is_behind(self._shown_ms):
                    self._chain.output.broadcast(Watermark(self._shown_ms))
                self._chain.output.broadcast(Idle(), but=early)
            return
        # A watermark without rows ends idleness too (an operator upstream may drop all rows).
        if self._idle_forwarded:
            self._end_idleness()
        if self._assigns_times:
            self._forward_assigned()
        elif self._is_due(self._forward, self._shown_ms, now_s):
            self._chain.output.broadcast(Watermark(self._shown_ms))

    def _is_due(self, forward: WatermarkForward, time_ms: int, now_s: float) -> bool:
        """Whether a watermark is to be passed on now: that of a wave with the last of what has gathered."""
        ends_wave = self._pace.has_marked_waves and not self.mailbox.inbox.has_gathered
        return forward.take(time_ms, now_s, self.progress.records_in, ends_wave=ends_wave)

    def _forward_early(self, sides: Collection[str]) -> None:
        """As :meth:`_forward_watermark`, to side outputs of steps before one that assigns event times."""
        if self._watermarks.all_idle:
            if not self._early_idle:
                self._early_idle = True
                if self._early_forward.is_behind(self._shown_ms):
                    self._chain.output.tell_sides(sides, Watermark(self._shown_ms))
                self._chain.output.tell_sides(sides, Idle())
            return
        if self._early_idle:
            self._early_idle = False
            self._early_forward.again()
        if self._is_due(self._early_forward, self._shown_ms, self._clock.monotonic_s()):
            self._chain.output.tell_sides(sides, Watermark(self._shown_ms))

    def _forward_assigned(self) -> None:
        """As :meth:`_forward_watermark`, where a step assigns event times; parked rows may have earlier ones."""
        is_held = self._ownership is not None and self._ownership.holds_watermark
        now_s = self._clock.monotonic_s()
        if not is_held and self._is_due(self._forward, self._chain.assigned_ms, now_s):
            time_ms = self._chain.tell_assigned()
            self.progress.watermark_ms = time_ms
            self._chain.output.broadcast(Watermark(time_ms), but=self._chain.early_sides)
