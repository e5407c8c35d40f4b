"""The inputs of one subtask while a checkpoint's barriers come in: what is put aside, what is recorded.

Used by the subtask's thread. Decisions are ``weir.protocol.alignment``'s. What is put aside keeps its credit, so the
senders' credits bound it; what is recorded is bounded here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import Checkpoints, TakenPart
from task_manager.exchange.deliveries import Delivery, RowsWanted, take_rows
from weir.clock import Clock
from weir.protocol.alignment import BarrierAligner
from weir.records import InputRows, batch_bytes
from weir.types import ChannelId

#: Rows that a barrier may overtake; more, and the checkpoint fails.
_RECORDED_BYTES_MAX = 64 << 20


class CheckpointInputs:
    """See the module."""

    def __init__(
        self, aligner: BarrierAligner, clock: Clock, recorded_bytes_max: int = _RECORDED_BYTES_MAX
    ) -> None:
        """``recorded_bytes_max``: a checkpoint whose barriers overtake more fails."""
        self.aligner = aligner
        self._clock = clock
        self._recorded_bytes_max = recorded_bytes_max
        #: Monotonic second at which barriers overtake rows; infinity: nothing waits.
        self.overdue_s = float("inf")
        self._aside: deque[Delivery] = deque()
        #: Was put aside, and can be taken now.
        self._ready: deque[Delivery] = deque()
        self._part: TakenPart | None = None
        self._recorded: list[InputRows] = []
        self._recorded_bytes = 0

    @property
    def is_calm(self) -> bool:
        """Whether nothing is put aside or recorded, and nothing is left of what was: elements come as they are."""
        return self.aligner.checkpoint_id == 0 and not self._ready

    @property
    def is_overdue(self) -> bool:
        """Whether the first barrier has waited too long."""
        return self.overdue_s != float("inf") and self._clock.monotonic_s() >= self.overdue_s

    def next_ready(self) -> Delivery | None:
        """The next of what was put aside earlier."""
        return self._ready.popleft() if self._ready else None

    def in_turn(self, delivery: Delivery) -> Delivery:
        """Returns what comes next: ``delivery``, which has just arrived, or first what was put aside before it."""
        if not self._ready:
            return delivery
        self._ready.append(delivery)
        return self._ready.popleft()

    def ready_rows(
        self,
        wanted: RowsWanted,
        schema: pa.Schema,
        edge_index: int | None = None,
        but: Collection[ChannelId] = (),
    ) -> list[Delivery] | None:
        """The batches that come next of what was put aside, see ``deliveries.take_rows``; None: none is left."""
        return take_rows(self._ready, wanted, schema, edge_index, but) if self._ready else None

    def put_aside(self, delivery: Delivery) -> bool:
        """Keep an element that comes after the barrier of its input; False: take it now."""
        if not self.aligner.blocks(delivery.channel):
            return False
        self._aside.append(delivery)
        return True

    def begin(self, timeout_ms: float) -> None:
        """The first barrier of a checkpoint has come."""
        # An older one may have been given up for it.
        self.go_on()
        self.overdue_s = self._clock.monotonic_s() + timeout_ms / 1e3

    def overtake(self, part: TakenPart | None) -> None:
        """The snapshot was taken before all barriers are here; None: that failed, and nothing is to be recorded."""
        self.go_on()
        if part is None:
            self.aligner.give_up(self.aligner.checkpoint_id)
            return
        self.aligner.overtake()
        self._part = part

    def record(self, channel: ChannelId, batch: pa.RecordBatch, checkpoints: Checkpoints) -> None:
        """Note a batch if it belongs to the checkpoint whose barrier overtook it.

        Beyond the bound the checkpoint fails at once, and what was noted is freed: the barriers that are missing may
        be far away.
        """
        part = self._part
        if part is None or not self.aligner.records(channel):
            return
        self._recorded_bytes += batch_bytes(batch)
        if self._recorded_bytes <= self._recorded_bytes_max:
            self._recorded.append(InputRows(channel.edge_index, batch))
            return
        cause = (
            f"barriers overtook more than {self._recorded_bytes_max} bytes of rows; raise "
            "checkpoint_alignment_timeout_ms, or give the slow step more subtasks"
        )
        self.give_up(part.checkpoint_id)
        checkpoints.fail(part.subtask, part.checkpoint_id, cause)

    def deliver_recorded(self, checkpoints: Checkpoints) -> None:
        """All barriers are here: the part is complete."""
        part, rows = self._part, self._recorded
        self.go_on()
        if part is not None:
            checkpoints.deliver(part, rows)

    def give_up(self, checkpoint_id: int) -> None:
        """A checkpoint is over: nothing is put aside or recorded for it any more."""
        under_way = self.aligner.checkpoint_id
        self.aligner.give_up(checkpoint_id)
        if under_way and self.aligner.checkpoint_id == 0:
            self.go_on()

    def go_on(self) -> None:
        """Nothing waits any more: what was put aside comes first."""
        self.overdue_s = float("inf")
        self._ready.extendleft(reversed(self._aside))
        self._aside.clear()
        self._part = None
        self._recorded, self._recorded_bytes = [], 0
