"""Whom the functions for operators ask, and for how long."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from weir.errors import ConnectionLostError
from weir.log import admin, create_topic, log_status
from weir.rpc import log_pb2, log_pb2_grpc


class Broker(log_pb2_grpc.LogBrokerServicer):
    """Creates any topic."""

    def __init__(self):
        self.created = []

    def CreateTopic(self, request, context):
        self.created.append(request.settings.topic)
        return log_pb2.CreateTopicReply()


@pytest.fixture
def silent():
    """Address of one that stands still: the system takes connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_brokers_that_stand_still_or_are_away_hold_nobody_up(monkeypatch, silent):
    monkeypatch.setattr(admin, "_START_S", 300.0)
    server, broker = grpc.server(ThreadPoolExecutor(2)), Broker()
    log_pb2_grpc.add_LogBrokerServicer_to_server(broker, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    began_s = time.monotonic()
    try:
        create_topic(f"{silent},127.0.0.1:1,{address}", "wal")
    finally:
        server.stop(None).wait()
    assert broker.created == ["wal"]
    assert time.monotonic() - began_s < 60


def test_where_nobody_answers_one_of_those_is_named(silent):
    with pytest.raises(ConnectionLostError, match=f"the log broker at {silent} does not answer; start it"):
        log_status(f"127.0.0.1:1,{silent}")
