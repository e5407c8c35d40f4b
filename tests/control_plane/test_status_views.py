from control_plane.status_views import known_distinct_keys
from weir.rpc.control_pb2 import SubtaskReport


def test_distinct_keys_are_null_where_no_step_counts_them():
    """A KeyedProcess does not; 0 would be a number that is wrong."""
    assert known_distinct_keys([]) is None
    assert known_distinct_keys([SubtaskReport(), SubtaskReport()]) is None
    assert known_distinct_keys([SubtaskReport(), SubtaskReport(distinct_keys=0)]) == 0
    assert known_distinct_keys([SubtaskReport(distinct_keys=3), SubtaskReport(distinct_keys=4)]) == 7
