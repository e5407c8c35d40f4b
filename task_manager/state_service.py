"""Keyed state over gRPC: batched get, write and scan by an owner on another task manager, fenced by owner epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import grpc

from proto import state_pb2, state_pb2_grpc
from weir.errors import FencedError, HandshakeError, StateError
from weir.protocol.fencing import EpochFence
from weir.state.api import StateBackend
from weir.wire import JobIdentity, handshake_from_proto

#: A scan answers in messages of about this size, far below the message limit.
_SCAN_MESSAGE_BYTES = 1 << 20

_CODES = {
    FencedError: grpc.StatusCode.ABORTED,
    HandshakeError: grpc.StatusCode.FAILED_PRECONDITION,
    StateError: grpc.StatusCode.INTERNAL,
}


class StateService(state_pb2_grpc.StateServicer):
    """Serves one task manager's store. ABORTED means fenced: the caller must stop writing."""

    def __init__(self, find_store: Callable[[JobIdentity], tuple[StateBackend, EpochFence]]) -> None:
        """``find_store`` gives the job's store and fence, or raises HandshakeError."""
        self._find_store = find_store

    def Get(
        self, request: state_pb2.StateGetRequest, context: grpc.ServicerContext
    ) -> state_pb2.StateGetReply:
        """Values of keys, in their order."""
        try:
            store = self._admit(request.fence, request.keys)
            values = store.get_many(request.keys)
        except (FencedError, HandshakeError, StateError) as error:
            context.abort(_CODES[type(error)], str(error))
        return state_pb2.StateGetReply(
            values=[
                state_pb2.StateValue(present=value is not None, value=value if value is not None else b"")
                for value in values
            ]
        )

    def Write(
        self, request: state_pb2.StateWriteRequest, context: grpc.ServicerContext
    ) -> state_pb2.StateWriteReply:
        """Puts, deletes and at most one range delete."""
        keys = [*request.put_keys, *request.delete_keys]
        deletes_range = bool(request.delete_range_start or request.delete_range_stop)
        try:
            if len(request.put_keys) != len(request.put_values):
                raise HandshakeError("a state write must have as many values as keys")
            if deletes_range:
                keys.append(request.delete_range_start)
            store = self._admit(request.fence, keys)
            if deletes_range:
                _check_one_group(request.delete_range_start, request.delete_range_stop)
                store.delete_range(request.delete_range_start, request.delete_range_stop)
            if request.put_keys or request.delete_keys:
                store.write(
                    list(zip(request.put_keys, request.put_values, strict=True)), list(request.delete_keys)
                )
        except (FencedError, HandshakeError, StateError) as error:
            context.abort(_CODES[type(error)], str(error))
        return state_pb2.StateWriteReply()

    def Scan(
        self, request: state_pb2.StateScanRequest, context: grpc.ServicerContext
    ) -> Iterator[state_pb2.StateScanReply]:
        """Entries of a range inside one group, in key order or the reverse, in messages of about 1 MiB."""
        try:
            store = self._admit(request.fence, [request.start])
            _check_one_group(request.start, request.stop)
            yield from _pack(
                store.scan(request.start, request.stop, reverse=request.reverse), request.entries_max
            )
        except (FencedError, HandshakeError, StateError) as error:
            context.abort(_CODES[type(error)], str(error))

    def _admit(self, fence: state_pb2.StateFence, keys: Iterable[bytes]) -> StateBackend:
        store, epochs = self._find_store(handshake_from_proto(fence.handshake))
        allowed = {group.key_group.to_bytes(2, "big") for group in fence.groups}
        for key in keys:
            if key[:2] not in allowed:
                raise HandshakeError(f"state key {key[:8].hex()} is in none of the key groups of the request")
        epochs.admit(fence.stage_index, ((group.key_group, group.owner_epoch) for group in fence.groups))
        return store


def _check_one_group(start: bytes, stop: bytes) -> None:
    """A range may end at the first key of the next group, and no further."""
    group = int.from_bytes(start[:2], "big")
    limit = (group + 1).to_bytes(3, "big")[-2:] if group < 0xFFFF else b""
    if not stop or (limit and stop > limit) or stop < start:
        raise HandshakeError(f"the range {start[:8].hex()}..{stop[:8].hex()} is not inside one key group")


def _pack(entries: Iterator[tuple[bytes, bytes]], entries_max: int) -> Iterator[state_pb2.StateScanReply]:
    reply, size_bytes = state_pb2.StateScanReply(), 0
    for count, (key, value) in enumerate(entries, start=1):
        reply.keys.append(key)
        reply.values.append(value)
        size_bytes += len(key) + len(value)
        if size_bytes >= _SCAN_MESSAGE_BYTES:
            yield reply
            reply, size_bytes = state_pb2.StateScanReply(), 0
        if entries_max and count >= entries_max:
            break
    if reply.keys:
        yield reply
