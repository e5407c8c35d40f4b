from control_plane.checkpoints.restore_log import RestoreLog
from weir.rpc import control_pb2
from weir.types import SubtaskId

FIRST, SECOND = SubtaskId(1, 0), SubtaskId(1, 1)
ADDRESS = "127.0.0.1:8018"


def report(total, left, restore_us=0):
    return control_pb2.SubtaskReport(
        restore_groups=total, restoring_groups=left, restore_started_us=5_000_000, restore_us=restore_us
    )


def test_start_progress_and_end():
    log = RestoreLog(2)
    log.reported(FIRST, ADDRESS, report(8, 5, 100_000))
    log.reported(SECOND, ADDRESS, report(0, 0))
    (view,) = log.views()
    assert (view.generation, view.stage, view.subtask_index, view.task_manager) == (2, 1, 0, ADDRESS)
    assert (view.state, view.groups_total, view.groups_left, view.ended_ms) == ("RESTORING", 8, 5, None)
    assert (log.under_way, log.ended()) == (1, {"COMPLETE": 0, "GIVEN_UP": 0})
    log.reported(FIRST, ADDRESS, report(8, 0, 400_000))
    log.reported(FIRST, ADDRESS, report(8, 0, 400_000))
    (view,) = log.views()
    assert (view.state, view.groups_left) == ("COMPLETE", 0)
    assert (view.started_ms, view.ended_ms, view.duration_ms) == (5000, 5400, 400)
    assert (log.under_way, log.ended()) == (0, {"COMPLETE": 1, "GIVEN_UP": 0})


def test_a_restart_before_the_end():
    log = RestoreLog(2)
    log.reported(FIRST, ADDRESS, report(8, 0))
    log.reported(SECOND, ADDRESS, report(8, 5))
    log.give_up()
    log.begin_generation(3)
    log.reported(SECOND, ADDRESS, report(8, 4))
    states = [(view.generation, view.subtask_index, view.state) for view in log.views()]
    assert states == [(3, 1, "RESTORING"), (2, 1, "GIVEN_UP"), (2, 0, "COMPLETE")]
    assert log.ended() == {"COMPLETE": 1, "GIVEN_UP": 1}


def test_old_ones_are_forgotten():
    log = RestoreLog(1)
    for index in range(300):
        log.reported(SubtaskId(1, index), ADDRESS, report(8, 0))
    assert [view.subtask_index for view in log.views()] == list(range(299, 43, -1))
    assert log.ended()["COMPLETE"] == 300
