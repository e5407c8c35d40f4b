"""Profiles as messages: each frame once, however many stacks it is in."""

from __future__ import annotations

from task_manager.subtasks.sampling import Samples
from weir.protocol.job.profile import Frame
from weir.rpc import control_pb2

#: A profile takes no longer, whatever is asked for.
DURATION_S_MAX = 60.0


def profile_to_proto(samples: Samples) -> control_pb2.ProfileReply:
    """The reply; bounded, since the samples are."""
    numbers: dict[Frame, int] = {}
    stacks = [
        control_pb2.ProfileStack(
            frames=[numbers.setdefault(frame, len(numbers)) for frame in stack.frames],
            samples=stack.samples,
            step=stack.step,
            waits=stack.waits,
        )
        for stack in samples.stacks()
    ]
    frames = [
        control_pb2.ProfileFrame(function=each.function, file=each.file, line=each.line, kind=each.kind)
        for each in numbers
    ]
    return control_pb2.ProfileReply(frames=frames, stacks=stacks, subtasks=samples.subtasks)
