"""The link to the control plane in the test's thread: replies are listed, the clock moves with each call."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest

from task_manager.link.control_calls import GrpcControlCalls, MadePart
from task_manager.link.control_link import ControlLink
from task_manager.link.control_planes import ControlPlanes
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError, HandshakeError
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity
from weir.testing.manual_clock import ManualClock
from weir.types import SubtaskId

JOB = JobIdentity("job", "f00d", 2)
CONFIG = TaskManagerConfig(connect_timeout_s=5, reconnect_timeout_s=60, drain_timeout_s=10)


class CallError(grpc.RpcError):
    def __init__(self, code, details="no"):
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


AWAY = CallError(grpc.StatusCode.UNAVAILABLE, "nothing listens")
LATE = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "late")


class Planes:
    """Implements ``ControlPlanes``: answers each method from a list; the last answer is repeated."""

    address = addresses = "cp:1"

    def __init__(self, clock, **answers):
        self.clock, self.answers = clock, {name: list(listed) for name, listed in answers.items()}
        self.calls, self.tried = [], 0
        self.closed = False

    @property
    def stub(self):
        return self

    def __getattr__(self, name):
        if not name[0].isupper():
            raise AttributeError(name)

        def call(request, timeout):
            self.calls.append((name, request))
            self.clock.advance_ms(100)
            listed = self.answers[name]
            answer = listed.pop(0) if len(listed) > 1 else listed[0]
            answer = answer() if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def names(self):
        return [name for name, _ in self.calls]

    def heartbeat(self, request, timeout_s):
        return self.Heartbeat(request, timeout_s)

    def acknowledge(self, request, timeout_s):
        return self.AcknowledgeCheckpoint(request, timeout_s)

    def registered(self, reply):
        pass

    def try_next(self):
        self.tried += 1

    def close(self):
        self.closed = True


class Server:
    """Implements ``ports.LinkedServer``."""

    address = "here:1"
    orders_secret = b"orders"

    def __init__(self, runtime=None):
        self.runtime = runtime
        self.incarnations = 1
        self.told_again = 0
        self.forgotten = []
        if runtime is not None:
            runtime.deliver_last_parts_again = self.tell_again

    @property
    def incarnation(self):
        return f"i{self.incarnations}"

    def tell_again(self):
        self.told_again += 1

    def reports(self):
        return []

    def ownership_reports(self):
        return []

    def state_files(self):
        return None

    def forget(self, subtasks):
        self.forgotten += subtasks

    def align(self, job_id, generation, lowest_ms):
        self.aligned = dict(lowest_ms)

    def renew_incarnation(self):
        self.drop_job()
        self.incarnations += 1

    def drop_job(self, runtime=None):
        self.runtime = None


def registered(plane="cp-1", keep_job=False):
    return control_pb2.RegisterReply(heartbeat_interval_ms=1, control_plane_id=plane, keep_job=keep_job)


def beat(known=True, shutdown=False, plane="cp-1"):
    return control_pb2.HeartbeatReply(known=known, shutdown=shutdown, control_plane_id=plane)


SHUTDOWN = beat(shutdown=True)


def job(is_over=False):
    return SimpleNamespace(identity=JOB, is_over=is_over, waits_for="")


def linked(**answers):
    clock = ManualClock()
    planes = Planes(clock, **{"Register": [registered()], **answers})
    return ControlLink(CONFIG, planes, clock, lambda wait_s: clock.advance_ms(wait_s * 1e3)), planes


def test_it_registers_reports_and_stops_when_the_job_has_ended():
    link, planes = linked(
        Register=[registered(keep_job=True)],
        Heartbeat=[beat(), SHUTDOWN],
        Deregister=[control_pb2.DeregisterReply()],
    )
    server = Server(job())
    link.run(server)
    assert planes.names() == ["Register", "Heartbeat", "Heartbeat"]
    assert planes.calls[1][1].job_id == "job"
    assert planes.calls[1][1].generation == 2
    link.leave(server)
    assert planes.names()[3:] == ["Heartbeat", "Deregister"]
    assert planes.closed


def test_it_waits_for_a_control_plane_that_is_not_up_yet():
    link, planes = linked(Register=[AWAY, AWAY, registered()], Heartbeat=[SHUTDOWN])
    link.run(Server())
    assert planes.tried == 2


def test_it_gives_up_after_a_while_and_says_what_to_do():
    link, planes = linked(Register=[AWAY])
    with pytest.raises(
        ConnectionLostError, match=r"no control plane answered at cp:1 for 5 s; start one .*nothing listens"
    ):
        link.run(Server())
    assert 10 <= len(planes.calls) <= 60


def test_a_refusal_is_final():
    link, _ = linked(Register=[CallError(grpc.StatusCode.FAILED_PRECONDITION, "protocol version 1")])
    with pytest.raises(HandshakeError, match="refused this task manager: protocol version 1"):
        link.run(Server())


def test_an_ended_lease_is_answered_with_a_new_incarnation():
    link, planes = linked(
        Register=[CallError(grpc.StatusCode.ABORTED, "its lease has ended"), registered()],
        Heartbeat=[beat(known=False), SHUTDOWN],
    )
    server = Server(job())
    link.run(server)
    assert planes.names() == ["Register", "Register", "Heartbeat", "Register", "Heartbeat"]
    assert [request.incarnation for _, request in planes.calls] == ["i1", "i2", "i2", "i3", "i3"]
    assert server.runtime is None


@pytest.mark.parametrize("keep_job", [True, False])
def test_another_control_plane_keeps_the_job_or_does_not_want_it(keep_job):
    link, _ = linked(
        Register=[registered(keep_job=True), registered("cp-2", keep_job=keep_job)],
        Heartbeat=[beat(known=False, plane="cp-2"), beat(shutdown=True, plane="cp-2")],
    )
    server = Server(job())
    link.run(server)
    assert server.incarnations == 1
    assert (server.runtime is not None) is keep_job
    assert server.told_again == 1 + keep_job


@pytest.mark.parametrize(("runtime", "patience_s"), [(job(), 60), (job(is_over=True), 5), (None, 5)])
def test_a_job_lives_longer_without_a_control_plane_than_nothing(runtime, patience_s):
    link, planes = linked(Register=[registered(keep_job=True)], Heartbeat=[AWAY])
    server = Server(runtime)
    with pytest.raises(ConnectionLostError, match=f"for {patience_s} s"):
        link.run(server)
    assert planes.clock.monotonic_s() == pytest.approx(patience_s, abs=1)


def test_a_second_signal_ends_a_drain():
    link, planes = linked(
        Heartbeat=[lambda: (link.drain(), beat())[1], lambda: (link.drain(), beat())[1]],
        Drain=[control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_DRAINING)],
    )
    link.run(Server())
    assert link.is_stopped
    assert planes.names() == ["Register", "Heartbeat", "Drain", "Heartbeat", "Drain"]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_EMPTY)], 1),
        ([control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_REFUSED, cause="no room")], 1),
        ([CallError(grpc.StatusCode.UNAVAILABLE)], 1),
        ([LATE, control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_EMPTY)], 2),
        # 10 s at 0.2 s a round.
        ([control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_DRAINING)], 50),
    ],
)
def test_it_leaves_when_it_is_empty_cannot_be_or_takes_too_long(answers, asked):
    first = iter([True])
    link, planes = linked(
        Heartbeat=[lambda: (next(first, None) and link.drain(), beat())[1]],
        Drain=answers,
    )
    link.run(Server())
    assert not link.is_stopped
    assert planes.names().count("Drain") == pytest.approx(asked, abs=2 if asked > 2 else 0)
    begins = [request.begin for name, request in planes.calls if name == "Drain"]
    assert begins[0]


def test_before_it_has_registered_a_drain_stops_at_once():
    link, planes = linked(Register=[lambda: (link.drain(), AWAY)[1]])
    link.run(Server())
    assert planes.names() == ["Register"]


def calls_of(**answers):
    clock = ManualClock()
    planes = Planes(clock, **answers)
    stopped = []
    calls = GrpcControlCalls(
        CONFIG, planes, clock, lambda: bool(stopped), lambda wait_s: clock.advance_ms(wait_s * 1e3)
    )
    return calls, planes, stopped


def test_a_last_part_is_sent_until_it_is_taken_and_others_once():
    taken = control_pb2.AcknowledgeCheckpointReply
    calls, planes, _ = calls_of(AcknowledgeCheckpoint=[AWAY, taken(taken=False), taken(taken=True)])
    calls.acknowledge(JOB, [MadePart(SubtaskId(1, 0), 0, b"{}", "")], lambda: True)
    assert len(planes.calls) == 3
    calls, planes, _ = calls_of(AcknowledgeCheckpoint=[taken(taken=False)])
    parts = [MadePart(SubtaskId(1, index), 7, b"{}", "") for index in range(3)]
    calls.acknowledge(JOB, parts, lambda: True)
    ((_, request),) = planes.calls
    assert [it.subtask.subtask_index for it in (request, *request.others)] == [0, 1, 2]


@pytest.mark.parametrize("ends", ["unwanted", "stopped", "patience"])
def test_nobody_is_asked_for_ever(ends):
    calls, planes, stopped = calls_of(AcknowledgeCheckpoint=[AWAY])
    if ends == "stopped":
        stopped.append(True)
    with pytest.raises(ConnectionLostError, match="did not take the part of subtask 1/0: nothing listens"):
        calls.acknowledge(JOB, [MadePart(SubtaskId(1, 0), 0, b"{}", "")], lambda: ends != "unwanted")
    assert (len(planes.calls) == 1) is (ends != "patience")


def test_where_state_is_can_be_asked():
    calls, _, _ = calls_of(Locate=[control_pb2.LocateReply(addresses=["a", "b"])])
    assert calls.locate(2, [4, 5]) == {4: "a", 5: "b"}
    calls, _, _ = calls_of(Locate=[AWAY])
    with pytest.raises(ConnectionLostError, match="does not tell where state is: nothing listens"):
        calls.locate(2, [4, 5])


def test_calls_over_a_connection_that_was_closed_say_so():
    planes, clock = ControlPlanes(["127.0.0.1:1"]), ManualClock()
    calls = GrpcControlCalls(CONFIG, planes, clock, lambda: True, lambda wait_s: None)
    planes.close()
    part = MadePart(SubtaskId(1, 0), 7, b"{}", "")
    for call in (
        lambda: calls.locate(2, [4]),
        calls.directory,
        lambda: calls.acknowledge(JOB, [part], lambda: True),
    ):
        with pytest.raises(ConnectionLostError, match=r"control plane at 127\.0\.0\.1:1 .* closed channel"):
            call()


class Waits:
    """Notes how long the link waits for news; none comes."""

    def __init__(self):
        self.waits_s = []

    def wait(self, wait_s):
        self.waits_s.append(wait_s)

    def clear(self):
        pass

    set = clear


@pytest.mark.parametrize(("subtasks", "steady_s"), [(4, 0.6), (5, 0.4)])
def test_a_job_to_which_nothing_comes_is_reported_less_often_within_its_lease(subtasks, steady_s):
    """And one of few subtasks also while only counters change."""

    def report(rows, state=control_pb2.SUBTASK_STATE_RUNNING):
        return subtasks * [control_pb2.SubtaskReport(state=state, records_in=rows)]

    reports = [report(1), report(1), report(1), report(2), report(2)]
    reports += 3 * [report(2, control_pb2.SUBTASK_STATE_FINISHED)]
    register = control_pb2.RegisterReply(heartbeat_interval_ms=200, lease_timeout_ms=2000)
    link, _ = linked(Register=[register], Heartbeat=[*(beat(plane="") for _ in reports[1:]), SHUTDOWN])
    server = Server(job())
    server.reports = iter(reports).__next__
    link._changed = Waits()
    link._clock.now_us = lambda: 150_000
    link.run(server)
    idle_s = pytest.approx(2.0 / 3)
    assert link._changed.waits_s == [0.2, steady_s, idle_s, idle_s, steady_s, idle_s, 0.2, 0.2]


def test_sources_of_which_others_wait_are_reported_often_also_while_they_have_no_rows():
    register = control_pb2.RegisterReply(heartbeat_interval_ms=200, lease_timeout_ms=2000)
    aligned = beat(plane="")
    aligned.lowest_watermarks_ms["g"] = 7
    link, _ = linked(Register=[register], Heartbeat=[aligned, aligned, aligned, SHUTDOWN])
    server = Server(job())
    server.reports = lambda: [control_pb2.SubtaskReport(state=control_pb2.SUBTASK_STATE_RUNNING)]
    link._changed = Waits()
    link.run(server)
    assert link._changed.waits_s == [0.2] * 4


def test_while_a_source_waits_reports_come_soon_and_less_often_where_nothing_moves():
    register = control_pb2.RegisterReply(heartbeat_interval_ms=200, lease_timeout_ms=2000)

    def aligned(lowest_ms, waits):
        lowest = {"g": lowest_ms}
        return control_pb2.HeartbeatReply(known=True, lowest_watermarks_ms=lowest, sources_wait=waits)

    replies = [aligned(7, True), aligned(8, True), aligned(8, True), aligned(8, True), aligned(8, True)]
    replies += [aligned(9, True), aligned(9, False), SHUTDOWN]
    link, _ = linked(Register=[register], Heartbeat=replies)
    server = Server(job())
    server.reports = lambda: [control_pb2.SubtaskReport(state=control_pb2.SUBTASK_STATE_RUNNING)]
    link._changed = Waits()
    link.run(server)
    assert link._changed.waits_s == [0.2, 0.05, 0.05, 0.1, 0.2, 0.2, 0.05, 0.2]


@pytest.mark.parametrize(("now_ms", "wait_s"), [(150, 0.4), (300, 0.25), (400, 0.55), (549, 0.401)])
def test_reports_of_a_steady_job_come_at_the_same_moments_everywhere(now_ms, wait_s):
    """At 150 ms after whole multiples of 400 ms, when waves of rows have passed."""
    link, _ = linked()
    link._is_steady, link._steady_interval_s = True, 0.4
    link._clock.now_us = lambda: now_ms * 1000
    assert link._next_report_s(0.2) == pytest.approx(wait_s)


def test_reports_come_often_while_a_rescale_or_a_restore_goes_on_or_sources_wait_for_each_other():
    running = control_pb2.SUBTASK_STATE_RUNNING
    link, _ = linked()

    def is_steady(**changed):
        report = control_pb2.SubtaskReport(state=running, **changed.pop("report", {}))
        link._note_calm(control_pb2.HeartbeatRequest(subtasks=[report], **changed))
        return link._is_steady

    assert is_steady()
    assert not is_steady(report={"restoring_groups": 1})
    assert not is_steady(report={"is_held_back": True})
    began, moved = control_pb2.OwnershipReport(bytes_moved=1), control_pb2.OwnershipReport(bytes_moved=2)
    assert [is_steady(ownership=[it]) for it in (began, moved, moved, moved)] == [False, False, True, True]
