"""Topics and the state of the log, asked of any broker."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from weir.clock import SystemClock
from weir.errors import ConfigError, ConnectionLostError
from weir.log.cluster import Cluster
from weir.rpc import log_pb2, log_pb2_grpc
from weir.rpc.log_status import LogStatus, status_of

_TIMEOUT_S = 15.0
#: Brokers that do not listen yet are waited for, by what only looks and by what is likely to follow a start.
_LOOK_S, _START_S = 2.0, 10.0
#: A broker that listens is reached sooner.
_NEXT_S = 0.1
_Reply = TypeVar("_Reply")


def create_topic(
    brokers: str,
    topic: str,
    *,
    partitions: int = 1,
    replication: int = 3,
    durability: str = "os",
    retention_ms: int = 0,
    retention_bytes: int = 0,
    segment_bytes: int = 0,
) -> None:
    """Create a topic; if it is there with the same settings, do nothing.

    Args:
        brokers: ``host:port`` of a broker, or of several with commas.
        topic: its name.
        partitions: each is a log of its own.
        replication: brokers that keep each partition; more than half of them must live.
        durability: "memory", "os" (in the system's memory, or on disk) or "fsync": when a record counts as kept.
        retention_ms: segments that are older are removed; 0: none is.
        retention_bytes: the oldest segments of a partition beyond so much are removed; 0: none is.
        segment_bytes: size of a segment; 0: the brokers' own.

    Raises:
        ConfigError: this is not possible, or the topic has other settings.
        ConnectionLostError: no broker answers, or the controller does not.
    """
    settings = log_pb2.TopicSettings(
        topic=topic,
        partitions=partitions,
        replication=replication,
        durability=durability,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        segment_bytes=segment_bytes,
    )
    request = log_pb2.CreateTopicRequest(settings=settings)
    for reply in _answers(
        brokers, lambda stub: stub.CreateTopic(request, timeout=_TIMEOUT_S), patience_s=_START_S
    ):
        if reply.is_away:
            raise ConnectionLostError(reply.error)
        if reply.error:
            raise ConfigError(reply.error)
        return


def move_replicas(brokers: str, *, drain: int = 0, undrain: int = 0) -> int:
    """Begin to move replicas while producers run; :func:`log_status` shows how far it is.

    Args:
        brokers: ``host:port`` of a broker, or of several with commas.
        drain: id of a broker that is to have none any more, and gets no new ones; 0: none.
        undrain: id of one that was drained and may have some again; 0: none. Without both, replicas and leaderships
            are spread evenly over the brokers that are there, such as a new one.

    Returns:
        How many partitions change.

    Raises:
        ConfigError: there is no such broker, or no other one that could have its replicas.
        ConnectionLostError: no broker answers, or the controller does not.
    """
    request = log_pb2.RearrangeRequest(drain=drain, undrain=undrain)
    for reply in _answers(brokers, lambda stub: stub.Rearrange(request, timeout=_TIMEOUT_S)):
        if reply.is_away:
            raise ConnectionLostError(reply.error)
        if reply.error:
            raise ConfigError(reply.error)
        return int(reply.partitions)
    raise AssertionError("a broker has answered, or an error was raised")


def accept_loss(brokers: str, topic: str, partition: int, broker: int) -> int:
    """Let a partition go on with what one broker has of it, where a majority of its replicas is lost for good.

    What only the others had is lost with this. They are filled from that broker, one after the other.

    Args:
        brokers: ``host:port`` of a broker, or of several with commas.
        topic: its name.
        partition: of the topic, from 0.
        broker: id of the one whose data counts from now on; :func:`log_status` shows what each has.

    Returns:
        Offset behind the last record that it has.

    Raises:
        ConfigError: there is no such partition or replica, or a majority of its replicas is there.
        ConnectionLostError: no broker answers, or the controller does not.
    """
    request = log_pb2.AcceptLossRequest(
        name=log_pb2.PartitionName(topic=topic, partition=partition), broker_id=broker
    )
    for reply in _answers(brokers, lambda stub: stub.AcceptLoss(request, timeout=_TIMEOUT_S)):
        if reply.is_away:
            raise ConnectionLostError(reply.error)
        if reply.error:
            raise ConfigError(reply.error)
        return int(reply.end_offset)
    raise AssertionError("a broker has answered, or an error was raised")


def log_status(brokers: str) -> LogStatus:
    """Ask for the state of the whole log; if no broker reaches the controller, what one of them knows.

    Args:
        brokers: ``host:port`` of a broker, or of several with commas.

    Raises:
        ConnectionLostError: no broker answers.
    """
    partly: LogStatus | None = None
    try:
        for reply in _answers(brokers, lambda stub: stub.Status(log_pb2.StatusRequest(), timeout=_TIMEOUT_S)):
            status = status_of(reply)
            if not status.trouble:
                return status
            partly = partly or status
    except ConnectionLostError:
        if partly is None:
            raise
    assert partly is not None
    return partly


def _answers(
    brokers: str, ask: Callable[[log_pb2_grpc.LogBrokerStub], _Reply], patience_s: float = _LOOK_S
) -> Iterator[_Reply]:
    """Yield the answer of one broker after the other, of those that answer.

    One that cannot be reached, or stands still, holds nobody up: the next one is tried beside it a moment later.

    Raises:
        ConnectionLostError: there is no further one that does.
    """
    cluster, clock, trouble = Cluster(brokers), SystemClock(), ""
    untried = list(dict.fromkeys(cluster.given))
    tried: dict[str, grpc.Future[Any]] = {}
    reached = queue.SimpleQueue[str]()
    until_s = clock.monotonic_s() + patience_s

    def reach(address: str) -> None:
        # Whatever it answers. To wait for the channel itself would make its end take 0.2 s.
        stub = log_pb2_grpc.LogBrokerStub(cluster.channel(address))
        tried[address] = stub.Metadata.future(log_pb2.MetadataRequest(), wait_for_ready=True)
        tried[address].add_done_callback(lambda _: reached.put(address))

    try:
        while untried or tried:
            if untried:
                reach(untried.pop(0))
            try:
                address = reached.get(timeout=_NEXT_S if untried else max(until_s - clock.monotonic_s(), 0.0))
            except queue.Empty:
                if untried:
                    continue
                break
            del tried[address]
            try:
                reply = ask(log_pb2_grpc.LogBrokerStub(cluster.channel(address)))
            except grpc.RpcError as error:
                trouble = f"the log broker at {address} does not answer: {error.details()}"
            else:
                yield reply
    finally:
        for future in tried.values():
            future.cancel()
        cluster.close()
    if tried:
        trouble = f"the log broker at {[*tried][-1]} does not answer; start it: weir log start"
    raise ConnectionLostError(trouble or "no other broker answers")
