"""A simulated task manager: a lease, what it was told to run, channels to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.simulation.plan import Deployment, Job
from experiments.simulation.storage import Output
from experiments.simulation.subtasks import Aligned, Count, Element, Source, Subtask, make_subtask
from experiments.simulation.world import Process, Violation, World
from weir.errors import FencedError
from weir.protocol.manifest import SubtaskPart
from weir.protocol.rescale_owner import Abort, HandoverReceived, Prepare, Proceed
from weir.protocol.rescale_plan import RescalePlan
from weir.types import SubtaskId

CONTROL_PLANE = "cp"
HEARTBEAT_MS = 10.0
QUOTA = 16
_RETRY_MS = 6.0


@dataclass(frozen=True)
class Report:
    """What a heartbeat says about one subtask."""

    subtask: SubtaskId
    status: str
    cause: str
    #: Version of the last rescale that brought groups there, and which.
    version: int = 0
    owned: tuple[int, ...] = ()


class Writers:
    """Who counted rows of which group, under which owner epoch and generation: only one may."""

    def __init__(self) -> None:
        self._writers: dict[tuple[int, int, int], Subtask] = {}

    def check(self, subtask: Subtask, group: int, epoch: int) -> None:
        """Note a write.

        Raises:
            Violation: another one wrote before.
        """
        writer = self._writers.setdefault((subtask.generation, group, epoch), subtask)
        if writer is not subtask:
            raise Violation(
                f"group {group}, epoch {epoch}, generation {subtask.generation}: {subtask.id} at "
                f"{subtask.manager.address} writes, and {writer.id} at {writer.manager.address} did before"
            )


class TaskManager(Process):
    """One process; a restarted one is a new object with the same address."""

    def __init__(self, world: World, address: str, job: Job, output: Output, writers: Writers) -> None:
        super().__init__(world, address)
        self.job, self.output = job, output
        self.check_writer: Callable[[Subtask, int, int], None] = writers.check
        #: Tells processes at the same address apart.
        self.number = world.counts["task managers"] = world.counts["task managers"] + 1
        self.generation = 0
        self.subtasks: dict[SubtaskId, Subtask] = {}
        self._cancelled = 0
        self._handled: set[object] = set()
        self._incarnations = 0
        self._incarnation = ""
        self._register()
        self.later(world.rng.random() * HEARTBEAT_MS, self._heartbeat)

    # --- lease --------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        self._incarnations += 1
        self._incarnation = f"{self.address}#{self.number}.{self._incarnations}"
        self._is_registered = False
        self._send_register()

    def _send_register(self) -> None:
        incarnation = self._incarnation

        def done(result: Any) -> None:
            if self._incarnation != incarnation or self._is_registered:
                return
            if isinstance(result, FencedError):
                self._register()
            elif isinstance(result, Exception):
                self.later(_RETRY_MS, self._send_register)
            else:
                self._is_registered = True

        self.world.rpc(self, CONTROL_PLANE, "register", (self.address, incarnation), done)

    def _heartbeat(self) -> None:
        self.later(HEARTBEAT_MS, self._heartbeat)
        if not self._is_registered:
            return
        incarnation = self._incarnation

        def done(known: Any) -> None:
            if known is False and self._incarnation == incarnation:
                # The lease is over: what runs here was given away.
                self._drop_all()
                self._register()

        reports = tuple(self._report(subtask) for subtask in self.subtasks.values())
        args = (self.address, incarnation, self.generation, reports)
        self.world.rpc(self, CONTROL_PLANE, "heartbeat", args, done)

    @staticmethod
    def _report(subtask: Subtask) -> Report:
        if isinstance(subtask, Count):
            return Report(
                subtask.id,
                subtask.status,
                subtask.cause,
                subtask.owned_version,
                tuple(sorted(subtask.owned)),
            )
        return Report(subtask.id, subtask.status, subtask.cause)

    def _drop_all(self) -> None:
        for subtask in self.subtasks.values():
            subtask.is_dropped = True
        self.subtasks = {}

    # --- commands of the control plane --------------------------------------------------------------------------

    def deploy(self, deployment: Deployment) -> None:
        """Create subtasks.

        Raises:
            FencedError: a newer deployment is here, or this one was cancelled.
        """
        if deployment.generation < self.generation or deployment.generation <= self._cancelled:
            raise FencedError(f"generation {deployment.generation} is over at {self.address}")
        if deployment.generation > self.generation:
            self._drop_all()
            self.generation = deployment.generation
            self._handled = set()
        for subtask in deployment.subtasks:
            if subtask not in self.subtasks:
                self.subtasks[subtask] = make_subtask(self, subtask, deployment)

    def start(self, generation: int, subtasks: tuple[SubtaskId, ...]) -> None:
        """Let subtasks run."""
        self._check(generation)
        for subtask in subtasks:
            if subtask in self.subtasks:
                self.subtasks[subtask].start()

    def cancel(self, generation: int, subtasks: tuple[SubtaskId, ...] | None) -> None:
        """Stop all, or only these."""
        if generation < self.generation:
            return
        if subtasks is None:
            self._cancelled = max(self._cancelled, generation)
        for subtask in list(self.subtasks.values()) if subtasks is None else self._mine(subtasks):
            if subtask.is_live:
                subtask.status, subtask.cause = "CANCELED", "told to"

    def trigger(self, generation: int, checkpoint_id: int, sources: tuple[SubtaskId, ...]) -> None:
        """Let sources begin a checkpoint."""
        self._check(generation)
        for subtask in self._mine(sources):
            if isinstance(subtask, Source):
                subtask.trigger(checkpoint_id)

    def end_checkpoint(self, generation: int, checkpoint_id: int, committed: bool) -> None:
        """A checkpoint is complete or given up."""
        self._check(generation)
        for subtask in list(self.subtasks.values()):
            if committed:
                subtask.commit(checkpoint_id)
            elif isinstance(subtask, Aligned):
                subtask.give_up(checkpoint_id)

    def prepare(self, generation: int, plan: RescalePlan, subtasks: tuple[SubtaskId, ...]) -> list[SubtaskId]:
        """Tell owners a rescale; gives those that have ended."""
        self._check(generation)
        ended = []
        for subtask in subtasks:
            count = self.subtasks.get(subtask)
            if count is not None:
                count.deployment.placement.update(plan.placement)
            if not isinstance(count, Count) or not count.is_live:
                ended.append(subtask)
            elif ("prepare", plan.version, subtask) not in self._handled:
                self._handled.add(("prepare", plan.version, subtask))
                count.tell(Prepare(plan.version, plan.moves, plan.upstream, subtask in plan.retiring))
        return ended

    def switch(self, generation: int, plan: RescalePlan, placement: dict[SubtaskId, str]) -> None:
        """The rescale is certain: sources switch, owners know it."""
        self._check(generation)
        for subtask in list(self.subtasks.values()):
            subtask.deployment.placement.update(placement)
            if isinstance(subtask, Source) and plan.table is not None:
                subtask.switch(plan.version, plan.table, plan.retiring)
            elif isinstance(subtask, Count) and subtask.is_live and subtask.id in plan.subtasks:
                subtask.tell(Proceed(plan.version))
                subtask.finish_if_done()

    def abort(self, generation: int, version: int, subtasks: tuple[SubtaskId, ...]) -> None:
        """The rescale is taken back."""
        self._check(generation)
        for subtask in self._mine(subtasks):
            if isinstance(subtask, Count) and subtask.is_live:
                subtask.tell(Abort(version))
                subtask.finish_if_done()

    def _check(self, generation: int) -> None:
        if generation != self.generation:
            raise FencedError(f"{self.address} runs generation {self.generation}, not {generation}")

    def _mine(self, subtasks: tuple[SubtaskId, ...]) -> list[Subtask]:
        return [self.subtasks[subtask] for subtask in subtasks if subtask in self.subtasks]

    # --- channels -----------------------------------------------------------------------------------------------

    def send(self, producer: Subtask, address: str | None, consumer: SubtaskId, element: Element) -> bool:
        """Send an element; False if that is not possible."""
        if address is None:
            return False
        channel = (producer, consumer)
        args = (producer.generation, producer.id, consumer, element)
        return self.world.stream(self, address, channel, "receive", args)

    def receive(self, generation: int, producer: SubtaskId, consumer: SubtaskId, element: Element) -> None:
        """An element of a channel; those of other deployments are refused."""
        subtask = self.subtasks.get(consumer)
        if subtask is None or subtask.is_dropped:
            return
        if generation != subtask.generation and self.world.broken != "channel":
            return
        subtask.receive(producer, element)

    def hand_over(self, source: Subtask, target: SubtaskId, handover: HandoverReceived) -> None:
        """Pass groups on to a new owner, until it has confirmed it."""

        def done(result: Any) -> None:
            if isinstance(result, FencedError):
                source.fail(str(result))
            elif isinstance(result, Exception) and not source.is_dropped:
                self.later(_RETRY_MS, self.hand_over, source, target, handover)

        address = source.deployment.placement[target]
        args = (source.generation, source.id, target, handover)
        self.world.rpc(self, address, "take_over", args, done)

    def take_over(
        self, generation: int, source: SubtaskId, target: SubtaskId, handover: HandoverReceived
    ) -> None:
        """Groups of an old owner; harmless to repeat."""
        self._check(generation)
        subtask = self.subtasks.get(target)
        if not isinstance(subtask, Count) or not subtask.is_live:
            raise FencedError(f"{target} does not run at {self.address}")
        if ("handover", handover.version, source, target) not in self._handled:
            self._handled.add(("handover", handover.version, source, target))
            subtask.tell(handover)
            subtask.finish_if_done()

    # --- checkpoints --------------------------------------------------------------------------------------------

    def acknowledge(self, subtask: Subtask, checkpoint_id: int, part: SubtaskPart) -> None:
        """Deliver a part after it was published, until somebody has taken or refused it."""
        rng = self.world.rng
        self.world.risk()
        delay_ms = rng.random() * (40 if rng.random() < 0.1 else 6)
        self.later(delay_ms, self._send_part, subtask, checkpoint_id, part)

    def _send_part(self, subtask: Subtask, checkpoint_id: int, part: SubtaskPart) -> None:
        def done(result: Any) -> None:
            if isinstance(result, Exception) and not subtask.is_dropped:
                self.later(_RETRY_MS, self._send_part, subtask, checkpoint_id, part)

        args = (self.address, self._incarnation, subtask.generation, checkpoint_id, part)
        self.world.rpc(self, CONTROL_PLANE, "acknowledge", args, done)
