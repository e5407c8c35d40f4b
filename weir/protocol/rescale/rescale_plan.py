"""Decide what a rescale of a stage consists of, or why it cannot be. Pure: called before anything is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from weir.errors import PlacementError
from weir.protocol.job.placement import TaskManagerLoad, place
from weir.protocol.routing import GroupMove, RoutingTable, rescaled
from weir.types import MAX_PARALLELISM_MAX, SubtaskId


class RefusalKind(Enum):
    """Why a rescale is refused."""

    #: The job has no such stage.
    UNKNOWN_STAGE = "UNKNOWN_STAGE"
    #: The wanted parallelism or set of subtasks makes no sense.
    BAD_NUMBER = "BAD_NUMBER"
    #: The stage is a source, and the job makes no checkpoints.
    SOURCE = "SOURCE"
    #: A neighbour is tied to the stage by FORWARD.
    FORWARD_NEIGHBOUR = "FORWARD_NEIGHBOUR"
    #: The stage has these subtasks already.
    NOTHING_TO_DO = "NOTHING_TO_DO"
    #: More subtasks than key groups to share.
    TOO_FEW_GROUPS = "TOO_FEW_GROUPS"
    #: A subtask of the stage has reached the end of its stream; the others are about to.
    ENDING = "ENDING"
    #: New subtasks do not fit on the task managers.
    NO_SLOT = "NO_SLOT"
    #: Another rescale runs.
    BUSY = "BUSY"


@dataclass(frozen=True)
class RescaleRefusal:
    """A refused request; ``message`` is one line for the user, with the mend."""

    kind: RefusalKind
    message: str


@dataclass(frozen=True)
class StageFacts:
    """A stage as it runs now."""

    index: int
    name: str
    is_source: bool
    #: Subtask indices, ascending.
    subtasks: tuple[int, ...]
    #: Those of ``subtasks`` that have finished.
    finished: tuple[int, ...] = ()
    #: Subtasks of all producer stages. Those that ended with their task manager gone are left out: nobody
    #: can speak for them, so new subtasks get no channel from them.
    upstream: tuple[SubtaskId, ...] = ()
    #: Names of stages that an edge of FORWARD ties to this one, on either side.
    forward_neighbours: tuple[str, ...] = ()
    #: With HASH input only.
    table: RoutingTable | None = None
    #: From here on no index was ever in use: files and reports of a retired subtask keep its index.
    next_index: int = 0


@dataclass(frozen=True)
class RescalePlan:
    """What a rescale does. A stage without HASH input has no table and no moves."""

    stage_index: int
    #: Of this rescale, in markers and commands; that of ``table`` if there is one.
    version: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    #: New subtasks and their task managers.
    placement: Mapping[SubtaskId, str]
    upstream: tuple[SubtaskId, ...]
    table: RoutingTable | None = None
    moves: tuple[GroupMove, ...] = ()

    @property
    def new(self) -> tuple[SubtaskId, ...]:
        """Subtasks to create, ascending."""
        return tuple(SubtaskId(self.stage_index, i) for i in self.after if i not in self.before)

    @property
    def retiring(self) -> tuple[SubtaskId, ...]:
        """Subtasks that give everything away and end, ascending."""
        return tuple(SubtaskId(self.stage_index, i) for i in self.before if i not in self.after)

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        """Return all subtasks that take part: those of before, and those of after."""
        return tuple(SubtaskId(self.stage_index, i) for i in sorted({*self.before, *self.after}))


def plan_rescale(
    stage_index: int,
    stages: Mapping[int, StageFacts],
    task_managers: Sequence[TaskManagerLoad],
    target: int | Collection[int] | None = None,
    *,
    last_version: int = 0,
) -> RescalePlan | RescaleRefusal:
    """Plan a rescale.

    Args:
        stage_index: the stage.
        stages: all stages of the job, by index.
        task_managers: where new subtasks may go; leave out one that is being drained.
        target: parallelism from now on: missing subtasks get the lowest unused indices, and the highest
            ones retire. Or the exact subtask indices from now on. None means one more.
        last_version: highest version that a rescale of this stage had, also an aborted one
            (``RescaleLog.last_version``).
    """
    facts = stages.get(stage_index)
    if facts is None:
        known = ", ".join(f"{stage.index} ({stage.name})" for _, stage in sorted(stages.items()))
        return RescaleRefusal(
            RefusalKind.UNKNOWN_STAGE, f"the job has no stage {stage_index}; there are {known}"
        )
    wanted = _wanted(facts, target)
    if isinstance(wanted, RescaleRefusal):
        return wanted
    refusal = _refusal(facts, wanted)
    if refusal is not None:
        return refusal
    new = [SubtaskId(stage_index, i) for i in wanted if i not in facts.subtasks]
    try:
        placement = place(task_managers, new) if new else {}
    except PlacementError as error:
        return RescaleRefusal(RefusalKind.NO_SLOT, f"stage {stage_index} ({facts.name}): {error}")
    plan = RescalePlan(stage_index, last_version + 1, facts.subtasks, wanted, placement, facts.upstream)
    if facts.table is None:
        return plan
    table, moves = rescaled(facts.table, wanted)
    version = max(table.version, last_version + 1)
    return replace(plan, version=version, table=replace(table, version=version), moves=tuple(moves))


def _wanted(facts: StageFacts, target: int | Collection[int] | None) -> tuple[int, ...] | RescaleRefusal:
    if target is None:
        target = len(facts.subtasks) + 1
    if isinstance(target, int):
        if not 1 <= target <= MAX_PARALLELISM_MAX:
            message = f"parallelism is {target}; it must be in 1..{MAX_PARALLELISM_MAX}"
            return RescaleRefusal(RefusalKind.BAD_NUMBER, message)
        return _lowest(facts.subtasks, target, facts.next_index)
    wanted = tuple(sorted(set(target)))
    if not wanted or wanted[0] < 0:
        message = f"subtasks {list(wanted)}: at least one is needed, and indices start at 0"
        return RescaleRefusal(RefusalKind.BAD_NUMBER, message)
    return wanted


def _lowest(current: Iterable[int], count: int, next_index: int) -> tuple[int, ...]:
    """The lowest ``count`` of the current indices, filled up with the lowest unused ones from ``next_index`` on."""
    kept = sorted(current)[:count]
    index = next_index
    while len(kept) < count:
        if index not in kept:
            kept.append(index)
        index += 1
    return tuple(sorted(kept))


def whole_refusal(facts: StageFacts) -> RescaleRefusal | None:
    """Returns why a stage cannot be rescaled at all, to whatever number of subtasks."""
    stage = f"stage {facts.index} ({facts.name})"
    if facts.forward_neighbours:
        neighbours = ", ".join(facts.forward_neighbours)
        message = f"{stage} is tied to {neighbours} subtask by subtask; put a rebalance or key_by in between"
        return RescaleRefusal(RefusalKind.FORWARD_NEIGHBOUR, message)
    # Of a source, subtasks without a split end early.
    if facts.finished and (not facts.is_source or len(facts.finished) == len(facts.subtasks)):
        return RescaleRefusal(RefusalKind.ENDING, f"{stage} has reached the end of its stream")
    return None


def _refusal(facts: StageFacts, wanted: tuple[int, ...]) -> RescaleRefusal | None:
    stage, refusal = f"stage {facts.index} ({facts.name})", whole_refusal(facts)
    if refusal is not None:
        return refusal
    if wanted == facts.subtasks:
        message = f"{stage} has these {len(wanted)} subtasks already; give another parallelism"
        return RescaleRefusal(RefusalKind.NOTHING_TO_DO, message)
    if facts.table is not None and len(wanted) > facts.table.max_parallelism:
        message = (
            f"{stage}: {len(wanted)} subtasks, but only {facts.table.max_parallelism} key groups to share; "
            "ask for fewer, or start the job with a higher max_parallelism"
        )
        return RescaleRefusal(RefusalKind.TOO_FEW_GROUPS, message)
    return None
