"""State over a real socket, fenced by owner epoch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from task_manager.connections import check_channel_job
from task_manager.state.state_service import StateService
from weir.protocol.fencing import EpochFence
from weir.rpc import state_pb2, state_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto
from weir.state.layout import encode_key
from weir.state.stores.memory import MemoryBackend

JOB = JobIdentity("job-1", "f00d", 1)


@pytest.fixture
def service():
    store, fence = MemoryBackend(), EpochFence()

    def find_store(identity: JobIdentity):
        check_channel_job(JOB, identity)
        return store, fence

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        state_pb2_grpc.add_StateServicer_to_server(StateService(find_store), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as connection:
            yield state_pb2_grpc.StateStub(connection), store
        server.stop(0).wait()


def fenced(*groups: tuple[int, int], job: JobIdentity = JOB) -> state_pb2.StateFence:
    return state_pb2.StateFence(
        handshake=handshake_to_proto(job),
        stage_index=3,
        key_groups=[group for group, _ in groups],
        owner_epochs=[epoch for _, epoch in groups],
    )


def key(group: int, name: bytes) -> bytes:
    return encode_key(group, 0, name)


def write(stub, epoch: int, name: bytes, value: bytes) -> None:
    stub.Write(
        state_pb2.StateWriteRequest(fence=fenced((5, epoch)), put_keys=[key(5, name)], put_values=[value])
    )


def test_get_write_delete_and_scan(service):
    stub, _ = service
    names = [b"a", b"b", b"c"]
    stub.Write(
        state_pb2.StateWriteRequest(
            fence=fenced((5, 1)), put_keys=[key(5, name) for name in names], put_values=[b"1", b"", b"3"]
        )
    )
    reply = stub.Get(
        state_pb2.StateGetRequest(fence=fenced((5, 1)), keys=[key(5, name) for name in (b"b", b"x", b"a")])
    )
    assert (list(reply.values), list(reply.absent)) == ([b"", b"", b"1"], [1])
    stub.Write(state_pb2.StateWriteRequest(fence=fenced((5, 1)), delete_keys=[key(5, b"b")]))
    whole = state_pb2.StateScanRequest(
        fence=fenced((5, 1)), start=(5).to_bytes(2, "big"), stop=(6).to_bytes(2, "big")
    )
    assert [k for part in stub.Scan(whole) for k in part.keys] == [key(5, b"a"), key(5, b"c")]
    whole.reverse, whole.entries_max = True, 1
    assert [k for part in stub.Scan(whole) for k in part.keys] == [key(5, b"c")]
    stub.Write(
        state_pb2.StateWriteRequest(
            fence=fenced((5, 1)),
            delete_range_start=(5).to_bytes(2, "big"),
            delete_range_stop=(6).to_bytes(2, "big"),
        )
    )
    assert [k for part in stub.Scan(whole) for k in part.keys] == []


def test_a_large_scan_comes_in_several_messages(service):
    stub, store = service
    store.write([(key(5, n.to_bytes(4, "big")), bytes(100_000)) for n in range(50)])
    request = state_pb2.StateScanRequest(
        fence=fenced((5, 1)), start=(5).to_bytes(2, "big"), stop=(6).to_bytes(2, "big")
    )
    parts = list(stub.Scan(request))
    assert len(parts) > 1
    assert sum(len(part.keys) for part in parts) == 50


def test_an_older_owner_is_turned_away_and_changes_nothing(service):
    stub, _ = service
    write(stub, 1, b"k", b"old")
    write(stub, 2, b"k", b"new")
    with pytest.raises(grpc.RpcError) as caught:
        write(stub, 1, b"k", b"zombie")
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "replaced by 2" in caught.value.details()
    reply = stub.Get(state_pb2.StateGetRequest(fence=fenced((5, 2)), keys=[key(5, b"k")]))
    assert reply.values[0] == b"new"


@pytest.mark.parametrize(
    ("request_of", "reason"),
    [
        (
            lambda: ("Get", state_pb2.StateGetRequest(fence=fenced((5, 1)), keys=[key(6, b"k")])),
            "in none of the key groups",
        ),
        (
            lambda: (
                "Get",
                state_pb2.StateGetRequest(fence=fenced((5, 1), job=JobIdentity("job-1", "f00d", 2)), keys=[]),
            ),
            "deployment 2",
        ),
        (
            lambda: (
                "Write",
                state_pb2.StateWriteRequest(
                    fence=fenced((5, 1)),
                    delete_range_start=(5).to_bytes(2, "big"),
                    delete_range_stop=(7).to_bytes(2, "big"),
                ),
            ),
            "not inside one key group",
        ),
    ],
)
def test_requests_outside_the_callers_rights_are_refused(service, request_of, reason):
    stub, _ = service
    method, request = request_of()
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason in caught.value.details()


def lengths(*sizes: int) -> bytes:
    return b"".join(size.to_bytes(4, "little") for size in sizes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"get_keys": key(5, b"a"), "get_key_lengths": lengths(5)}, "lengths of state keys do not fit"),
        ({"get_keys": key(5, b"a"), "get_key_lengths": lengths(1, 5)}, "lengths of state keys do not fit"),
        ({"get_keys": key(5, b"a"), "get_key_lengths": b"abc"}, "four bytes each"),
        ({"get_key_lengths": lengths(6)}, "lengths of state keys do not fit"),
        ({"put_keys": key(5, b"a"), "put_key_lengths": lengths(6)}, "as many values as keys"),
        ({"put_values": b"12"}, "as many values as keys"),
        ({"get_keys": key(6, b"a"), "get_key_lengths": lengths(6)}, "in none of the key groups"),
    ],
)
def test_a_packed_request_that_does_not_fit_together_is_refused(service, fields, reason):
    stub, store = service
    with pytest.raises(grpc.RpcError) as caught:
        stub.PutAndGet(state_pb2.StatePackedRequest(fence=fenced((5, 1)), value_bytes=2, **fields))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason in caught.value.details()
    assert list(store.scan()) == []
