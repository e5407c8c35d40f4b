"""The client of another task manager's state service: ``weir.state.placement.remote.RemoteStateClient`` over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

import grpc
import numpy as np

from task_manager.state.state_scans import CallErrors, StateScan
from weir.clock import Clock
from weir.errors import FencedError, StateError, WeirError
from weir.rpc import state_pb2, state_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto
from weir.state.packed import PackedKeys
from weir.state.placement.remote import PackedReply

#: Requests are cut here, half of the lowest message limit; a single entry may be larger, up to that limit.
REQUEST_BYTES_MAX = 512 << 10
REQUEST_KEYS_MAX = 8_192
#: What an entry adds to a message beside its key and value.
ENTRY_OVERHEAD_BYTES = 16
#: A peer that has not answered by then is given up; of a scan, each message.
CALL_TIMEOUT_S = 30.0

_GROUP = itemgetter(slice(0, 2))


class GrpcStateClient:
    """A ``weir.state.placement.remote.RemoteStateClient`` over gRPC. Its connection belongs to the caller."""

    def __init__(
        self,
        connection: grpc.Channel,
        address: str,
        identity: JobIdentity,
        stage_index: int,
        epochs: Mapping[int, int],
        clock: Clock,
    ) -> None:
        """``epochs`` gives the owner epoch of every key group that the caller owns; it may change under our hands."""
        self._address = address
        self._handshake = handshake_to_proto(identity)
        self._stage_index = stage_index
        self._epochs = epochs
        self._clock = clock
        self._stub = state_pb2_grpc.StateStub(connection)

    def close(self) -> None:
        """Nothing to do: the connection is the caller's."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``."""
        values: list[bytes | None] = []
        with CallErrors(self._address):
            while len(values) < len(keys):
                request = self._get_request(_first_keys(keys, len(values)))
                values += _values(self._stub.Get(request, timeout=CALL_TIMEOUT_S))
        return values

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Send the request now; the returned function waits for the values."""
        failure: WeirError | None = None
        if not keys:
            return list
        try:
            with CallErrors(self._address):
                request = self._get_request(_first_keys(keys, 0))
                reply = self._stub.Get.future(request, timeout=CALL_TIMEOUT_S)
        except WeirError as error:
            failure = error

        def wait() -> list[bytes | None]:
            if failure is not None:
                raise failure
            with CallErrors(self._address):
                values = _values(reply.result())
            return values if len(values) == len(keys) else values + self.get_many(keys[len(values) :])

        return wait

    def start_put_and_get(
        self, puts: tuple[PackedKeys, np.ndarray] | None, keys: PackedKeys | None, value_bytes: int
    ) -> Callable[[], PackedReply]:
        """Send writes and then a read now; the returned function waits for the values."""
        failure: WeirError | None = None
        asked = 0 if keys is None else len(keys)
        try:
            with CallErrors(self._address):
                request = self._packed_request(puts, keys, value_bytes)
                reply = self._stub.PutAndGet.future(request, timeout=CALL_TIMEOUT_S)
        except WeirError as error:
            failure = error

        def wait() -> PackedReply:
            if failure is not None:
                raise failure
            with CallErrors(self._address):
                answer = reply.result()
            return _unpack(answer, asked, value_bytes)

        return wait

    def _packed_request(
        self, puts: tuple[PackedKeys, np.ndarray] | None, keys: PackedKeys | None, value_bytes: int
    ) -> state_pb2.StatePackedRequest:
        request = state_pb2.StatePackedRequest(value_bytes=value_bytes)
        groups: set[int] = set()
        if puts is not None:
            put_keys, rows = puts
            groups.update(np.unique(put_keys.groups).tolist())
            request.put_keys = put_keys.to_bytes()
            request.put_key_lengths = put_keys.lengths().tobytes()
            request.put_values = rows.tobytes()
        if keys is not None:
            groups.update(np.unique(keys.groups).tolist())
            request.get_keys = keys.to_bytes()
            request.get_key_lengths = keys.lengths().tobytes()
        request.fence.CopyFrom(self._fence_of(groups))
        return request

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes."""
        changes = _cut(puts, deletes)
        with CallErrors(self._address):
            for put_keys, put_values, delete_keys in changes:
                request = state_pb2.StateWriteRequest(
                    fence=self._fence(map(_GROUP, [*put_keys, *delete_keys])),
                    put_keys=put_keys,
                    put_values=put_values,
                    delete_keys=delete_keys,
                )
                self._stub.Write(request, timeout=CALL_TIMEOUT_S)

    def load(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Add many entries of an empty range at once."""
        fence = self._fence(map(_GROUP, [entries[0][0], entries[-1][0]]))
        with CallErrors(self._address):
            self._stub.Load(_load_requests(fence, entries), timeout=CALL_TIMEOUT_S)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete a range inside one key group."""
        request = state_pb2.StateWriteRequest(
            fence=self._fence([start[:2]]), delete_range_start=start, delete_range_stop=stop
        )
        with CallErrors(self._address):
            self._stub.Write(request, timeout=CALL_TIMEOUT_S)

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        prefixes: Sequence[bytes],
        reverse: bool = False,
        bytes_max: int = 0,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range, as they are when this returns."""
        request = state_pb2.StateScanRequest(
            fence=self._fence(map(_GROUP, prefixes)),
            start=start,
            stop=stop or b"",
            reverse=reverse,
            bytes_max=bytes_max,
            prefixes=prefixes,
        )
        with CallErrors(self._address):
            return StateScan(self._stub.Scan(request), self._address, CALL_TIMEOUT_S, self._clock)

    def _fence(self, groups: Iterable[bytes]) -> state_pb2.StateFence:
        return self._fence_of({int.from_bytes(group, "big") for group in set(groups)})

    def _fence_of(self, numbers: Collection[int]) -> state_pb2.StateFence:
        try:
            epochs = [self._epochs[number] for number in numbers]
        except KeyError as error:
            raise FencedError(
                f"key group {error.args[0]} of stage {self._stage_index} does not belong to this subtask (any more)"
            ) from error
        return state_pb2.StateFence(
            handshake=self._handshake,
            stage_index=self._stage_index,
            key_groups=numbers,
            owner_epochs=epochs,
        )

    def _get_request(self, keys: Sequence[bytes]) -> state_pb2.StateGetRequest:
        return state_pb2.StateGetRequest(fence=self._fence(map(_GROUP, keys)), keys=keys)


def _values(reply: state_pb2.StateGetReply) -> list[bytes | None]:
    values: list[bytes | None] = list(reply.values)
    for position in reply.absent:
        values[position] = None
    if not values:
        raise StateError("a state service answered without a value")
    return values


def _unpack(reply: state_pb2.StatePackedReply, asked: int, value_bytes: int) -> PackedReply:
    present = np.frombuffer(reply.present, dtype=np.bool_)
    found = int(np.count_nonzero(present))
    if len(present) != asked or len(reply.values) != found * value_bytes:
        raise StateError("a state service did not answer for every key")
    return present, np.frombuffer(reply.values, dtype=np.uint8).reshape(found, value_bytes)


def _first_keys(keys: Sequence[bytes], start: int) -> Sequence[bytes]:
    """The keys from ``start`` on that fit in a request, at least one."""
    size_bytes = 0
    for stop in range(start, min(len(keys), start + REQUEST_KEYS_MAX)):
        size_bytes += len(keys[stop]) + ENTRY_OVERHEAD_BYTES
        if size_bytes > REQUEST_BYTES_MAX and stop > start:
            return keys[start:stop]
    return keys[start : start + REQUEST_KEYS_MAX]


def _cut(
    puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]
) -> Iterator[tuple[list[bytes], list[bytes], list[bytes]]]:
    """Keys and values to put and keys to delete, per request."""
    put_keys: list[bytes] = []
    put_values: list[bytes] = []
    delete_keys: list[bytes] = []
    size_bytes = 0
    for key, value in chain(puts, ((key, None) for key in deletes)):
        entry_bytes = len(key) + len(value or b"") + ENTRY_OVERHEAD_BYTES
        if size_bytes + entry_bytes > REQUEST_BYTES_MAX and size_bytes:
            yield put_keys, put_values, delete_keys
            put_keys, put_values, delete_keys, size_bytes = [], [], [], 0
        size_bytes += entry_bytes
        if value is None:
            delete_keys.append(key)
        else:
            put_keys.append(key)
            put_values.append(value)
    if size_bytes:
        yield put_keys, put_values, delete_keys


def _load_requests(
    fence: state_pb2.StateFence, entries: Sequence[tuple[bytes, bytes]]
) -> Iterator[state_pb2.StateLoadRequest]:
    yield state_pb2.StateLoadRequest(fence=fence)
    for keys, values, _ in _cut(entries, ()):
        yield state_pb2.StateLoadRequest(keys=keys, values=values)
