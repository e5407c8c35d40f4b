"""How barriers of checkpoints pass a subtask with inputs: aligned, or before rows where they have waited for long.

Used by the subtask's thread. Decisions are ``weir.protocol.checkpoints.alignment``'s. What is put aside meanwhile keeps
its credit, so the senders' credits bound it; what is recorded is bounded here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import Checkpoints, TakenPart
from task_manager.exchange.inbox import ChannelOpened, Delivery, Inbox, RowsWanted, take_rows
from weir.clock import Clock
from weir.protocol.checkpoints.alignment import BarrierAligner, Step
from weir.rows.records import Barrier, EndOfStream, InputRows, RouteMarker, batch_bytes
from weir.types import ChannelId

#: Rows that a barrier may overtake; more, and the checkpoint fails.
_RECORDED_BYTES_MAX = 64 << 20


class CheckpointInputs:
    """The inputs of one subtask while barriers of checkpoints come in."""

    def __init__(
        self,
        aligner: BarrierAligner,
        clock: Clock,
        in_time: Callable[[ChannelId, pa.RecordBatch], pa.RecordBatch],
        recorded_bytes_max: int = _RECORDED_BYTES_MAX,
    ) -> None:
        """``recorded_bytes_max``: a checkpoint whose barriers overtake more fails.

        ``in_time`` returns rows of a channel as of the watermarks of all inputs, as far as these have come.
        """
        self.aligner = aligner
        self._clock = clock
        self._in_time = in_time
        self._recorded_bytes_max = recorded_bytes_max
        #: Monotonic second at which barriers overtake rows; infinity: nothing waits.
        self.overdue_s = float("inf")
        self._aside: deque[Delivery] = deque()
        #: Was put aside, and can be taken now, in order. Every batch asks whether there is any.
        self.ready: deque[Delivery] = deque()
        self._part: TakenPart | None = None
        self._recorded: list[InputRows] = []
        self._recorded_bytes = 0

    def next_ready(self) -> Delivery | None:
        """The next of what was put aside earlier."""
        return self.ready.popleft() if self.ready else None

    def in_turn(self, delivery: Delivery) -> Delivery:
        """Returns what comes next: ``delivery``, which has just arrived, or first what was put aside before it."""
        self.ready.append(delivery)
        return self.ready.popleft()

    def put_first(self, delivery: Delivery) -> None:
        """Keep the rest of a batch that is taken in parts: it comes next."""
        self.ready.appendleft(delivery)

    def put_last(self, delivery: Delivery) -> None:
        """Keep rows that come before all that arrives, after those that were put here before."""
        self.ready.append(delivery)

    def pull(self, inbox: Inbox) -> bool:
        """Take what lies in the inbox after what was put aside; whether barriers may overtake all of it.

        Not where inputs are being added or their key groups move: what comes after that is taken as it comes.
        """
        self.ready.extend(inbox.take_all())
        return not any(isinstance(item.element, ChannelOpened | RouteMarker) for item in self.ready)

    def newest_barrier(self) -> Delivery | None:
        """The first barrier, among what was put aside, of the newest checkpoint; None: of one that is over."""
        newest: Delivery | None = None
        newest_id = max(self.aligner.checkpoint_id, self.aligner.ended_id + 1) - 1
        for item in self.ready:
            if isinstance(item.element, Barrier) and item.element.checkpoint_id > newest_id:
                newest, newest_id = item, item.element.checkpoint_id
        return newest

    def overtake_waiting(self, checkpoints: Checkpoints) -> Step:
        """Record, after :meth:`overtake`, all that waits before the missing barriers, and take those that wait.

        Returns:
            What the last of these barriers, or of the ends of inputs among them, leads to.
        """
        step, left = Step.GO_ON, deque[Delivery]()
        checkpoint_id = self.aligner.checkpoint_id
        for item in self.ready:
            if isinstance(item.element, pa.RecordBatch):
                if item.in_checkpoint != checkpoint_id and self.aligner.records(item.channel):
                    self.record(item.channel, item.element, checkpoints)
                    item.in_checkpoint = checkpoint_id
            elif isinstance(item.element, Barrier):
                if step is Step.GO_ON and item.element.checkpoint_id == checkpoint_id:
                    step = self.aligner.barrier(item.channel, checkpoint_id)
                item.release()
                continue
            elif isinstance(item.element, EndOfStream) and step is Step.GO_ON:
                # Behind the end of one that an earlier checkpoint has noted, rows of others may wait.
                is_news = self.aligner.is_open(item.channel)
                step = self.aligner.end(item.channel) if is_news else step
            left.append(item)
        self.ready = left
        return step

    def ready_rows(
        self,
        wanted: RowsWanted,
        schema: pa.Schema,
        edge_index: int | None = None,
        but: Collection[ChannelId] = (),
    ) -> list[Delivery] | None:
        """The batches that come next of what was put aside, see ``inbox.take_rows``; None: none is left."""
        return take_rows(self.ready, wanted, schema, edge_index, but) if self.ready else None

    def put_aside(self, delivery: Delivery) -> bool:
        """Keep an element that comes after the barrier of its input; False: take it now."""
        if not self.aligner.blocks(delivery.channel):
            return False
        self._aside.append(delivery)
        return True

    def begin(self, timeout_s: float) -> None:
        """The first barrier of a checkpoint has come."""
        # An older one may have been given up for it.
        self.go_on()
        self.overdue_s = self._clock.monotonic_s() + timeout_s

    def overtake(self, part: TakenPart | None, first: InputRows | None = None) -> None:
        """The snapshot was taken before all barriers are here; None: that failed, and nothing is to be recorded.

        ``first``: rows that were taken and are not in it, whatever came after them.
        """
        self.go_on()
        if part is None:
            self.aligner.give_up(self.aligner.checkpoint_id)
            return
        self.aligner.overtake()
        self._part = part
        if first is not None and first.batch.num_rows:
            self._recorded, self._recorded_bytes = [first], batch_bytes(first.batch)

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
            batch = self._in_time(channel, batch)
            self._recorded.append(InputRows(channel.edge_index, batch, in_time=True))
            return
        cause = (
            f"barriers overtook more than {self._recorded_bytes_max} bytes of rows; raise "
            "checkpoint_alignment_timeout_ms, or give the slow step more subtasks"
        )
        self.give_up(part.checkpoint_id)
        checkpoints.fail(part.subtask, part.checkpoint_id, cause)

    def deliver_recorded(self, checkpoints: Checkpoints) -> None:
        """Deliver the part with what was recorded: all barriers are here, and it is complete."""
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
        self.ready.extendleft(reversed(self._aside))
        self._aside.clear()
        self._part = None
        self._recorded, self._recorded_bytes = [], 0


class BarrierPassing:
    """Used by the subtask's thread.

    Args:
        barriers: the inputs, with what is put aside.
        inbox: of the subtask.
        clock: for what is late.
        checkpoints: takes parts.
        alignment_timeout_ms: how long a barrier waits before it overtakes rows.
        snapshot: passes a barrier on and notes the state; None: that failed, and with it the checkpoint.
        rest: returns rows that were taken in and are not processed yet; None: there are none.
    """

    def __init__(
        self,
        barriers: CheckpointInputs,
        inbox: Inbox,
        clock: Clock,
        checkpoints: Checkpoints,
        alignment_timeout_ms: float,
        snapshot: Callable[[int], TakenPart | None],
        rest: Callable[[], InputRows | None],
    ) -> None:
        self._barriers = barriers
        self._inbox = inbox
        self._clock = clock
        self._checkpoints = checkpoints
        #: How long a barrier waits.
        self.timeout_s = alignment_timeout_ms / 1e3
        self._snapshot = snapshot
        self._rest = rest
        #: A checkpoint whose barrier may not come, because those before this subtask have ended; 0: none.
        self.wanted_id = 0

    def let_pass(self) -> None:
        """Begin what checkpoint is wanted, and let barriers that have waited for long overtake what is before them."""
        if self.wanted_id:
            self._begin_wanted()
        waiting = self._inbox.barriers_s
        due_s = waiting[0] + self.timeout_s if waiting else float("inf")
        if self._clock.monotonic_s() >= min(due_s, self._barriers.overdue_s):
            self._overtake()

    def after(self, step: Step, checkpoint_id: int) -> None:
        """Do what a barrier, or the end of an input, leads to."""
        match step:
            case Step.BEGIN:
                self._barriers.begin(self.timeout_s)
            case Step.SNAPSHOT:
                part = self._snapshot(checkpoint_id)
                if part is not None:
                    self._checkpoints.deliver(part)
                self._barriers.go_on()
            case Step.RECORDED:
                self._barriers.deliver_recorded(self._checkpoints)
            case Step.GO_ON:
                pass

    def _begin_wanted(self) -> None:
        barriers, aligner = self._barriers, self._barriers.aligner
        checkpoint_id = self.wanted_id
        if checkpoint_id <= max(aligner.checkpoint_id, aligner.ended_id):
            # Its barrier came, or it is over.
            self.wanted_id = 0
            return
        if not aligner.all_among(self._inbox.ended) or not barriers.pull(self._inbox):
            return
        self.wanted_id = 0
        aligner.begin(checkpoint_id)
        part = self._snapshot(checkpoint_id)
        barriers.overtake(part, self._rest())
        if part is not None:
            step = barriers.overtake_waiting(self._checkpoints)
            # Their ends may have been noted by an earlier one.
            self.after(aligner.look() if step is Step.GO_ON else step, checkpoint_id)

    def _overtake(self) -> None:
        """Barriers have waited too long for others, or behind rows: they overtake the rows before them."""
        barriers, aligner = self._barriers, self._barriers.aligner
        may_pass = barriers.pull(self._inbox)
        newest = barriers.newest_barrier() if may_pass else None
        if newest is not None and isinstance(newest.element, Barrier):
            aligner.begin(newest.element.checkpoint_id)
        checkpoint_id = aligner.checkpoint_id
        if not checkpoint_id:
            return
        if not aligner.is_recording:
            part = self._snapshot(checkpoint_id)
            barriers.overtake(part, self._rest())
            if part is None:
                return
        if may_pass:
            self.after(barriers.overtake_waiting(self._checkpoints), checkpoint_id)
