"""The client of another task manager's state service: ``weir.state.placement.remote.RemoteStateClient`` over gRPC."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

import grpc
import numpy as np

from task_manager.connections import is_closed
from weir.clock import Clock
from weir.errors import ConnectionLostError, FencedError, StateError, WeirError
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

#: How exactly the time of a scan is kept.
_WATCH_INTERVAL_S = 0.5
_GROUP = itemgetter(slice(0, 2))
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


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
        with _Errors(self._address):
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
            with _Errors(self._address):
                request = self._get_request(_first_keys(keys, 0))
                reply = self._stub.Get.future(request, timeout=CALL_TIMEOUT_S)
        except WeirError as error:
            failure = error

        def wait() -> list[bytes | None]:
            if failure is not None:
                raise failure
            with _Errors(self._address):
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
            with _Errors(self._address):
                request = self._packed_request(puts, keys, value_bytes)
                reply = self._stub.PutAndGet.future(request, timeout=CALL_TIMEOUT_S)
        except WeirError as error:
            failure = error

        def wait() -> PackedReply:
            if failure is not None:
                raise failure
            with _Errors(self._address):
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
        with _Errors(self._address):
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
        with _Errors(self._address):
            self._stub.Load(_load_requests(fence, entries), timeout=CALL_TIMEOUT_S)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete a range inside one key group."""
        request = state_pb2.StateWriteRequest(
            fence=self._fence([start[:2]]), delete_range_start=start, delete_range_stop=stop
        )
        with _Errors(self._address):
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
        with _Errors(self._address):
            return _Scan(self._stub.Scan(request), self._address, CALL_TIMEOUT_S, self._clock)

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


class _Errors:
    """Turns what gRPC raises into our errors, which name the peer."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.RpcError):
            raise self._explain(error) from error
        if error is not None and is_closed(error):
            raise ConnectionLostError(f"the connection to task manager {self._address} is closed") from error

    def _explain(self, error: grpc.RpcError) -> WeirError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.ABORTED:
            return FencedError(f"task manager {self._address} refused: {details}")
        if code in _LOST:
            reason = f"{code.name.lower()}: {details}"
            return ConnectionLostError(f"the store of task manager {self._address} does not answer: {reason}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return StateError(
                f"an entry of keyed state is larger than a message to task manager {self._address} may be: "
                f"{details}; raise taskManager.message_bytes_max"
            )
        return StateError(f"the store of task manager {self._address}: {details}")


class _Scan(Iterator[tuple[bytes, bytes]]):
    """A running scan; dropping it cancels the call, so that the peer drops its iterator.

    The peer has a limited time for each message. The caller has all the time it wants between them.
    """

    def __init__(
        self, call: grpc.CallIterator[state_pb2.StateScanReply], address: str, timeout_s: float, clock: Clock
    ) -> None:
        self._call = call
        self._address = address
        self._timeout_s = timeout_s
        self._clock = clock
        #: When the peer must have sent the message that is waited for; None: none is waited for.
        self._deadline_s: float | None = None
        self._is_given_up = False
        _SCANS.watch(self)
        # The peer has fixed its view when it answers.
        self._entries = self._next_entries()

    def _next_entries(self) -> Iterator[tuple[bytes, bytes]] | None:
        self._deadline_s = self._clock.monotonic_s() + self._timeout_s
        try:
            with _Errors(self._address):
                reply = next(iter(self._call), None)
        except ConnectionLostError as error:
            if self._is_given_up:
                raise ConnectionLostError(
                    f"the store of task manager {self._address} does not answer: a scan of it has stood still for "
                    f"{self._timeout_s:g} s"
                ) from error
            raise
        finally:
            self._deadline_s = None
        return None if reply is None else zip(reply.keys, reply.values, strict=True)

    def give_up_if_late(self) -> None:
        """Called by the thread that watches over all scans."""
        deadline_s = self._deadline_s
        if deadline_s is not None and self._clock.monotonic_s() > deadline_s:
            self._is_given_up = True
            self._call.cancel()

    def __next__(self) -> tuple[bytes, bytes]:
        while self._entries is not None:
            entry = next(self._entries, None)
            if entry is not None:
                return entry
            self._entries = self._next_entries()
        raise StopIteration

    def __del__(self) -> None:
        self._call.cancel()


class _ScanWatch:
    """Looks after the deadlines of all scans of this process: gRPC has one for a whole call only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, scan: _Scan) -> None:
        """Look after one more, until it is dropped; without any there is no thread."""
        with self._lock:
            self._scans.add(scan)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="scan deadlines", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        time.sleep(_WATCH_INTERVAL_S)
        while self._look():
            time.sleep(_WATCH_INTERVAL_S)

    def _look(self) -> bool:
        """A method of its own, so that this thread holds no scan while it sleeps; False: it is not needed any more."""
        with self._lock:
            scans = list(self._scans)
            if not scans:
                self._thread = None
        for scan in scans:
            scan.give_up_if_late()
        return bool(scans)


_SCANS = _ScanWatch()


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
