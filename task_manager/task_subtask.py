"""A subtask with inputs: takes batches from its channels, in order of arrival."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import pyarrow as pa

from task_manager.channels import ChannelOpened, Delivery
from task_manager.mailbox import Mailbox
from task_manager.operator_chain import OperatorChain
from task_manager.ownership import GroupState, Ownership, RescaleReports
from task_manager.subtask import Subtask, SubtaskTimers
from weir.clock import Clock
from weir.errors import StateError
from weir.protocol.rescale_owner import InputAdded, InputEnded, MarkerReceived, OwnerEvent, OwnerMachine
from weir.protocol.watermark_hold import WatermarkHold
from weir.protocol.watermarks import WatermarkTracker
from weir.records import (
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
)
from weir.types import ChannelId, SubtaskId

#: Parked rows up to this size give their credit back at once; beyond, upstream has to wait for the handover.
_PARKED_BYTES_MAX = 64 << 20


class TaskSubtask(Subtask):
    """Ends when all inputs have ended and no key group is on its way."""

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
        self._hold = WatermarkHold()
        self._ownership: Ownership | None = None
        self._held_releases: deque[Callable[[], None]] = deque()
        self._forwarded_s = float("-inf")
        self._shown_ms = WATERMARK_MIN_MS
        self._idle_forwarded = False

    def own_groups(self, machine: OwnerMachine, state: GroupState, reports: RescaleReports) -> None:
        """Make this a subtask of a stage with a HASH input; called before the thread starts."""
        self._ownership = Ownership(machine, state, reports, self._process)

    def handle(self, event: OwnerEvent) -> None:
        """Take an event of a rescale in; runs in the subtask's thread, between two batches."""
        if self._ownership is not None:
            self._ownership.handle(event)
            self._after_rescale_event()

    def _loop(self) -> None:
        while self._watermarks.open_inputs or not self._may_finish:
            delivery = self._poll(self._housekeeping())
            if delivery is not None:
                self._take(delivery)
            self._forward_watermark()
        if self._ownership is not None and self._ownership.has_parked_rows:
            raise StateError("rows are left whose key groups were never handed over; this is a bug in Weir")
        self._chain.finish()
        self._chain.output.broadcast(Watermark(WATERMARK_MAX_MS))

    @property
    def _may_finish(self) -> bool:
        return self._ownership is None or self._ownership.may_finish

    def _take(self, delivery: Delivery) -> None:
        element, channel = delivery.element, delivery.channel
        if isinstance(element, pa.RecordBatch):
            self._take_rows(delivery, element)
            return
        if isinstance(element, Watermark):
            self._watermarks.advance(channel, element.time_ms)
        elif isinstance(element, Idle):
            self._watermarks.mark_idle(channel)
        elif isinstance(element, RouteMarker):
            self.handle(MarkerReceived(channel, element.routing_version))
        elif isinstance(element, ChannelOpened):
            self._watermarks.add(channel)
            self.handle(InputAdded(channel))
        elif isinstance(element, EndOfStream):
            self._watermarks.end(channel)
            self.handle(InputEnded(channel))
        self._show_watermark()
        delivery.release()

    def _take_rows(self, delivery: Delivery, batch: pa.RecordBatch) -> None:
        self._watermarks.mark_active(delivery.channel)
        self._idle_forwarded = False
        rows = batch if self._ownership is None else self._ownership.admit(batch)
        if rows is not None:
            self._process(rows, delivery.size_bytes if rows is batch else None)
        if self._ownership is not None and self._ownership.parked_bytes > _PARKED_BYTES_MAX:
            self._held_releases.append(delivery.release)
        else:
            delivery.release()

    def _after_rescale_event(self) -> None:
        """Rows may have left the park: give credit back, and let the watermark go on."""
        if self._ownership is not None and self._ownership.parked_bytes <= _PARKED_BYTES_MAX:
            while self._held_releases:
                self._held_releases.popleft()()
        self._show_watermark()

    def _show_watermark(self) -> None:
        """Tell the operators of the combined watermark; it stands still while rows are parked."""
        has_parked = self._ownership is not None and self._ownership.has_parked_rows
        time_ms = self._hold.visible_ms(self._watermarks.combined_ms, has_parked_rows=has_parked)
        if time_ms > self._shown_ms and time_ms != WATERMARK_MAX_MS:
            self._shown_ms = time_ms
            self._chain.on_watermark(time_ms)
            self.progress.watermark_ms = time_ms

    def _forward_watermark(self) -> None:
        """Pass the watermark on, at most once per interval; idleness at once."""
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
        if self._shown_ms != WATERMARK_MIN_MS:
            self._forwarded_s = now_s
            self._chain.output.broadcast(Watermark(self._shown_ms))
