"""Simulated subtasks around the machines that they really have: alignment of barriers, ownership of key groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.simulation.plan import COUNT, SINK, Deployment, group_of
from experiments.simulation.storage import Result
from experiments.simulation.world import Violation
from weir.protocol.alignment import BarrierAligner, Step
from weir.protocol.manifest import GroupPlace, SubtaskPart
from weir.protocol.rescale_owner import (
    HandOver,
    HandoverReceived,
    InputEnded,
    MarkerReceived,
    OwnerEvent,
    OwnerMachine,
    TakeOwnership,
)
from weir.protocol.routing import RoutingTable
from weir.types import SubtaskId

if TYPE_CHECKING:
    from experiments.simulation.task_manager import TaskManager

#: source, key, number of the row in its source.
Row = tuple[int, int, int]
Element = tuple[Any, ...]


class Subtask:
    """What all have in common: a state that reports see, and parts of checkpoints."""

    def __init__(self, manager: TaskManager, subtask: SubtaskId, deployment: Deployment) -> None:
        self.manager, self.id, self.deployment = manager, subtask, deployment
        self.generation = deployment.generation
        self.status, self.cause = "DEPLOYED", ""
        self.is_dropped = False
        #: Of one that has finished.
        self.last_part = SubtaskPart(subtask)
        #: The last checkpoint whose barrier it passed on.
        self.passed = deployment.last_checkpoint_id

    @property
    def is_live(self) -> bool:
        """Whether it still works."""
        return not self.is_dropped and self.status in ("DEPLOYED", "RUNNING")

    def fail(self, cause: str) -> None:
        """End with an error."""
        if self.is_live:
            self.status, self.cause = "FAILED", cause

    def send(self, consumer: SubtaskId, element: Element) -> None:
        """To another subtask, in order."""
        address = self.deployment.placement.get(consumer)
        if not self.manager.send(self, address, consumer, element):
            self.fail(f"the channel to {consumer} is broken")

    def start(self) -> None:
        """Run."""
        if self.status == "DEPLOYED":
            self.status = "RUNNING"

    def receive(self, producer: SubtaskId, element: Element) -> None:
        """An element of an input."""
        raise Violation(f"{self.id} has no input, but {producer} sent {element}")

    def snapshot(self, checkpoint_id: int) -> SubtaskPart:
        """Its part of a checkpoint; 0: its last one."""
        return SubtaskPart(
            self.id,
            groups=self.groups(),
            operators={"generation": self.generation, **self.operators(checkpoint_id or self.passed + 1)},
            finished=not checkpoint_id,
            passed_checkpoint_id=0 if checkpoint_id else self.passed,
        )

    def groups(self) -> dict[int, GroupPlace]:
        """The key groups that it owns."""
        return {}

    def operators(self, order: int) -> dict[str, Any]:
        """What it needs to go on; ``order`` is the first checkpoint to which this belongs."""
        raise NotImplementedError

    def commit(self, checkpoint_id: int) -> None:
        """A checkpoint is complete."""

    def acknowledge(self, checkpoint_id: int) -> None:
        """Deliver the part of a checkpoint."""
        self.manager.acknowledge(self, checkpoint_id, self.snapshot(checkpoint_id))

    def finish(self) -> None:
        """The end of its stream."""
        if self.is_live:
            self.status = "FINISHED"
            self.last_part = self.snapshot(0)
            self.manager.acknowledge(self, 0, self.last_part)


class Source(Subtask):
    """Emits its rows from a position on."""

    def __init__(self, manager: TaskManager, subtask: SubtaskId, deployment: Deployment) -> None:
        super().__init__(manager, subtask, deployment)
        self.rows = manager.job.rows[subtask.subtask_index]
        self.position = 0
        if deployment.manifest is not None:
            for part in deployment.manifest.parts:
                if part.subtask == subtask:
                    self.position = part.operators["position"]
        self.table = deployment.table
        self.consumers = [SubtaskId(COUNT, index) for index in self.table.subtasks]

    def start(self) -> None:
        """Read."""
        if self.status == "DEPLOYED":
            super().start()
            self.emit()

    def emit(self) -> None:
        """One batch, and again after a while."""
        if not self.is_live:
            return
        rng = self.manager.world.rng
        if self.position >= len(self.rows):
            self.send_all(("end",))
            self.finish()
            return
        stop = min(len(self.rows), self.position + rng.randint(1, 6))
        batches: dict[int, list[Row]] = {}
        for number in range(self.position, stop):
            key = self.rows[number]
            batches.setdefault(self.table.groups[group_of(key)], []).append(
                (self.id.subtask_index, key, number)
            )
        self.position = stop
        for index, rows in batches.items():
            self.send(SubtaskId(COUNT, index), ("rows", rows))
        self.manager.later(rng.random() * 8, self.emit)

    def send_all(self, element: Element) -> None:
        """To all consumers."""
        for consumer in self.consumers:
            self.send(consumer, element)

    def trigger(self, checkpoint_id: int) -> None:
        """Begin a checkpoint."""
        if self.status == "RUNNING" and checkpoint_id > self.passed:
            self.passed = checkpoint_id
            self.acknowledge(checkpoint_id)
            self.send_all(("barrier", checkpoint_id))

    def switch(self, version: int, table: RoutingTable, retiring: tuple[SubtaskId, ...]) -> None:
        """A rescale: from now on rows take the new way, behind the marker."""
        if self.is_dropped or self.table.version >= version:
            return
        has_ended = not self.is_live
        new = [SubtaskId(COUNT, i) for i in table.subtasks if SubtaskId(COUNT, i) not in self.consumers]
        for consumer in new if has_ended else sorted({*self.consumers, *new}):
            self.send(consumer, ("marker", version))
            if has_ended or consumer in retiring:
                self.send(consumer, ("end",))
        self.table = table
        self.consumers = [SubtaskId(COUNT, index) for index in table.subtasks]

    def operators(self, order: int) -> dict[str, Any]:
        """The position."""
        return {"position": self.position}


class Transactions:
    """A transactional sink: pending files until their checkpoint is complete."""

    def __init__(self, owner: Subtask, deployment: Deployment) -> None:
        self._owner = owner
        self._output = owner.manager.output
        self._numbers = 0
        self._open: tuple[str, list[Result]] | None = None
        #: Closed, not known to be delivered: (name, order).
        self._closed: list[tuple[str, int]] = []
        if deployment.manifest is not None:
            for part in deployment.manifest.parts:
                for name, order in part.operators.get("files", ()):
                    self._output.deliver(name, order, who=owner.manager.address)
        self._output.drop_older(deployment.generation)

    def write(self, result: Result) -> None:
        """Not visible yet."""
        if self._open is None:
            self._numbers += 1
            owner = self._owner
            fence = 0 if owner.manager.world.broken == "names" else owner.generation
            name = f"{fence}-{owner.id}-{self._numbers}"
            self._open = (name, self._output.open(name, owner.generation))
        self._open[1].append(result)

    def snapshot(self, order: int) -> list[tuple[str, int]]:
        """Close what is open; all that may have to be delivered yet."""
        if self._open is not None:
            self._closed.append((self._open[0], order))
            self._open = None
        return list(self._closed)

    def commit(self, checkpoint_id: int) -> None:
        """Deliver what belongs to a complete checkpoint."""
        for name, order in [item for item in self._closed if item[1] <= checkpoint_id]:
            self._output.deliver(name, order, who=self._owner.manager.address)
            self._closed.remove((name, order))


class Aligned(Subtask):
    """A subtask with inputs: puts aside what is behind a barrier until all have come."""

    def __init__(
        self, manager: TaskManager, subtask: SubtaskId, deployment: Deployment, inputs: tuple[SubtaskId, ...]
    ) -> None:
        super().__init__(manager, subtask, deployment)
        self.inputs = set(inputs)
        self.aligner = BarrierAligner(inputs, deployment.last_checkpoint_id)
        self._aside: list[tuple[SubtaskId, Element]] = []

    def receive(self, producer: SubtaskId, element: Element) -> None:
        """Process it, or put it aside."""
        if not self.is_live:
            return
        if self.aligner.blocks(producer):
            self._aside.append((producer, element))
            return
        if element[0] == "barrier":
            self._step(self.aligner.barrier(producer, element[1]), element[1])
        elif element[0] == "end":
            self.inputs.discard(producer)
            current = self.aligner.checkpoint_id
            self._step(self.aligner.end(producer), current)
            self.input_ended(producer)
        else:
            self.take(producer, element)
        self.finish_if_done()

    def give_up(self, checkpoint_id: int) -> None:
        """A checkpoint is over: nothing waits for it any more."""
        self.aligner.give_up(checkpoint_id)
        self._unblock()
        if self.is_live:
            self.finish_if_done()

    def _step(self, step: Step, checkpoint_id: int) -> None:
        if step is Step.SNAPSHOT:
            self.passed = checkpoint_id
            self.acknowledge(checkpoint_id)
            self.pass_on(("barrier", checkpoint_id))
            self._unblock()

    def _unblock(self) -> None:
        aside, self._aside = self._aside, []
        for producer, element in aside:
            self.receive(producer, element)

    def pass_on(self, element: Element) -> None:
        """To all consumers."""

    def take(self, producer: SubtaskId, element: Element) -> None:
        """Rows or a marker."""
        raise NotImplementedError

    def input_ended(self, producer: SubtaskId) -> None:
        """No more comes from this input."""

    def finish_if_done(self) -> None:
        """End with the last input."""
        if self.is_live and not self.inputs and not self._aside:
            self.pass_on(("end",))
            self.finish()


class Sink(Aligned):
    """Delivers results."""

    def __init__(self, manager: TaskManager, subtask: SubtaskId, deployment: Deployment) -> None:
        counts = tuple(SubtaskId(COUNT, index) for index in deployment.table.subtasks)
        super().__init__(manager, subtask, deployment, counts)
        self.files = Transactions(self, deployment)

    def take(self, producer: SubtaskId, element: Element) -> None:
        """Results."""
        for result in element[1]:
            self.files.write(result)

    def operators(self, order: int) -> dict[str, Any]:
        """The pending files."""
        return {"files": self.files.snapshot(order)}

    def commit(self, checkpoint_id: int) -> None:
        """Deliver."""
        self.files.commit(checkpoint_id)


class Count(Aligned):
    """Counts the rows of each key that it owns; parks those of groups that are on their way here."""

    def __init__(self, manager: TaskManager, subtask: SubtaskId, deployment: Deployment) -> None:
        super().__init__(manager, subtask, deployment, deployment.sources)
        self.machine = OwnerMachine(subtask.subtask_index, deployment.table, deployment.sources)
        self.mask: list[bool] = self.machine.owned_mask.tolist()
        self.epochs: list[int] = list(deployment.table.owner_epochs)
        self.counts: dict[int, int] = {}
        self.parked: dict[int, list[Row]] = {}
        #: The last rescale that brought groups here, and which.
        self.owned_version = 0
        self.owned: set[int] = set()
        self.files = None if manager.job.sinks else Transactions(self, deployment)
        if deployment.manifest is not None:
            for part in deployment.manifest.parts:
                for key, count in part.operators.get("counts", {}).items():
                    # JSON has texts for keys.
                    if self.mask[group_of(int(key))]:
                        self.counts[int(key)] = count

    def take(self, producer: SubtaskId, element: Element) -> None:
        """Rows or a marker."""
        if element[0] == "marker":
            self.tell(MarkerReceived(producer, element[1]))
            return
        results: dict[int, list[Result]] = {}
        for row in element[1]:
            group = group_of(row[1])
            if self.mask[group]:
                self.process(row, results)
            else:
                self.parked.setdefault(group, []).append(row)
        self.pass_results(results)

    def process(self, row: Row, results: dict[int, list[Result]]) -> None:
        """Count one row."""
        source, key, number = row
        group = group_of(key)
        self.manager.check_writer(self, group, self.epochs[group])
        count = self.counts[key] = self.counts.get(key, 0) + 1
        result = (key, count, source, number)
        if self.files is not None:
            self.files.write(result)
        else:
            results.setdefault(key % self.manager.job.sinks, []).append(result)

    def pass_results(self, results: dict[int, list[Result]]) -> None:
        """To the sinks."""
        for index, items in results.items():
            self.send(SubtaskId(SINK, index), ("rows", items))

    def pass_on(self, element: Element) -> None:
        """To the sinks."""
        if element[0] == "barrier" and self.parked:
            raise Violation(f"{self.id} has parked rows at a barrier")
        for index in range(self.manager.job.sinks):
            self.send(SubtaskId(SINK, index), element)

    def input_ended(self, producer: SubtaskId) -> None:
        """No more comes from this input."""
        self.tell(InputEnded(producer))

    def tell(self, event: OwnerEvent) -> None:
        """Pass an event to the ownership machine and do what it says."""
        for action in self.machine.handle(event):
            match action:
                case HandOver(version, target, groups):
                    moved = {k: n for k, n in self.counts.items() if group_of(k) in groups}
                    self.counts = {k: n for k, n in self.counts.items() if k not in moved}
                    handover = HandoverReceived(version, dict(groups), tuple(moved.items()))
                    self.manager.hand_over(self, SubtaskId(COUNT, target), handover)
                case TakeOwnership(version, groups, state):
                    self.mask = self.machine.owned_mask.tolist()
                    if version != self.owned_version:
                        self.owned_version, self.owned = version, set()
                    self.owned |= groups.keys()
                    assert isinstance(state, tuple)
                    self.counts |= dict(state)
                    results: dict[int, list[Result]] = {}
                    for group, epoch in groups.items():
                        self.epochs[group] = epoch
                        for row in self.parked.pop(group, ()):
                            self.process(row, results)
                    self.pass_results(results)
        self.machine.check_invariants()
        self.mask = self.machine.owned_mask.tolist()

    def finish_if_done(self) -> None:
        """End when nothing can come any more."""
        if self.machine.may_finish:
            if self.parked and self.is_live:
                raise Violation(f"{self.id} ends with parked rows")
            super().finish_if_done()

    def groups(self) -> dict[int, GroupPlace]:
        """The key groups that it owns."""
        return {group: GroupPlace("image") for group, mine in enumerate(self.mask) if mine}

    def operators(self, order: int) -> dict[str, Any]:
        """The counts, and the pending files if the sink is chained."""
        return {
            "counts": {str(key): n for key, n in self.counts.items()},
            "files": self.files.snapshot(order) if self.files else [],
        }

    def commit(self, checkpoint_id: int) -> None:
        """Deliver."""
        if self.files is not None:
            self.files.commit(checkpoint_id)


def make_subtask(manager: TaskManager, subtask: SubtaskId, deployment: Deployment) -> Subtask:
    """The subtask of a deployment."""
    kinds: list[type[Source] | type[Count] | type[Sink]] = [Source, Count, Sink]
    return kinds[subtask.stage_index](manager, subtask, deployment)
