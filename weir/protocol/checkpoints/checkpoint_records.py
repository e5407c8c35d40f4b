"""The checkpoints that people see: numbers, the latest ones, and those that wait for their turn. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointState

#: Checkpoints that ``GET /checkpoints`` shows at most.
RECORDS_MAX = 60
#: Checkpoints that may wait for their turn.
QUEUE_MAX = 16


class CheckpointRecords:
    """Used by ``CheckpointMachine``, which gives the records their states."""

    def __init__(self, next_id: int) -> None:
        """``next_id``: of the first one."""
        self._next_id = next_id
        self._records: OrderedDict[int, CheckpointRecord] = OrderedDict()
        #: Those that wait, the next one first.
        self.queue: deque[CheckpointRecord] = deque()
        self._ended: list[CheckpointRecord] = []

    @property
    def next_id(self) -> int:
        """What the next checkpoint gets."""
        return self._next_id

    @property
    def queued_plain(self) -> CheckpointRecord | None:
        """The checkpoint, not savepoint, that waits."""
        return next((r for r in self.queue if not r.path and not r.redeploys_job), None)

    @property
    def queued_stop(self) -> CheckpointRecord | None:
        """The one that waits and with which this deployment of the job ends."""
        return next((record for record in self.queue if record.holds), None)

    @property
    def is_queue_full(self) -> bool:
        """Return whether no further one may wait."""
        return len(self.queue) >= QUEUE_MAX

    def newest_first(self) -> list[CheckpointRecord]:
        """The latest ones."""
        return list(reversed(self._records.values()))

    def new(
        self, path: str, now_ms: int, *, stops_job: bool = False, redeploys_job: bool = False
    ) -> CheckpointRecord:
        """A new one, with the next number; ``path``: of a savepoint, else empty."""
        record = CheckpointRecord(
            self._next_id, now_ms, path, stops_job=stops_job, redeploys_job=redeploys_job
        )
        self._next_id += 1
        self._records[record.checkpoint_id] = record
        if len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)
        return record

    def take_queue(self) -> list[CheckpointRecord]:
        """Return the checkpoints that wait; they do not any more."""
        taken = list(self.queue)
        self.queue.clear()
        return taken

    def has_ended(self, record: CheckpointRecord) -> None:
        """Keep it for the log."""
        self._ended.append(record)

    def take_ended(self) -> list[CheckpointRecord]:
        """Return the checkpoints that have ended since the last call, in that order."""
        ended, self._ended = self._ended, []
        return ended

    def rules(self) -> dict[str, bool]:
        """What must hold between events, and whether it does."""
        return {
            "what waits is queued": all(record.state is CheckpointState.QUEUED for record in self.queue),
            "ids grow": list(self._records) == sorted(self._records)
            and all(checkpoint_id < self._next_id for checkpoint_id in self._records),
        }
