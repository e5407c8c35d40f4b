"""A machine of checkpoints with a source and a count, and the time of its last event."""

from weir.protocol.checkpoints.checkpoint import CheckpointMachine
from weir.protocol.checkpoints.checkpoint_model import CheckpointSettings, JobRuns, PartDelivered
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.types import SubtaskId

SOURCE, COUNT, NEW = SubtaskId(0, 0), SubtaskId(1, 0), SubtaskId(1, 1)
PLACEMENT = {SOURCE: "tm-a", COUNT: "tm-b"}
BOTH = ("tm-a", "tm-b")
SETTINGS = CheckpointSettings(interval_ms=1000, pause_ms=200, timeout_ms=5000, failures_max=2)


class Bench:
    """A machine with the time of its last event."""

    def __init__(self, settings=SETTINGS, next_id=7, run=True):
        self.machine, self.now_ms = CheckpointMachine(settings, next_id), 0
        if run:
            self.tell(JobRuns(1, PLACEMENT, frozenset([SOURCE])))

    def tell(self, *events, at=None):
        self.now_ms = self.now_ms if at is None else at
        actions = []
        for event in events:
            actions += self.machine.handle(event, self.now_ms)
            self.machine.check_invariants()
        return actions

    def deliver(self, checkpoint_id, *subtasks, generation=1, passed=0, new_bytes=10, at=None):
        return self.tell(
            *(
                PartDelivered(
                    generation,
                    checkpoint_id,
                    SubtaskPart(
                        s, new_bytes=new_bytes, passed_checkpoint_id=passed, finished=not checkpoint_id
                    ),
                )
                for s in subtasks
            ),
            at=at,
        )

    def request(self, path="", **ends):
        answer = self.machine.request(path, self.now_ms, **ends)
        self.machine.check_invariants()
        return answer

    @property
    def states(self):
        return {record.checkpoint_id: record.state for record in reversed(self.machine.records)}
