"""What the control plane takes of reports for sources that wait for each other."""

import weir
from control_plane.link.reception import aligned_sources
from weir.plan.stages import physical_graph
from weir.protocol.watermarks.watermark_drift import AlignedSource, lowest_watermarks_ms
from weir.rows.records import WATERMARK_MIN_MS
from weir.rpc import control_pb2
from weir.types import SubtaskId


def graph():
    flow = weir.Dataflow("aligned")
    for name, group in (("first", "a"), ("second", "a"), ("third", "b"), ("alone", None)):
        alignment = None if group is None else weir.watermark_alignment("10s", group=group)
        source = weir.JsonLines("in", schema={"at": int}, event_time="at")
        watermark = weir.bounded_out_of_orderness("0s", alignment=alignment)
        flow.source(name, source, watermark=watermark, parallelism=2).sink(f"{name}_out", weir.Blackhole())
    return physical_graph(flow.build())


def report(time_ms, *, is_idle=False, state=control_pb2.SUBTASK_STATE_RUNNING):
    return control_pb2.SubtaskReport(read_watermark_ms=time_ms, is_idle=is_idle, state=state)


def test_those_that_have_ended_do_not_count_and_those_that_were_not_heard_of_hold_the_others():
    reports = {
        SubtaskId(0, 0): report(500),
        SubtaskId(0, 1): report(100, state=control_pb2.SUBTASK_STATE_FINISHED),
        SubtaskId(1, 0): report(300),
        SubtaskId(1, 1): report(200, is_idle=True),
        SubtaskId(2, 0): report(7),
        SubtaskId(3, 0): report(-5),
    }
    found = list(aligned_sources(graph(), reports))
    assert AlignedSource("b", WATERMARK_MIN_MS, is_idle=False) in found
    assert lowest_watermarks_ms(found) == {"a": 300, "b": WATERMARK_MIN_MS}
    reports[SubtaskId(2, 1)] = report(9)
    assert lowest_watermarks_ms(aligned_sources(graph(), reports)) == {"a": 300, "b": 7}
