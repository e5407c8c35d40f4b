"""The page ``/log`` of the controller."""

import asyncio

import grpc
import httpx
import pytest

from log_broker import controller as controller_module
from log_broker.controller import Controller, _mistake, _Session
from log_broker.pages import log_pages
from log_broker.waiting import EOF
from weir.protocol.log.control import PartitionControl, PartitionRecord
from weir.questions.guard import Admission, own_hosts
from weir.records.file_keeper import FileKeeper
from weir.rpc import log_pb2


@pytest.fixture
def ask(tmp_path):
    controller = Controller(FileKeeper(tmp_path / "controller.json"), lease_s=1.0)
    settings = log_pb2.TopicSettings(topic="wal", partitions=2, replication=0, durability="os")
    assert "0 replicas" in controller._create(settings)
    transport = httpx.ASGITransport(log_pages(controller, Admission(own_hosts("127.0.0.1"))))

    async def request(method, path, more):
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9007") as client:
            return await client.request(method, path, **more)

    return lambda method, path, **more: asyncio.run(request(method, path, more))


def test_the_state_is_told_and_what_is_no_page_too(ask):
    reply = ask("GET", "/log")
    assert reply.status_code == 200
    assert reply.json() == {"brokers": {}, "partitions": [], "trouble": "", "drained_ids": []}
    assert ask("HEAD", "/log").content == b""
    assert ask("GET", "/healthz").json() == {"ok": True}
    unknown = ask("GET", "/status")
    assert (unknown.status_code, unknown.json()) == (
        404,
        {"error": "no page /status; there are /log, /healthz"},
    )


def test_nothing_is_changed_and_other_names_are_refused(ask):
    posted = ask("POST", "/log")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    foreign = ask("GET", "/log", headers={"host": "evil.example"})
    assert foreign.status_code == 403
    assert "which is not one of the" in foreign.json()["error"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": "a" * 201}, "a name has at most 200 bytes, this one 201"),
        ({"topic": "a/b"}, "'a/b' is no name of a topic"),
        ({"retention_ms": 4_999}, "a retention of 4999 ms is too short; the least is 5000"),
        ({"durability": "memory", "retention_ms": 60_000}, "needs a bound: give a retention in bytes"),
        ({"replication": 5}, "5 replicas need as many brokers, and 3 are here"),
        ({"durability": "disk"}, "durability 'disk' is none of memory, os, fsync"),
        ({"partitions": 1025}, "1025 partitions are not possible"),
    ],
)
def test_settings_that_cannot_be_are_told(settings, message):
    topic = {"topic": "wal", "partitions": 1, "replication": 3, "durability": "os"} | settings
    assert message in _mistake(log_pb2.TopicSettings(**topic), brokers=3, partitions=0)


def test_a_log_has_so_many_partitions_and_no_more():
    topic = log_pb2.TopicSettings(topic="wal", partitions=6, replication=3, durability="os")
    assert _mistake(topic, brokers=3, partitions=4090) == ""
    assert _mistake(topic, brokers=3, partitions=4091) == (
        "topic wal: 6 more partitions are not possible: the log has 4091, and 4096 is the most; start another log, on "
        "other ports and with another --dir"
    )


def test_a_leader_that_has_begun_again_and_does_not_open_its_replica_is_replaced(tmp_path):
    controller = Controller(FileKeeper(tmp_path / "controller.json"), lease_s=1.0)
    record = PartitionRecord("wal", 0, [1, 2, 3], {1: 11, 2: 22, 3: 33}, epoch=5, leader=1)
    controller._partitions = [PartitionControl(record)]
    name = log_pb2.PartitionName(topic="wal")
    for broker_id in record.replicas:
        controller._sessions[broker_id] = session = _Session(f"broker:{broker_id}")
        session.replicas = [
            log_pb2.ReplicaReport(
                name=name,
                incarnation=record.members[broker_id],
                promised_epoch=5,
                leading_epoch=5 if broker_id == 1 else 0,
            )
        ]
    controller._decide()
    assert (record.leader, record.epoch) == (1, 5)
    controller._sessions[1].replicas = []
    controller._decide()
    assert (record.leader, record.epoch) == (0, 6)


@pytest.mark.parametrize(
    ("error", "is_told"), [(grpc.aio.InternalError("closed"), False), (ValueError("a fault of ours"), True)]
)
def test_what_ends_the_telling_of_a_broker_is_logged_unless_it_is_the_end_of_its_stream(
    tmp_path, caplog, error, is_told
):
    controller = Controller(FileKeeper(tmp_path / "controller.json"), lease_s=30.0)

    class Call:
        """In place of gRPC: one report comes, and nothing can be told."""

        def __init__(self):
            self.reports = [log_pb2.BrokerReport(broker_id=1, address="broker:1")]
            self.is_written = asyncio.Event()

        async def read(self):
            if not self.reports:
                await self.is_written.wait()
            return self.reports.pop() if self.reports else EOF

        async def write(self, view):
            self.is_written.set()
            raise error

    async def test():
        await controller.Attend(None, Call())

    asyncio.run(test())
    assert "broker 1 is lost" in caplog.text
    assert ("what broker 1 is told ended: a fault of ours" in caplog.text) == is_told
    assert ("Traceback" in caplog.text) == is_told


def test_a_partition_that_has_just_been_created_does_not_end_the_balance_of_leaders(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "_MOVE_EVERY_S", 0.001)
    controller = Controller(FileKeeper(tmp_path / "controller.json"), lease_s=1.0)
    looks = []

    class Looked(PartitionControl):
        def move_leader(self, reports):
            looks.append(reports)
            return super().move_leader(reports)

    controller._partitions = [Looked(PartitionRecord("wal", 0, [1, 2, 3]))]
    monkeypatch.setattr(controller_module, "_STAYS_S", 0.0)

    async def test():
        moving = asyncio.create_task(controller.move_leaders())
        while len(looks) < 3:
            await asyncio.sleep(0.001)
            assert not moving.done(), moving.exception()
        moving.cancel()

    asyncio.run(test())
