"""Channels over a real socket: elements arrive in order, credits come back, and wrong peers are refused."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pytest

from task_manager import connections
from task_manager.checkpoints.image_calls import ImageCalls
from task_manager.connections import check_channel_job, connect, let_grpc_sleep
from task_manager.exchange.channels import ChannelLimits, CreditGate
from task_manager.exchange.exchange_service import ExchangeService
from task_manager.exchange.frames import SIZES, control_frame, handshake_frame, read_replies
from task_manager.exchange.inbox import Delivery, Inbox, no_release
from task_manager.exchange.peer_link import PeerLink, RemoteChannel
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.exchange.shared_memory import SHARED_BYTES
from task_manager.exchange.sockets import GREETING_BYTES, FrameReader, dial, send_all
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from weir.clock import SystemClock
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError, HandshakeError, WireLimitError
from weir.rows.records import EndOfStream, Idle, RouteMarker, Watermark
from weir.rpc import data_pb2, data_pb2_grpc
from weir.rpc.wire import PROTOCOL_VERSION, JobIdentity, message_size_options
from weir.types import ChannelId, SubtaskId

JOB = JobIdentity("job-1", "f00d", 1)
CHANNEL = ChannelId(SubtaskId(0, 0), SubtaskId(1, 0))
MESSAGE_BYTES_MAX = 1 << 20


class NoWaker:
    def wake(self) -> None:
        pass


def batch(rows: int, text: str = "x") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(range(rows), type=pa.int64()), "s": [f"{text}{i}" for i in range(rows)]}
    )


@pytest.fixture
def receiver():
    inbox = Inbox()

    def find_inbox(identity: JobIdentity, channel: ChannelId) -> Inbox:
        check_channel_job(JOB, identity)
        if channel != CHANNEL:
            raise HandshakeError(f"no channel {channel}")
        return inbox

    options = message_size_options(MESSAGE_BYTES_MAX)
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, options=options)
        exchange = ExchangeService(find_inbox, MESSAGE_BYTES_MAX, SystemClock())
        exchange.listen("127.0.0.1")
        data_pb2_grpc.add_ExchangeServicer_to_server(exchange, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        connection = connect(address, options)
        yield inbox, connection, address, exchange
        connection.close()
        exchange.close()
        server.stop(0).wait()


def open_channel(connection, address, identity=JOB, channel=CHANNEL, elements_max=4) -> RemoteChannel:
    gate = CreditGate(ChannelLimits(elements_max, 1 << 30, 100.0), NoWaker(), SystemClock())
    return PeerLink(connection, address, identity, SystemClock()).open(channel, gate, MESSAGE_BYTES_MAX)


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "condition never came"
        time.sleep(0.002)


def test_elements_arrive_in_order_and_credits_come_back(receiver):
    inbox, connection, address, _ = receiver
    channel = open_channel(connection, address, elements_max=2)
    channel.wait_accepted()
    sent = [batch(3), Watermark(9), Idle(), RouteMarker(7), batch(2, "other")]
    for element in sent:
        channel.send(element)
    channel.flush()
    assert channel.gate.rows_free == 0
    received = []
    for _ in sent:
        delivery = inbox.poll(60.0)
        assert delivery.channel == CHANNEL
        received.append(delivery.element)
        delivery.release()
    assert received == sent
    wait_until(lambda: channel.gate.idle)
    channel.send(EndOfStream())
    channel.flush()
    delivery = inbox.poll(60.0)
    assert delivery.element == EndOfStream()
    delivery.release()
    channel.close()


@pytest.fixture
def lent(receiver):
    """An inbox whose consumer reads from the connection, and the channel that leads to it."""
    inbox, connection, address, _ = receiver
    channel = open_channel(connection, address, elements_max=1000)
    channel.wait_accepted()
    # Somebody reads for the consumer until the link's thread has seen that it wants to.
    inbox.await_round(0.001, 2)

    def is_lent() -> bool:
        channel.send(batch(1))
        channel.flush()
        return inbox.await_round(0.001, 1000) > 0 and inbox.is_lent

    wait_until(is_lent)
    while (delivery := inbox.poll(0.0)) is not None:
        delivery.release()
    yield inbox, channel
    inbox.stop_borrowing()
    channel.close()


def next_batch(inbox: Inbox, wait_s: float) -> pa.RecordBatch:
    delivery = inbox.poll(wait_s)
    delivery.release()
    return delivery.element


def test_a_consumer_reads_from_a_link_that_is_lent_to_it(lent):
    inbox, channel = lent
    for rows in (1, 2, 3):
        channel.send(batch(rows))
        channel.flush()
        # Nobody else reads.
        assert len(inbox) == 0
        assert inbox.await_round(60.0, 1) == 1
        assert next_batch(inbox, 0.0) == batch(rows)
    assert inbox.await_round(0.001, 1, 0.001) == 0
    inbox.stop_borrowing()
    channel.send(batch(4))
    channel.flush()
    assert next_batch(inbox, 60.0) == batch(4)


def test_what_comes_locally_is_waited_for_together_with_a_lent_link(lent):
    inbox, channel = lent
    channel.send(batch(1))
    channel.flush()
    local = Delivery(ChannelId(SubtaskId(0, 1), SubtaskId(1, 0)), batch(2), no_release)
    threading.Timer(0.02, lambda: inbox.put(local)).start()
    assert inbox.await_round(60.0, 2) == 2


def test_a_link_reads_on_where_a_frame_is_too_large_to_be_read_at_once(lent):
    inbox, channel = lent
    large = batch(3, "long" * 25_000)
    channel.send(large)
    channel.flush()
    wait_until(lambda: inbox.await_round(0.05, 1) or not inbox.is_lent)
    assert next_batch(inbox, 60.0) == large


def test_a_link_reads_on_when_its_consumer_does_not_look(lent):
    inbox, channel = lent
    channel.send(batch(1))
    channel.flush()
    assert next_batch(inbox, 60.0) == batch(1)
    assert not inbox.is_lent


def test_the_end_of_a_lent_link_is_seen(lent, receiver):
    inbox, channel = lent
    channel._link.close()
    wait_until(lambda: inbox.await_round(0.001, 1) == 0 and not inbox.is_lent)


@pytest.mark.parametrize("busy_share", [0.0, 1.0])
@pytest.mark.parametrize("released_at_once", [1, 3, 20])
def test_no_credit_is_left_over(receiver, busy_share, released_at_once):
    """Few or many, from a consumer that waits or works, and whether the thread that replies sleeps long or for good."""
    inbox, connection, address, _ = receiver
    inbox.busy_share = busy_share
    channel = open_channel(connection, address, elements_max=1000)
    channel.wait_accepted()
    for pause_s in (0.0, 0.0, 0.05, 0.2, 0.0):
        time.sleep(pause_s)
        for _ in range(released_at_once):
            channel.send(batch(1))
        channel.flush()
        for _ in range(released_at_once):
            inbox.poll(60.0).release()
        wait_until(lambda: channel.gate.is_empty)
    channel.close()


def test_credits_of_small_batches_come_in_few_messages(receiver):
    inbox, connection, address, _ = receiver
    inbox.busy_share = 0.0
    channel = open_channel(connection, address, elements_max=1000)
    channel.wait_accepted()
    releases, release = [], channel.gate.release
    channel.gate.release = lambda batches, share: (releases.append(batches), release(batches, share))
    began_s = time.monotonic()
    for _ in range(60):
        time.sleep(0.002)
        channel.send(batch(1))
        channel.flush()
        inbox.poll(60.0).release()
    wait_until(lambda: channel.gate.is_empty)
    assert sum(releases) == 60
    # Each has four of them, or comes 0.04 s after the one before.
    assert len(releases) <= 60 / 4 + (time.monotonic() - began_s) / 0.04 + 1
    channel.close()


def test_a_link_whose_connection_is_closed_before_its_thread_has_begun(receiver, monkeypatch):
    """As at the end of a job; an exception of the link's thread would fail this test, or another one."""
    _, connection, address, _ = receiver
    run = PeerLink._run

    def late(link):
        connection.close()
        run(link)

    monkeypatch.setattr(PeerLink, "_run", late)
    channel = open_channel(connection, address)
    with pytest.raises(ConnectionLostError, match="closed here"):
        channel.wait_accepted()


def test_a_network_that_is_closed_makes_no_more_calls(receiver):
    """gRPC would end the process."""
    _, _, address, _ = receiver
    network = PeerNetwork(JOB, "127.0.0.1:1", TaskManagerConfig(), SystemClock(), pytest.fail)
    network.state_client(0, address, {})
    sender = Inbox()
    network.open_channel(CHANNEL, sender, address).close()
    network.close()
    network.close()
    for ask in (
        lambda: network.state_client(0, address, {}),
        lambda: network.open_channel(CHANNEL, sender, address),
        lambda: ImageCalls(JOB, network).take(address, 1),
    ):
        with pytest.raises(ConnectionLostError, match=f"{address} is closed"):
            ask()


@pytest.mark.parametrize("closes_connection", [False, True])
def test_a_link_that_is_closed_at_once_leaves_no_thread(receiver, closes_connection):
    _, shared, address, _ = receiver
    for number in range(20):
        connection = connect(address, []) if closes_connection else shared
        link = PeerLink(connection, address, JOB, SystemClock())
        time.sleep(number * 0.0003)
        link.close()
        link.close()
        if closes_connection:
            connection.close()
    wait_until(
        lambda: (
            not [
                it for it in threading.enumerate() if it.name in (f"link to {address}", f"credits {address}")
            ]
        )
    )


def test_channels_of_one_link_go_on_when_another_is_refused_or_closed(receiver):
    inbox, connection, address, _ = receiver
    link = PeerLink(connection, address, JOB, SystemClock())

    def opened(channel):
        gate = CreditGate(ChannelLimits(4, 1 << 30, 100.0), NoWaker(), SystemClock())
        return link.open(channel, gate, MESSAGE_BYTES_MAX)

    first, second = opened(CHANNEL), opened(CHANNEL)
    refused = opened(ChannelId(SubtaskId(0, 1), SubtaskId(1, 0)))
    with pytest.raises(HandshakeError, match="no channel"):
        refused.wait_accepted()
    first.wait_accepted()
    second.wait_accepted()
    first.send(batch(1))
    first.close()
    for number in range(50):
        second.send(Watermark(number))
    second.send(batch(2))
    second.flush()
    received = [inbox.poll(60.0) for _ in range(52)]
    assert [delivery.element for delivery in received] == [batch(1), *map(Watermark, range(50)), batch(2)]
    for delivery in received:
        delivery.release()
    wait_until(lambda: second.gate.is_empty)
    assert not first.gate.is_empty, "nobody counts the credit of a channel that was closed"
    link.close()


def test_a_batch_larger_than_a_message_is_cut(receiver):
    inbox, connection, address, _ = receiver
    channel = open_channel(connection, address, elements_max=100)
    channel.wait_accepted()
    writer = ChannelWriter(channel, BatchPolicy(1 << 20, 1000.0))
    large = batch(200_000)
    writer.add(large)
    rows = []
    while len(rows) < 200_000:
        writer.pump(time.monotonic(), everything=True)
        channel.flush()
        delivery = inbox.poll(0.01)
        if delivery is None:
            continue
        assert delivery.element.nbytes <= MESSAGE_BYTES_MAX
        rows.extend(delivery.element.column("n").to_pylist())
        delivery.release()
    assert rows == large.column("n").to_pylist()
    writer.add(pa.RecordBatch.from_pydict({"s": ["x" * (2 * MESSAGE_BYTES_MAX)]}))
    with pytest.raises(WireLimitError, match="message_bytes_max"):
        writer.pump(time.monotonic(), everything=True)
    channel.close()


def wide(rows: int) -> pa.RecordBatch:
    return batch(rows, "a text of some length, so that there are enough bytes of it " * 2)


@pytest.mark.skipif(sys.platform != "linux", reason="no files that live in memory only")
def test_large_batches_of_one_machine_lie_in_shared_memory(receiver):
    """Also when consumers keep more of them than there is room for; all of it comes back."""
    inbox, connection, address, _ = receiver
    channel = open_channel(connection, address, elements_max=1000)
    channel.wait_accepted()
    memory = channel._link.memory
    large = wide(6000)
    room = SHARED_BYTES // large.nbytes
    kept = []
    for _ in range(room + 5):
        channel.send(large)
        channel.flush()
        kept.append(inbox.poll(60.0))
    assert SHARED_BYTES - 2 * large.nbytes < memory.taken_bytes <= SHARED_BYTES
    assert all(delivery.element == large for delivery in (kept[0], kept[room - 1], kept[-1]))
    while kept:
        # As a consumer does: the batch is gone a moment after its release, and goes back with the next credits.
        kept.pop().release()

    def is_free() -> bool:
        channel.send(batch(1))
        channel.flush()
        inbox.poll(60.0).release()
        return memory.taken_bytes == 0

    wait_until(is_free)
    channel.send(large)
    assert memory.taken_bytes >= large.nbytes
    channel.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no files that live in memory only")
def test_what_comes_for_a_channel_that_was_given_up_is_freed(receiver):
    inbox, connection, address, _ = receiver
    link = PeerLink(connection, address, JOB, SystemClock())
    gates = [CreditGate(ChannelLimits(4, 1 << 30, 100.0), NoWaker(), SystemClock()) for _ in range(2)]
    refused = link.open(ChannelId(SubtaskId(0, 1), SubtaskId(1, 0)), gates[0], MESSAGE_BYTES_MAX)
    other = link.open(CHANNEL, gates[1], MESSAGE_BYTES_MAX)
    with pytest.raises(HandshakeError, match="no channel"):
        refused.wait_accepted()
    other.wait_accepted()
    link.put(refused._encoder.encode(wide(6000), wide(6000).nbytes, link.memory))
    assert link.memory.taken_bytes > 0

    def is_free() -> bool:
        other.send(batch(1))
        other.flush()
        inbox.poll(60.0).release()
        return link.memory.taken_bytes == 0

    wait_until(is_free)
    link.close()


@pytest.mark.parametrize(
    ("identity", "channel", "reason"),
    [
        (JobIdentity("job-2", "f00d", 1), CHANNEL, "job-2 does not run here"),
        (JobIdentity("job-1", "beef", 1), CHANNEL, "graphs differ"),
        (JobIdentity("job-1", "f00d", 2), CHANNEL, "deployment 2"),
        (JOB, ChannelId(SubtaskId(0, 1), SubtaskId(1, 0)), "no channel"),
    ],
)
def test_a_channel_of_another_job_is_refused(receiver, identity, channel, reason):
    _, connection, address, _ = receiver
    opened = open_channel(connection, address, identity, channel)
    with pytest.raises(HandshakeError, match=reason):
        opened.wait_accepted()
    opened.close()


def test_another_protocol_version_is_refused(receiver):
    _, connection, _, _ = receiver
    with pytest.raises(grpc.RpcError) as raised:
        data_pb2_grpc.ExchangeStub(connection).OpenLink(data_pb2.OpenLinkRequest(protocol_version=999))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol version 999" in raised.value.details()


def test_a_channel_of_another_protocol_version_is_refused(receiver):
    _, connection, _, _ = receiver
    frame = data_pb2.ChannelFrame(handshake=data_pb2.ChannelHandshake(), channel_number=5)
    frame.handshake.handshake.protocol_version = 999
    with dialled(connection) as connected:
        send_all(connected, control_frame(frame, 5))
        (reply,) = read_replies(FrameReader(connected, 1 << 20).read()[0]).channels
    assert reply.channel_number == 5
    assert "protocol version 999" in reply.refusal


def dialled(connection, greeting: bytes | None = None, local_name: str | None = None) -> socket.socket:
    place = data_pb2_grpc.ExchangeStub(connection).OpenLink(
        data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION)
    )
    greeting = place.greeting if greeting is None else greeting
    local_name = place.local_name if local_name is None else local_name
    return dial("127.0.0.1", place.port, greeting, 60.0, local_name)


@pytest.mark.skipif(sys.platform != "linux", reason="no abstract sockets")
@pytest.mark.parametrize(
    ("local_name", "family"),
    [(None, socket.AF_UNIX), ("", socket.AF_INET), ("weir-of-another-machine", socket.AF_INET)],
)
def test_a_link_within_a_machine_is_a_unix_socket(receiver, local_name, family):
    _, connection, _, _ = receiver
    with dialled(connection, local_name=local_name) as connected:
        assert connected.family == family
        send_all(connected, handshake_frame(JOB, CHANNEL, 1))
        (reply,) = read_replies(FrameReader(connected, 1 << 20).read()[0]).channels
    assert (reply.channel_number, reply.refusal) == (1, "")


@pytest.mark.parametrize("local_name", [None, ""])
@pytest.mark.parametrize(
    "greeting", [bytes(GREETING_BYTES), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2]
)
def test_a_connection_that_does_not_know_the_greeting_is_ended(receiver, greeting, local_name):
    inbox, connection, _, _ = receiver
    with dialled(connection, greeting, local_name) as connected:
        # It may be ended already.
        with contextlib.suppress(ConnectionError):
            send_all(connected, handshake_frame(JOB, CHANNEL, 1))
        assert is_ended(connected)
    assert not len(inbox)


@pytest.mark.parametrize("junk", [SIZES.pack(1 << 31, 0), SIZES.pack(3, 0) + b"\xff\xff\xff"])
def test_a_peer_that_sends_something_else_is_hung_up_on(receiver, junk):
    _, connection, _, _ = receiver
    with dialled(connection) as connected:
        send_all(connected, [junk])
        assert is_ended(connected)


def is_ended(connected: socket.socket) -> bool:
    try:
        return not connected.recv(1 << 16)
    except ConnectionResetError:
        # It had not read everything.
        return True


def test_a_receiver_that_goes_away_breaks_the_channel(receiver):
    _, connection, address, exchange = receiver
    channel = open_channel(connection, address)
    channel.wait_accepted()
    exchange.close()

    def sent() -> None:
        channel.send(Idle())
        channel.flush()

    with pytest.raises(ConnectionLostError, match=address):
        wait_until(sent)
    channel.close()


def test_a_task_manager_that_does_not_answer_breaks_the_channel(receiver):
    connection = connect("127.0.0.1:1", [])
    channel = open_channel(connection, "127.0.0.1:1")
    with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1:1 broke: unavailable"):
        channel.wait_accepted()
    connection.close()


def test_a_slow_reader_holds_nobody_up_and_loses_nothing(receiver):
    """More than the connection holds waits in the link; rows of other senders come in order after it."""
    inbox, connection, address, _ = receiver
    channel = open_channel(connection, address, elements_max=10_000)
    channel.wait_accepted()
    sent = [batch(rows, "y" * 40) for rows in [9000, 5, 3] * 40]
    for element in sent:
        channel.send(element)
        channel.flush()
    received = [inbox.poll(60.0) for _ in sent]
    assert [delivery.element for delivery in received] == sent
    for delivery in received:
        delivery.release()
    wait_until(lambda: channel.gate.is_empty)
    channel.close()


@pytest.mark.parametrize(
    "address", ["unix:/tmp/socket:1", "dns://1.1.1.1/evil:80", "", "localhost", "::1:80"]
)
def test_only_addresses_are_dialled(address):
    with pytest.raises(HandshakeError, match="is not an address of the form host:port"):
        connect(address, [])


def test_threads_that_wait_in_grpc_are_not_woken_without_need(monkeypatch):
    monkeypatch.setattr("grpc._common.MAXIMUM_WAIT_TIMEOUT", 0.1)
    let_grpc_sleep()
    assert grpc._common.MAXIMUM_WAIT_TIMEOUT >= 1


@pytest.mark.parametrize("module", ["grpc._gone", "grpc.aio"])
def test_another_grpcio_without_that_setting_stays_as_it_is(monkeypatch, module):
    monkeypatch.setattr(connections, "_GRPC_WAIT_MODULE", module)
    before = grpc._common.MAXIMUM_WAIT_TIMEOUT
    let_grpc_sleep()
    assert before == grpc._common.MAXIMUM_WAIT_TIMEOUT
    assert not hasattr(sys.modules.get(module), "MAXIMUM_WAIT_TIMEOUT")
