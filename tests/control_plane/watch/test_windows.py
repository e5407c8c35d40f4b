"""What subtasks did in the last seconds, from made-up reports of a real graph."""

import pytest

import weir
from control_plane.watch.windows import WINDOW_S, LoadWindows
from weir.plan.stages import physical_graph
from weir.protocol.job.latency_share import BUCKETS_MS
from weir.rpc import common_pb2, control_pb2
from weir.types import SubtaskId

SOURCE, COUNT = SubtaskId(0, 0), SubtaskId(1, 0)
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def graph():
    flow = weir.Dataflow("windows")
    events = flow.source("events", weir.JsonLines("x", schema={"id": int}))
    events.key_by("id").count("count").sink("out", weir.Blackhole())
    return physical_graph(flow.build())


def report(
    subtask, *, busy_s=0.0, idle_s=0.0, blocked_s=0.0, rows=0, last_s=0.0, queued_ms=0, latencies=None
):
    channels = []
    if queued_ms:
        consumer = common_pb2.SubtaskId(stage_index=1, subtask_index=0)
        channels = [control_pb2.ChannelQueue(consumer=consumer, rows=5, age_us=queued_ms * 1000)]
    return control_pb2.SubtaskReport(
        subtask=common_pb2.SubtaskId(stage_index=subtask.stage_index, subtask_index=subtask.subtask_index),
        state=control_pb2.SUBTASK_STATE_RUNNING,
        busy_us=int(busy_s * 1e6),
        idle_us=int(idle_s * 1e6),
        backpressured_us=int(blocked_s * 1e6),
        records_in=rows,
        records_out=rows,
        first_batch_us=1,
        last_batch_us=int(last_s * 1e6) + 1,
        watermark_ms=NOW_MS - 5_000,
        channels=channels,
        latency_counts=latencies or [],
    )


def loads(graph, *moments, generation=1):
    """The loads of source and count after looks a second apart, each given by keywords of both reports."""
    windows = LoadWindows()
    for at_s, (source, count) in enumerate(moments):
        windows.take(
            float(at_s), generation, {SOURCE: report(SOURCE, **source), COUNT: report(COUNT, **count)}
        )
    return [stage.subtasks[0] for stage in windows.stages(graph, NOW_MS)[:2]]


def test_shares_are_of_the_window_and_not_of_the_hour_before_it(graph):
    begun = ({"idle_s": 3600.0}, {"idle_s": 3600.0})
    later = [
        ({"idle_s": 3600.0, "blocked_s": t * 1.0}, {"idle_s": 3600.0, "busy_s": t * 0.9}) for t in (1, 2, 3)
    ]
    source, count = loads(graph, begun, *later)
    assert (source.busy, source.blocked) == (0.0, 1.0)
    assert (count.busy, count.blocked) == (1.0, 0.0)


def test_rates_are_by_the_times_of_batches(graph):
    moments = [({"rows": 100 * t, "last_s": t + 0.9, "idle_s": t}, {"idle_s": t}) for t in range(5)]
    source, _ = loads(graph, *moments)
    assert source.rows_in_per_s == pytest.approx(100)


def test_a_call_that_takes_long_counts_as_busy_if_rows_wait(graph):
    moments = [({"idle_s": t, "queued_ms": 1000 * t}, {"idle_s": 1.0}) for t in range(4)]
    _, count = loads(graph, *moments)
    assert count.busy == 1.0
    assert count.queued_age_ms == 3_000


def test_without_rows_that_wait_it_sleeps(graph):
    _, count = loads(graph, *[({"idle_s": t}, {"idle_s": 1.0}) for t in range(4)])
    assert count.busy == 0.0


def test_watermarks_are_behind_the_clock(graph):
    source, _ = loads(graph, ({}, {}))
    assert source.watermark_lag_ms == 5_000


def test_a_new_deployment_begins_anew(graph):
    windows = LoadWindows()
    for at_s in range(4):
        windows.take(float(at_s), 1, {SOURCE: report(SOURCE, rows=100 * at_s)})
    assert windows.is_measured
    windows.take(4.0, 2, {SOURCE: report(SOURCE)})
    assert not windows.is_measured
    assert windows.stages(graph, NOW_MS)[0].rows_in_per_s == 0


def test_latencies_are_of_late(graph):
    slow, quick = [0] * (len(BUCKETS_MS) + 1), [0] * (len(BUCKETS_MS) + 1)
    slow[-2] = 1_000
    quick[0] = 10
    windows = LoadWindows()
    windows.take(0.0, 1, {COUNT: report(COUNT, latencies=slow)})
    assert windows.latency_ms(0.99) is None
    windows.take(1.0, 1, {COUNT: report(COUNT, latencies=[a + b for a, b in zip(slow, quick, strict=True)])})
    assert windows.latency_ms(0.99) <= BUCKETS_MS[0]


def test_looks_are_forgotten(graph):
    windows = LoadWindows()
    for at_s in range(1_000):
        windows.take(float(at_s), 1, {})
    assert len(windows._looks) < 10 * WINDOW_S
