"""Scans of a peer's store over gRPC, with a deadline for each message, and what its errors become."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import grpc

from task_manager.connections import is_closed
from weir.clock import Clock
from weir.errors import ConnectionLostError, FencedError, StateError, WeirError
from weir.rpc import state_pb2

#: How exactly the time of a scan is kept.
_WATCH_INTERVAL_S = 0.5


_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


class CallErrors:
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


class StateScan(Iterator[tuple[bytes, bytes]]):
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
            with CallErrors(self._address):
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
        self._scans: weakref.WeakSet[StateScan] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, scan: StateScan) -> None:
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
