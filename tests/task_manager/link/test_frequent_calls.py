"""Calls to a control plane over real connections, to a server in a thread."""

import asyncio
import contextlib
import threading
import time

import grpc
import pytest

from task_manager.link.control_planes import ControlPlanes
from task_manager.link.frequent_calls import FrequentCalls, LateError
from weir.questions.link import AnsweringProtocol, new_greeting
from weir.rpc import control_pb2
from weir.rpc.frequent_calls import FrequentCall, answer_to
from weir.types import Address

GREETING = new_greeting()
REQUEST = control_pb2.HeartbeatRequest(address="a:1")
KNOWN = control_pb2.HeartbeatReply(known=True)


@contextlib.contextmanager
def serving(take):
    """A server; ``take`` is called in its loop, with a frame and what answers it. Yields its port."""
    loop, connections = asyncio.new_event_loop(), []

    def answering():
        connections.append(AnsweringProtocol({GREETING: take}))
        return connections[-1]

    server = loop.run_until_complete(loop.create_server(answering, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for connection in connections:
            connection.close()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def known(frame, answer):
    answer(answer_to(frame, {FrequentCall.HEARTBEAT: lambda content: KNOWN}))


def heartbeat(calls, timeout_s=60.0):
    return calls.call(FrequentCall.HEARTBEAT, REQUEST, control_pb2.HeartbeatReply, timeout_s)


@contextlib.contextmanager
def calls_to(port, greeting=GREETING):
    calls = FrequentCalls(Address("127.0.0.1", port), greeting)
    yield calls
    calls.close()


def test_calls_of_a_thread_share_a_connection_and_those_at_once_do_not():
    waiting = []

    def take(frame, answer):
        waiting.append((frame, answer))
        if len(waiting) == 2:
            # The first one is answered last.
            known(*waiting[1])
            known(*waiting[0])
        elif len(waiting) > 2:
            known(frame, answer)

    with serving(take) as port, calls_to(port) as calls:
        replies = []
        first = threading.Thread(target=lambda: replies.append(heartbeat(calls)))
        first.start()
        while not waiting:
            time.sleep(0.001)
        replies.append(heartbeat(calls))
        first.join()
        assert replies == [KNOWN, KNOWN]
        assert len(calls._idle) == 2
        assert heartbeat(calls) == KNOWN
        assert len(calls._idle) == 2


def test_a_refused_call_is_to_be_made_over_grpc_and_the_connection_stays():
    with serving(lambda frame, answer: answer(answer_to(frame, {}))) as port, calls_to(port) as calls:
        assert heartbeat(calls) is None
        assert len(calls._idle) == 1


def test_who_does_not_know_the_greeting_gets_no_answer():
    with serving(known) as port, calls_to(port, new_greeting()) as calls:
        assert heartbeat(calls) is None


def test_an_answer_that_does_not_come_is_late_as_over_grpc():
    with serving(lambda frame, answer: None) as port, calls_to(port) as calls:
        with pytest.raises(LateError) as error:
            heartbeat(calls, 0.01)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not calls._idle


def test_a_place_that_cannot_be_reached_is_not_tried_again():
    with serving(known) as port:
        pass
    with calls_to(port) as calls:
        assert heartbeat(calls) is None
        with serving(known) as port:
            calls._place = Address("127.0.0.1", port)
            assert heartbeat(calls) is None


class Stub:
    """Of gRPC: notes its calls."""

    def __init__(self):
        self.calls = []

    def Heartbeat(self, request, timeout):
        self.calls.append(request)
        return KNOWN


@pytest.mark.parametrize("between", [False, True])
def test_a_control_plane_behind_a_forwarded_port_is_called_over_grpc_only(between):
    """What cuts that port must cut all; and other ports lead nowhere."""
    taken = []

    def take(frame, answer):
        taken.append(frame)
        known(frame, answer)

    with serving(take) as port:
        planes, stub = ControlPlanes(["127.0.0.1:8008"]), Stub()
        planes._stubs = [stub]
        assert planes.heartbeat(REQUEST, 60.0) == KNOWN
        reply = control_pb2.RegisterReply(
            frequent_calls_port=port, frequent_calls_greeting=GREETING, grpc_port=9000 if between else 8008
        )
        planes.registered(reply)
        assert planes.heartbeat(REQUEST, 60.0) == KNOWN
        assert (len(stub.calls), len(taken)) == ((2, 0) if between else (1, 1))
        # Nobody knows who is there now.
        planes.try_next()
        planes.heartbeat(REQUEST, 60.0)
        assert len(taken) == (not between)
        planes.close()
