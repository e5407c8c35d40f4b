from control_plane.web.status_views import input_queues
from control_plane.web.totals import known_distinct_keys
from weir.rpc import common_pb2, control_pb2
from weir.rpc.control_pb2 import SubtaskReport
from weir.types import SubtaskId


def test_distinct_keys_are_null_where_no_step_counts_them():
    """A KeyedProcess does not; 0 would be a number that is wrong."""
    assert known_distinct_keys([]) is None
    assert known_distinct_keys([SubtaskReport(), SubtaskReport()]) is None
    assert known_distinct_keys([SubtaskReport(), SubtaskReport(distinct_keys=0)]) == 0
    assert known_distinct_keys([SubtaskReport(distinct_keys=3), SubtaskReport(distinct_keys=4)]) == 7


def test_rows_that_wait_are_shown_at_the_subtask_to_which_they_go():
    queue = control_pb2.ChannelQueue(
        consumer=common_pb2.SubtaskId(stage_index=2, subtask_index=1), rows=7, age_us=1500
    )
    reports = {
        SubtaskId(1, 0): control_pb2.SubtaskReport(channels=[queue]),
        SubtaskId(0, 3): control_pb2.SubtaskReport(channels=[queue]),
        SubtaskId(2, 1): control_pb2.SubtaskReport(),
    }
    queues = input_queues(reports)
    assert list(queues) == [SubtaskId(2, 1)]
    assert [(item.stage, item.subtask_index) for item in queues[SubtaskId(2, 1)]] == [(0, 3), (1, 0)]
    assert [(item.queued_rows, item.queued_age_ms) for item in queues[SubtaskId(2, 1)]] == [(7, 1.5)] * 2
