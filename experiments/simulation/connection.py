"""Connections of gRPC over the simulated network, for the production stubs and services of both processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from experiments.simulation.world import SCALE, Process, Reply, World
from weir.errors import ConnectionLostError, FencedError, WeirError, kind_of
from weir.rpc.wire import refusal_metadata

if TYPE_CHECKING:
    from experiments.simulation.threads import SimulatedThreads

#: How long a caller waits that does not say so.
_TIMEOUT_S = 60.0
#: The service whose calls take no time: the locks above its clients are the machine's.
_STATE = "weir.v1.State/"


class CallError(grpc.RpcError):
    """What a caller gets."""

    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(details)
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        """As of a failed call."""
        return self._code

    def details(self) -> str:
        """As of a failed call."""
        return self._details

    def trailing_metadata(self) -> Any:
        """As of a failed call."""
        return self._metadata


class CallContext:
    """What services use of ``grpc.ServicerContext``."""

    def __init__(self) -> None:
        self._metadata: tuple[tuple[str, str], ...] = ()

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """As of a served call."""
        self._metadata = metadata

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """As of a served call.

        Raises:
            CallError: always.
        """
        raise CallError(code, details, self._metadata)


class Services:
    """The services of one process; given to ``add_..._to_server`` as the server."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[object]) -> None:
        """The same ones come in the other form too."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Serve these methods."""
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def call(self, path: str, request: Any) -> Any:
        """Carry a call out; its reply, or an iterator of replies.

        Raises:
            CallError: it was refused.
        """
        handler = self._handlers[path]
        for kind in ("unary_unary", "unary_stream", "stream_unary"):
            served = getattr(handler, kind)
            if served is not None:
                return served(request, CallContext())
        raise NotImplementedError(path)


class ServingProcess(Process):
    """A process with services: a thread for each call."""

    def __init__(self, world: World, address: str, spawned: SimulatedThreads) -> None:
        super().__init__(world, address)
        self.threads = spawned
        self.services = Services()

    def serve(self, path: str, request: Any) -> Reply:
        """Called by the network."""
        reply = Reply()

        def work() -> None:
            try:
                result = self.services.call(path, request)
            except CallError as error:
                result = error
            reply.done(result)

        self.threads.spawn(self, work, path)
        return reply


class Connection(grpc.Channel):
    """Leads from one process to whatever is at an address."""

    def __init__(self, source: ServingProcess, address: str) -> None:
        self._source, self._address = source, address
        self._is_closed = False

    def unary_unary(self, method: str, *args: object, **kwargs: object) -> Any:
        """See ``grpc.Channel``."""
        return _Call(self, method)

    def unary_stream(self, method: str, *args: object, **kwargs: object) -> Any:
        """See ``grpc.Channel``."""
        return lambda request, timeout=None: _Replies(self.call_now(method, request))

    def stream_unary(self, method: str, *args: object, **kwargs: object) -> Any:
        """See ``grpc.Channel``."""
        return lambda requests, timeout=None: self.call_now(method, iter(requests))

    def stream_stream(self, method: str, *args: object, **kwargs: object) -> Any:
        """See ``grpc.Channel``; rows take another way."""
        return lambda *args, **kwargs: None

    def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
        """Nobody asks."""

    def unsubscribe(self, callback: object) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """See ``grpc.Channel``."""
        self._is_closed = True

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        """Call and wait for the answer.

        Raises:
            CallError: it failed.
        """
        self._check_open()
        if _STATE in method:
            return self.call_now(method, request)
        source = self._source
        answered = source.threads.event()
        results: list[Any] = []

        def done(result: Any) -> None:
            results.append(result)
            answered.set()

        source.world.rpc(
            source,
            self._address,
            "serve",
            (method, request),
            done,
            timeout_ms=(timeout_s or _TIMEOUT_S) * 1e3 / SCALE,
            doubles=self._address == "cp",
        )
        answered.wait()
        return self._result(results[0])

    def call_now(self, method: str, request: Any) -> Any:
        """A call that takes no time.

        Raises:
            CallError: it failed.
        """
        self._check_open()
        world = self._source.world
        target = world.processes.get(self._address)
        is_there = isinstance(target, ServingProcess) and target.is_alive and not target.is_paused
        if not is_there or world.is_cut(self._source.address, self._address):
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"nothing answers at {self._address}")
        assert isinstance(target, ServingProcess)
        return target.services.call(method, request)

    def _check_open(self) -> None:
        if self._is_closed:
            raise CallError(grpc.StatusCode.CANCELLED, "the connection was closed")

    def _result(self, result: Any) -> Any:
        match result:
            case CallError():
                raise result
            case ConnectionLostError():
                raise CallError(grpc.StatusCode.UNAVAILABLE, str(result))
            case FencedError():
                raise CallError(grpc.StatusCode.ABORTED, str(result))
            case WeirError():
                raise CallError(
                    grpc.StatusCode.FAILED_PRECONDITION, str(result), refusal_metadata(kind_of(result))
                )
            case _:
                return result


class _Call:
    """A method of a stub."""

    def __init__(self, connection: Connection, method: str) -> None:
        self._connection, self._method = connection, method

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        return self._connection.call(self._method, request, timeout)

    def future(self, request: Any, timeout: float | None = None) -> _Answered:
        """The call is made now."""
        try:
            result = self._connection.call(self._method, request, timeout)
        except CallError as error:
            return _Answered(error=error)
        return _Answered(result)


class _Answered:
    """What is used of ``grpc.Future``."""

    def __init__(self, result: Any = None, error: CallError | None = None) -> None:
        self._result, self._error = result, error

    def result(self) -> Any:
        """The answer."""
        if self._error is not None:
            raise self._error
        return self._result


class _Replies(Iterator[Any]):
    """A stream of replies."""

    def __init__(self, replies: Iterator[Any]) -> None:
        self._replies = replies
        self.cancel: Callable[[], None] = lambda: None

    def __next__(self) -> Any:
        return next(self._replies)
