"""When a rescale is refused, and which failures are told to have come with one."""

import types

import pytest

from control_plane.link.task_managers import TaskManagers
from control_plane.rescale.rescaler import Rescaler
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan
from weir.protocol.routing import GroupMove, RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity
from weir.testing import ManualClock
from weir.types import SubtaskId

TABLE = RoutingTable(5, 2, (0, 1), (0, 0, 1, 1), (1, 1, 2, 2))
MOVES = (GroupMove(2, 0, 1), GroupMove(3, 0, 1))
PLAN = RescalePlan(5, 2, (0,), (0, 1), {SubtaskId(5, 1): "h:1"}, (SubtaskId(0, 0),), TABLE, MOVES)


def rescaler_of(job):
    return Rescaler(
        job,
        RescaleLog(),
        ManualClock(),
        types.SimpleNamespace(spawn=lambda work: work.close()),
        TaskManagers(1_000),
        tell_job=lambda event: None,
        tell_checkpoints=lambda event: None,
        request_checkpoint=lambda: None,
        record=types.SimpleNamespace(save=lambda: None),
        hindrance=lambda: None,
        avoided=tuple,
    )


@pytest.mark.parametrize(
    ("state", "finished", "is_told"),
    [
        (JobState.RESTARTING, False, True),
        (JobState.FAILING, False, True),
        (JobState.CANCELLING, False, False),
        # The sinks may yet fail to deliver: the rescale had nothing to do with it.
        (JobState.FINISHING, True, False),
    ],
)
def test_a_later_failure_names_the_rescale_only_if_a_failure_ended_it(state, finished, is_told):
    rescaler = rescaler_of(types.SimpleNamespace(identity=JobIdentity("job-1", "f", 3), state=state))
    rescaler.log.add(PLAN, 1_000, migrates=False)
    rescaler.job_left_running("gone", finished=finished)
    assert rescaler.log.current is None
    assert ("rescale 1 of stage 5" in rescaler.situation()) == is_told


def test_a_stage_whose_state_still_comes_from_a_checkpoint_is_not_rescaled():
    """Its key groups cannot move yet: their owners would fail, and the job start again."""
    reports = {
        SubtaskId(5, 0): control_pb2.SubtaskReport(restore_groups=64, restoring_groups=3),
        SubtaskId(5, 1): control_pb2.SubtaskReport(restore_groups=64, restoring_groups=4),
        SubtaskId(6, 0): control_pb2.SubtaskReport(restore_groups=64),
    }
    job = types.SimpleNamespace(
        state=JobState.RUNNING,
        reports=reports,
        graph=types.SimpleNamespace(stages=()),
        machine=types.SimpleNamespace(placement={}, statuses={}),
    )
    refusal = rescaler_of(job).request(5, 2)
    assert refusal.kind is RefusalKind.BUSY
    assert refusal.message.startswith("stage 5 is still restoring 7 key groups from its checkpoint")
    # That one is refused because the graph has no such stage.
    assert rescaler_of(job).request(6, 2).kind is RefusalKind.UNKNOWN_STAGE
