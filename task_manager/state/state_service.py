"""Keyed state over gRPC: batched get, write and scan by an owner on another task manager, fenced by owner epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

import grpc
import numpy as np

from weir.errors import FencedError, HandshakeError, StateError
from weir.protocol.fencing import EpochFence
from weir.rpc import state_pb2, state_pb2_grpc
from weir.rpc.wire import GROUP_MAX, JobIdentity, handshake_from_proto
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys
from weir.state.pieces import pieces_of
from weir.state.placement.group_places import joined_bounds

#: What an entry adds to a message beside its key and value.
_ENTRY_OVERHEAD_BYTES = 16
#: Messages of a scan, half of the lowest message limit; the first is small, because many scans want a few entries only.
_FIRST_SCAN_MESSAGE_BYTES, _SCAN_MESSAGE_BYTES = 16 << 10, 512 << 10
#: A reply to Get is cut here; the caller asks again for the rest.
_GET_REPLY_BYTES = 512 << 10
#: Entries of a load are added when they are this many bytes.
_LOADED_BYTES_MAX = 8 << 20
#: What values of one size may have together in a reply: no message is larger.
_PACKED_REPLY_BYTES_MAX = 1 << 30
#: Of a key: key group and state id. Groups end before the last one.
_PREFIX_BYTES, _LAST_PREFIX = 4, b"\xff" * 4
#: Keys read from the store at a time.
_GET_CHUNK_KEYS = 2048

#: Keys written at a time: the store holds the GIL meanwhile.
_PUT_CHUNK_KEYS = 1500

_Abort = (FencedError, HandshakeError, StateError)


class StateService(state_pb2_grpc.StateServicer):
    """Serves one task manager's store. ABORTED means fenced: the caller must stop writing."""

    def __init__(self, find_store: Callable[[JobIdentity], tuple[StateBackend, EpochFence]]) -> None:
        """``find_store`` gives the job's store and fence, or raises HandshakeError."""
        self._find_store = find_store
        #: A write is applied under the lock under which it was admitted, so none of an old owner comes late.
        self._fence_lock = threading.Lock()

    def Get(
        self, request: state_pb2.StateGetRequest, context: grpc.ServicerContext
    ) -> state_pb2.StateGetReply:
        """Values of keys, in their order; of a prefix of the keys if they make a large reply."""
        try:
            keys = list(request.keys)
            with self._fence_lock:
                store = self._admit(request.fence, keys)
            return _read(store, keys)
        except _Abort as error:
            context.abort(_code(error), str(error))

    def Write(
        self, request: state_pb2.StateWriteRequest, context: grpc.ServicerContext
    ) -> state_pb2.StateWriteReply:
        """At most one range delete, then puts, then deletes."""
        keys = [*request.put_keys, *request.delete_keys]
        start, stop = request.delete_range_start, request.delete_range_stop
        try:
            if len(request.put_keys) != len(request.put_values):
                raise HandshakeError("a state write must have as many values as keys")
            if start or stop:
                keys.append(start)
                _check_one_group(start, stop)
            with self._fence_lock:
                store = self._admit(request.fence, keys)
                if start or stop:
                    store.delete_range(start, stop)
                if request.put_keys or request.delete_keys:
                    store.write(
                        list(zip(request.put_keys, request.put_values, strict=True)),
                        list(request.delete_keys),
                    )
        except _Abort as error:
            context.abort(_code(error), str(error))
        return state_pb2.StateWriteReply()

    def PutAndGet(
        self, request: state_pb2.StatePackedRequest, context: grpc.ServicerContext
    ) -> state_pb2.StatePackedReply:
        """Puts, not atomic together, then reads."""
        try:
            puts = _packed_keys(request.put_keys, request.put_key_lengths)
            gets = _packed_keys(request.get_keys, request.get_key_lengths)
            if len(request.put_values) != len(puts) * request.value_bytes:
                raise HandshakeError("a state write must have as many values as keys")
            if len(gets) * request.value_bytes > _PACKED_REPLY_BYTES_MAX:
                raise HandshakeError(
                    f"{len(gets)} values of {request.value_bytes} bytes are too many for an answer"
                )
            rows = np.frombuffer(request.put_values, dtype=np.uint8).reshape(
                len(puts), -1 if len(puts) else 0
            )
            groups = {*np.unique(puts.groups).tolist(), *np.unique(gets.groups).tolist()}
            with self._fence_lock:
                store = self._admit(request.fence, (group.to_bytes(2, "big") for group in groups))
                for start in range(0, len(puts), _PUT_CHUNK_KEYS):
                    stop = min(len(puts), start + _PUT_CHUNK_KEYS)
                    store.put_packed(puts.part(start, stop), rows[start:stop])
            if not len(gets):
                return state_pb2.StatePackedReply()
            present, values = store.get_packed(gets, request.value_bytes)
            return state_pb2.StatePackedReply(present=present.tobytes(), values=values.tobytes())
        except _Abort as error:
            context.abort(_code(error), str(error))

    def Load(
        self, requests: Iterator[state_pb2.StateLoadRequest], context: grpc.ServicerContext
    ) -> state_pb2.StateLoadReply:
        """Entries of an empty range, in messages; what came is added whenever it is much, and at the end."""
        entries: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        try:
            first = next(requests, state_pb2.StateLoadRequest())
            for request in chain((first,), requests):
                if len(request.keys) != len(request.values):
                    raise HandshakeError("a state load must have as many values as keys")
                entries += zip(request.keys, request.values, strict=True)
                size_bytes += request.ByteSize()
                if size_bytes >= _LOADED_BYTES_MAX:
                    self._load(first.fence, entries)
                    entries, size_bytes = [], 0
            if entries:
                self._load(first.fence, entries)
        except _Abort as error:
            context.abort(_code(error), str(error))
        return state_pb2.StateLoadReply()

    def _load(self, fence: state_pb2.StateFence, entries: list[tuple[bytes, bytes]]) -> None:
        keys = [key for key, _ in entries]
        if any(key >= following for key, following in pairwise(keys)):
            raise HandshakeError("the keys of a state load must ascend")
        with self._fence_lock:
            store = self._admit(fence, keys)
        for piece in pieces_of(store, entries):
            with self._fence_lock:
                self._admit(fence, keys[:1])
                store.write(piece)

    def Scan(
        self, request: state_pb2.StateScanRequest, context: grpc.ServicerContext
    ) -> Iterator[state_pb2.StateScanReply]:
        """Entries of a range, in key order or the reverse, in messages of half a megabyte; the first comes at once."""
        try:
            if not request.prefixes:
                _check_one_group(request.start, request.stop)
            with self._fence_lock:
                store = self._admit(request.fence, request.prefixes or [request.start])
            ranges = _ranges(request.prefixes, request.start, request.stop or None)
            if request.reverse:
                ranges.reverse()
            # All of them now: so that later writes do not show.
            opened = [store.scan(start, stop, reverse=request.reverse) for start, stop in ranges]
            yield from _pack(chain.from_iterable(opened), request.entries_max, request.bytes_max)
        except _Abort as error:
            context.abort(_code(error), str(error))

    def _admit(self, fence: state_pb2.StateFence, keys: Iterable[bytes]) -> StateBackend:
        store, epochs = self._find_store(handshake_from_proto(fence.handshake))
        if fence.key_groups and max(fence.key_groups) > GROUP_MAX:
            raise HandshakeError(
                f"key group {max(fence.key_groups)} cannot be: they are numbered from 0 to {GROUP_MAX} at most"
            )
        allowed = {group.to_bytes(2, "big") for group in fence.key_groups}
        outside = {key[:2] for key in keys} - allowed
        if outside:
            raise HandshakeError(
                f"a state key begins with {min(outside).hex()}, which is in none of the key groups of the request"
            )
        if len(fence.key_groups) != len(fence.owner_epochs):
            raise HandshakeError("a state request must have as many owner epochs as key groups")
        epochs.admit(fence.stage_index, zip(fence.key_groups, fence.owner_epochs, strict=True))
        return store


def _code(error: Exception) -> grpc.StatusCode:
    if isinstance(error, FencedError):
        return grpc.StatusCode.ABORTED
    if isinstance(error, HandshakeError):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.INTERNAL


def _check_one_group(start: bytes, stop: bytes) -> None:
    """A range may end at the first key of the next group, and no further."""
    group = int.from_bytes(start[:2], "big")
    limit = (group + 1).to_bytes(3, "big")[-2:] if group < 0xFFFF else b""
    if not stop or (limit and stop > limit) or stop < start:
        raise HandshakeError(f"the range {start[:8].hex()}..{stop[:8].hex()} is not inside one key group")


def _ranges(prefixes: Sequence[bytes], start: bytes, stop: bytes | None) -> list[tuple[bytes, bytes | None]]:
    """The parts of a range that have keys with these prefixes (none: all of it), in key order; others may be large.

    Raises:
        HandshakeError: one of them is no key group and state id.
    """
    if not prefixes:
        return [(start, stop)]
    if any(len(prefix) != _PREFIX_BYTES or prefix == _LAST_PREFIX for prefix in prefixes):
        raise HandshakeError("the prefixes of a state scan must be a key group and a state id")
    bounds = joined_bounds(
        (prefix, (int.from_bytes(prefix, "big") + 1).to_bytes(_PREFIX_BYTES, "big"))
        for prefix in set(prefixes)
    )
    return [
        (max(first, start), last if stop is None else min(last, stop))
        for first, last in bounds
        if last > start and (stop is None or first < stop)
    ]


def _packed_keys(joined: bytes, lengths: bytes) -> PackedKeys:
    """Keys of a packed request.

    Raises:
        HandshakeError: the lengths are not those of the keys.
    """
    if len(lengths) % 4:
        raise HandshakeError("the lengths of state keys must have four bytes each")
    sizes = np.frombuffer(lengths, dtype="<u4")
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if int(offsets[-1]) != len(joined) or (len(sizes) and int(sizes.min()) < 2):
        raise HandshakeError("the lengths of state keys do not fit the keys")
    data = np.frombuffer(joined, dtype=np.uint8)
    starts = offsets[:-1]
    groups = (data[starts].astype(np.uint16) << 8) | data[starts + 1]
    return PackedKeys(data, offsets, groups)


def _read(store: StateBackend, keys: list[bytes]) -> state_pb2.StateGetReply:
    values: list[bytes] = []
    absent: list[int] = []
    size_bytes = 0
    for start in range(0, len(keys), _GET_CHUNK_KEYS):
        for value in store.get_many(keys[start : start + _GET_CHUNK_KEYS]):
            size_bytes += _ENTRY_OVERHEAD_BYTES + (0 if value is None else len(value))
            if size_bytes > _GET_REPLY_BYTES and values:
                return state_pb2.StateGetReply(values=values, absent=absent)
            if value is None:
                absent.append(len(values))
            values.append(value or b"")
    return state_pb2.StateGetReply(values=values, absent=absent)


def _pack(
    entries: Iterator[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> Iterator[state_pb2.StateScanReply]:
    keys: list[bytes] = []
    values: list[bytes] = []
    size_bytes = sent_bytes = 0
    limit_bytes = _SCAN_MESSAGE_BYTES if bytes_max else _FIRST_SCAN_MESSAGE_BYTES
    for count, (key, value) in enumerate(entries, start=1):
        entry_bytes = len(key) + len(value)
        overhead_bytes = _ENTRY_OVERHEAD_BYTES * len(keys)
        if keys and size_bytes + entry_bytes + overhead_bytes > limit_bytes:
            yield state_pb2.StateScanReply(keys=keys, values=values)
            sent_bytes += size_bytes
            keys, values, size_bytes, limit_bytes = [], [], 0, _SCAN_MESSAGE_BYTES
        keys.append(key)
        values.append(value)
        size_bytes += entry_bytes
        if count == entries_max or (bytes_max and sent_bytes + size_bytes >= bytes_max):
            break
    if keys or not sent_bytes:
        yield state_pb2.StateScanReply(keys=keys, values=values)
