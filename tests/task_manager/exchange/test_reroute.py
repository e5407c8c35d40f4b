"""Consumers come and go at a batch boundary: rows that wait, markers, and watermarks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import batch, channel, drain, edge_of, never_waits
from weir.clock import SystemClock
from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table, rescaled
from weir.rows import row_watermarks
from weir.rows.records import (
    KEY_HASH_COLUMN,
    WATERMARK_MAX_MS,
    Barrier,
    Block,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
)


def stalled_edge():
    """Two consumers, one of which takes one batch only; its sender has a row for it that waits."""
    before = initial_table(1, 2, 128)
    links = [channel(0, elements_max=1), channel(1)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in enumerate(links)},
        BatchPolicy(1, 10_000.0),
        before.group_to_subtask,
    )
    names = [f"server-{n}" for n in range(100)]
    owners = before.group_to_subtask[key_groups(hash_keys(key_bytes(batch(names), ("key",))), 128)]
    slow = [name for name, owner in zip(names, owners, strict=True) if owner == 0][:2]
    output = Output([edge], lambda seconds: pytest.fail("it waits"), SystemClock())
    for edge_row in slow:
        edge.add(Block(batch([edge_row])), 0, 1)
    output.pump()
    return output, links, before


def test_of_watermarks_that_wait_behind_rows_the_first_and_the_last_leave():
    """Where nothing waits they leave at once."""
    output, [(_, slow), (_, fast)], _ = stalled_edge()
    for time_ms in range(100):
        output.broadcast(Watermark(time_ms))
    assert drain(fast) == [Watermark(time_ms) for time_ms in range(100)]
    first = slow.poll(0.0)
    assert first.element.num_rows == 1
    first.release()
    output.pump()
    assert drain(slow)[1:] == [Watermark(0), Watermark(99)]


def test_the_end_of_time_does_not_replace_the_watermark_before_it():
    """How far time had come at the end counts for early results."""
    output, [(_, slow), _], _ = stalled_edge()
    told = [Watermark(1), Watermark(2), Watermark(WATERMARK_MAX_MS)]
    for element in told:
        output.broadcast(element)
    received = drain(slow)
    output.pump()
    assert (received + drain(slow))[-3:] == told


def test_the_watermark_before_idleness_leaves_behind_rows_too():
    output, [(_, slow), _], _ = stalled_edge()
    for element in (Watermark(1), Watermark(2), Idle()):
        output.broadcast(element)
    received = drain(slow)
    output.pump()
    assert (received + drain(slow))[-3:] == [Watermark(1), Watermark(2), Idle()]


def test_what_waits_at_a_switch_leaves_before_the_marker_for_whom_it_was_meant():
    output, [(_, slow), (_, fast)], before = stalled_edge()
    output.broadcast(Watermark(5))
    after, _ = rescaled(before, (1,))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {}, [0])
    assert [type(element).__name__ for element in drain(fast)] == ["Watermark", "RouteMarker"]
    assert [type(element).__name__ for element in drain(slow)] == [
        "RecordBatch",
        "RecordBatch",
        "Watermark",
        "RouteMarker",
        "EndOfStream",
    ]


def test_reroute_sends_unsent_rows_marks_every_channel_and_ends_retired_ones():
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0, 2))
    links = [channel(index, elements_max=1) for index in range(3)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {0: links[0][0], 1: links[1][0]},
        BatchPolicy(10_000, 10_000.0),
        before.group_to_subtask,
    )
    output = Output([edge], never_waits, SystemClock())
    output.emit(batch([f"server-{n}" for n in range(100)]))
    output.emit(batch([f"server-{n}" for n in range(100)], 100))
    output.broadcast(Watermark(77))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {2: links[2][0]}, [1])
    output.emit(batch([f"server-{n}" for n in range(100)], 200))
    received = [drain(inbox) for _, inbox in links]
    while (more := [drain(inbox) for _, inbox in links]) != [[], [], []] or not all(
        out.is_empty for out in edge.writers
    ):
        output.pump()
        received = [old + new for old, new in zip(received, more, strict=True)]
    assert isinstance(received[1][-1], EndOfStream)
    assert isinstance(received[1][-2], RouteMarker)
    rows: list[int] = []
    for index, elements in enumerate(received):
        marker = next(at for at, element in enumerate(elements) if isinstance(element, RouteMarker))
        assert elements[marker] == RouteMarker(after.version)
        for at, element in enumerate(elements):
            if isinstance(element, pa.RecordBatch):
                table = before if at < marker else after
                groups = key_groups(element.column(KEY_HASH_COLUMN).to_numpy(), 128)
                assert set(table.group_to_subtask[groups]) == {index}
                rows += element.column("n").to_pylist()
        numbers = [
            element.column("n").to_pylist() if isinstance(element, pa.RecordBatch) else element.time_ms
            for element in elements
            if isinstance(element, pa.RecordBatch | Watermark)
        ]
        told = numbers.index(77)
        assert all(max(part) < 200 for part in numbers[:told]), "behind every row that it was behind before"
        assert all(min(part) >= 200 for part in numbers[told + 1 :])
    assert sorted(rows) == list(range(300))


@pytest.mark.parametrize("has_key_groups", [False, True])
def test_copies_that_wait_at_a_reroute_go_to_all_consumers_of_before_and_to_no_other(has_key_groups):
    """Two of three retire, one of which has credit for one batch only; another one comes."""
    table = initial_table(1, 3, 128)
    after, _ = rescaled(table, (0, 3))
    routes = [each.group_to_subtask if has_key_groups else None for each in (table, after)]
    links = [channel(0, elements_max=2), channel(1), channel(2, elements_max=1), channel(3)]
    edge = OutputEdge(
        edge_of(Exchange.BROADCAST),
        {index: link for index, (link, _) in enumerate(links[:3])},
        BatchPolicy(100, 10_000.0),
        routes[0],
    )
    waits = []

    def reroute_once(timeout_s: float) -> None:
        waits.append(timeout_s)
        output.reroute(edge_of(Exchange.BROADCAST), after.version, routes[1], {3: links[3][0]}, [1, 2])

    output = Output([edge], reroute_once, SystemClock())
    for start in range(0, 15, 3):
        output.emit(batch(["a", "b", "c"], start))
    assert not waits
    assert [len(inbox) for _, inbox in links] == [2, 5, 1, 0]
    output.broadcast(Watermark(7))
    reroute_once(0.0)
    output.emit(batch(["d"], 15))
    received: list[list] = [[] for _ in links]
    while any(more := [drain(inbox) for _, inbox in links]):
        received = [old + new for old, new in zip(received, more, strict=True)]
        output.pump()

    def rows(elements: list) -> list[int]:
        return [n for e in elements if isinstance(e, pa.RecordBatch) for n in e.column("n").to_pylist()]

    before = list(range(15))
    assert [rows(elements) for elements in received] == [[*before, 15], before, before, [15]]
    assert all(isinstance(received[index][-1], EndOfStream) for index in (1, 2))
    assert Watermark(7) in received[0]
    for elements in received[:3] if has_key_groups else ():
        assert rows(elements[: elements.index(RouteMarker(after.version))]) == before


def test_an_input_without_keys_of_a_stage_with_key_groups_has_markers_too():
    """An owner waits for those of all its inputs."""
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, old_inbox), (new, new_inbox) = channel(0), channel(1)
    edge = OutputEdge(
        edge_of(Exchange.ROUND_ROBIN), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask
    )
    output = Output([edge], never_waits, SystemClock())
    output.reroute(edge_of(Exchange.ROUND_ROBIN), after.version, after.group_to_subtask, {1: new}, [])
    assert [drain(inbox) for inbox in (old_inbox, new_inbox)] == [[RouteMarker(after.version)]] * 2


def test_a_reroute_while_the_rest_is_sent_loses_nothing():
    """One consumer has credit for all, the other one for nothing, and retires: its rows go without."""
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0,))
    links = [channel(0), channel(1, elements_max=1)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in enumerate(links)},
        BatchPolicy(10_000, 10_000.0),
        before.group_to_subtask,
    )
    waits = []

    def reroute_once(timeout_s: float) -> None:
        waits.append(timeout_s)
        output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {}, [1])

    output = Output([edge], reroute_once, SystemClock())
    for start in (0, 100):
        output.emit(batch([f"server-{n}" for n in range(100)], start))
    output.finish()
    assert len(waits) == 1
    received = [drain(inbox) for _, inbox in links]
    rows = [
        n
        for part in received
        for e in part
        if isinstance(e, pa.RecordBatch)
        for n in e.column("n").to_pylist()
    ]
    assert sorted(rows) == list(range(200))
    for elements in received:
        assert sum(isinstance(element, EndOfStream) for element in elements) == 1
        assert isinstance(elements[-1], EndOfStream)
        assert RouteMarker(after.version) in elements


def two_consumers_and_a_third(policy):
    """Channels of three consumers, the output to two, and the table by which the third replaces the second."""
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0, 2))
    links = [channel(index) for index in range(3)]
    first = {0: links[0][0], 1: links[1][0]}
    edge = OutputEdge(edge_of(Exchange.HASH), first, policy, before.group_to_subtask)
    return links, Output([edge], never_waits, SystemClock()), after


def test_a_reroute_after_the_end_tells_new_consumers_only():
    links, output, after = two_consumers_and_a_third(BatchPolicy(10_000, 10_000.0))
    output.emit(batch(["a", "b"]))
    output.finish()
    assert [isinstance(drain(inbox)[-1], EndOfStream) for _, inbox in links[:2]] == [True, True]
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {2: links[2][0]}, [1])
    assert [drain(inbox) for _, inbox in links] == [[], [], [RouteMarker(after.version), EndOfStream()]]


def test_what_rows_told_one_consumer_of_time_all_know_before_the_marker():
    """Else an owner would give groups away to one that has gone further."""
    links, output, after = two_consumers_and_a_third(BatchPolicy(1, 0.0))
    output.broadcast(Watermark(5))
    times = pa.array([30, 8], pa.int64())
    row = batch(["a", "a"]).append_column("_event_time_ms", times)
    # The first one has just its time, the second one is late.
    output.emit(row_watermarks.with_column(row, np.array([30, 30])))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {2: links[2][0]}, [1])
    marker, told = RouteMarker(after.version), Watermark(30)
    received = [[e for e in drain(inbox) if not isinstance(e, pa.RecordBatch)] for _, inbox in links]
    assert received == [
        [Watermark(5), told, marker],
        [Watermark(5), told, marker, EndOfStream()],
        [marker, told],
    ]


def test_a_new_consumer_learns_the_watermark_that_the_others_have():
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, _), (new, inbox) = channel(0), channel(1)
    edge = OutputEdge(edge_of(Exchange.HASH), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask)
    output = Output([edge], never_waits, SystemClock())
    output.broadcast(Watermark(5))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {1: new}, [])
    assert drain(inbox) == [RouteMarker(after.version), Watermark(5)]


def test_a_new_consumer_learns_that_nothing_comes_for_now():
    """A barrier since then changes nothing about it."""
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, _), (new, inbox) = channel(0), channel(1)
    edge = OutputEdge(edge_of(Exchange.HASH), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask)
    output = Output([edge], never_waits, SystemClock())
    for element in (Watermark(5), Idle(), Barrier(1)):
        output.broadcast(element)
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {1: new}, [])
    assert drain(inbox) == [RouteMarker(after.version), Watermark(5), Idle()]
