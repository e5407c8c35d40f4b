"""Profiles of a stage on request: its task managers look for some seconds where its threads are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers, reason_of
from control_plane.ports import Background
from weir.clock import Clock, wall_ms
from weir.errors import WeirError
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.profile import Box, Frame, FrameKind, Stack, boxes, samples_of, words
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto

#: Of a profile; the longest that may be asked for.
SECONDS, SECONDS_MAX = 10.0, 60.0
RUNNING, DONE, FAILED = "RUNNING", "DONE", "FAILED"
#: A job does something in these states only.
_WORKING = frozenset({JobState.RUNNING, JobState.FINISHING})


@dataclass(frozen=True, slots=True)
class StageProfile:
    """What a stage did with its time; the latest one is kept."""

    number: int
    stage: int
    name: str
    seconds: float
    #: Wall clock, ms since the epoch.
    started_ms: int
    state: str = RUNNING
    #: Of a profile that failed, and of task managers that did not answer.
    cause: str = ""
    subtasks: int = 0
    samples: int = 0
    words: Sequence[str] = field(default=())
    boxes: Sequence[Box] = field(default=())


@dataclass(frozen=True, slots=True)
class ProfileRefusal:
    """Refuses a profile; ``status`` is as of HTTP."""

    status: int
    message: str


class Profiler:
    """Makes one profile at a time; used in the event loop."""

    def __init__(
        self, job: RunningJob, clock: Clock, background: Background, task_managers: TaskManagers
    ) -> None:
        self._job, self._clock, self._background = job, clock, background
        self._task_managers = task_managers
        #: The latest; None: none was asked for.
        self.latest: StageProfile | None = None

    @property
    def version(self) -> list[object]:
        """What changes when :attr:`latest` does."""
        return [] if self.latest is None else [self.latest.number, self.latest.state]

    def request(self, stage: int, seconds: float) -> StageProfile | ProfileRefusal:
        """Begin to look at a stage; the outcome is in :attr:`latest` after so many seconds."""
        job, latest = self._job, self.latest
        known = {each.index: each.name for each in job.graph.stages}
        if stage not in known:
            return ProfileRefusal(404, f"no stage {stage}; there are {', '.join(map(str, known))}")
        if not 0 < seconds <= SECONDS_MAX:
            return ProfileRefusal(400, f"seconds={seconds:g}: expected more than 0, at most {SECONDS_MAX:g}")
        if job.state not in _WORKING:
            return ProfileRefusal(409, f"the job is {job.state.value}: only what runs can be looked at")
        if latest is not None and latest.state == RUNNING:
            return ProfileRefusal(409, f"profile {latest.number} is being made; ask again when it is done")
        number = 1 if latest is None else latest.number + 1
        begun = StageProfile(number, stage, known[stage], seconds, wall_ms(self._clock))
        self.latest = begun
        self._background.spawn(self._make(begun))
        return begun

    async def _make(self, begun: StageProfile) -> None:
        job = self._job
        placement = job.machine.placement
        addresses = sorted(
            {
                placement[subtask]
                for subtask in job.graph.stage(begun.stage).subtasks()
                if subtask in placement
            }
        )
        request = control_pb2.ProfileRequest(
            handshake=handshake_to_proto(job.identity),
            stage_index=begun.stage,
            duration_ms=round(begun.seconds * 1000),
        )
        try:
            # One that is lost meanwhile must not leave a profile that never ends.
            answers = await asyncio.gather(*(self._ask(address, request) for address in addresses))
        except BaseException as error:
            self.latest = replace(begun, state=FAILED, cause=reason_of(error))
            raise
        replies = [each for each in answers if isinstance(each, control_pb2.ProfileReply)]
        self.latest = outcome(begun, replies, [each for each in answers if isinstance(each, str)])

    async def _ask(self, address: str, request: control_pb2.ProfileRequest) -> control_pb2.ProfileReply | str:
        """A reply, or why there is none."""
        client = self._task_managers.clients.get(address)
        if client is None:
            return f"task manager {address} is gone"
        try:
            return await client.profile(request)
        except WeirError as error:
            return reason_of(error)


def outcome(
    begun: StageProfile, replies: Sequence[control_pb2.ProfileReply], failures: Sequence[str]
) -> StageProfile:
    """The profile that task managers have told of; without any sample it has failed."""
    stacks = [stack for reply in replies for stack in _stacks(reply)]
    subtasks, samples = sum(reply.subtasks for reply in replies), samples_of(stacks)
    cause = "; ".join(failures)
    if not samples:
        return replace(begun, state=FAILED, cause=cause or "no subtask of the stage ran meanwhile")
    root = f"stage {begun.stage} {begun.name}, {subtasks} subtask{'' if subtasks == 1 else 's'}"
    return replace(
        begun,
        state=DONE,
        cause=cause,
        subtasks=subtasks,
        samples=samples,
        words=words(stacks),
        boxes=boxes(stacks, root),
    )


def _stacks(reply: control_pb2.ProfileReply) -> list[Stack]:
    """Stacks of a reply; a number that no frame has is left out."""
    frames = [
        Frame(
            each.function,
            each.file,
            each.line,
            FrameKind(each.kind) if each.kind in _KINDS else FrameKind.LIBRARY,
        )
        for each in reply.frames
    ]
    return [
        Stack(
            tuple(frames[number] for number in stack.frames if number < len(frames)),
            stack.samples,
            stack.step,
            stack.waits,
        )
        for stack in reply.stacks
    ]


_KINDS = frozenset(map(int, FrameKind))
