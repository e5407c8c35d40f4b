"""Servers of gRPC take calls only of processes whose role may make them; others are refused, and the log tells of it.

The role is that of the caller's certificate, or what the proof of the machine's secret tells. Orders to a task manager
also need the secret that it told its own control plane when it registered.
"""

from __future__ import annotations

import contextlib
import hmac
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from weir.errors import HandshakeError
from weir.redaction import redacted_text
from weir.rpc.handshakes import Handshakes
from weir.rpc.malformed import FORESEEN, NoMessage, answer_of, forgiving
from weir.security.identity import Identity, current
from weir.security.proofs import PROOF_KEY
from weir.security.roles import Role, callers, role_of_names, takes_orders
from weir.security.tls_files import TlsFiles

log = logging.getLogger("weir.access")

#: Of each server. Without the first, two processes could share a port and each get half of the calls. Connections that
#: do not begin as they must are ended; gRPC itself waits for two minutes.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
#: The key of the metadata that holds a control plane's right to give orders; gRPC wants the ending for bytes.
ORDERS_KEY = "weir-orders-bin"
_NAMES = "x509_subject_alternative_name"


class Refusal(Exception):
    """Why a call is refused."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Gate:
    """Decides about calls; any thread may ask."""

    def __init__(self, identity: Identity | None = None, orders: bytes = b"") -> None:
        """``identity``: of this process; ``orders``: what an order must bring; b"": none is demanded."""
        self.identity = identity or current()
        self._orders = b"" if self.identity.trusts_all else orders
        self.handshakes = Handshakes()

    def check_metadata(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raise Refusal if what came with a call does not do.

        Without certificates the role is in it.
        """
        found: dict[str, str | bytes] = {
            key: value for key, value in metadata if key in (PROOF_KEY, ORDERS_KEY)
        }
        if self.identity.checker is not None:
            try:
                role = self.identity.checker.role_of(str(found.get(PROOF_KEY, "")))
            except HandshakeError as error:
                raise Refusal(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
            self.check_role(method, role)
        if self._orders and takes_orders(method) and not self.gives_orders(found.get(ORDERS_KEY, b"")):
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                "this task manager takes orders of the control plane only at which it has registered",
            )

    def gives_orders(self, brought: str | bytes) -> bool:
        """Whether this is the secret of this task manager's own control plane."""
        return isinstance(brought, bytes) and hmac.compare_digest(brought, self._orders)

    def check_role(self, method: str, role: Role | None) -> None:
        """Raise Refusal if a role may not make a call; None: the caller has none."""
        if role is None or role not in callers(method):
            allowed = ", ".join(sorted(callers(method))) or "nobody"
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{method} is not for the role {role or 'that the certificate has'}, but for {allowed}",
            )

    def check_certificate(self, method: str, context: Any) -> None:
        """Raise Refusal if the caller's certificate has no role that may make this call."""
        self.handshakes.called(context.peer())
        names = context.auth_context().get(_NAMES, ())
        self.check_role(method, role_of_names(name.decode(errors="replace") for name in names))


def tell(method: str, peer: str, refusal: Refusal) -> None:
    """Write a refusal to the log; a flood of them is cut there."""
    log.warning("refused %s of %s: %s", method, peer, redacted_text(str(refusal)))


class ThreadedGate(grpc.ServerInterceptor):  # type: ignore[type-arg]  # no generic when it runs
    """Interceptor of servers with threads."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Called by gRPC for each call."""
        handler = continuation(details)
        if handler is None:
            return None
        method, gate = details.method, self._gate
        try:
            gate.check_metadata(method, details.invocation_metadata)
        except Refusal as refusal:
            return _rebuilt(handler, _refusing(method, refusal))
        behaviour, has_certificates = _behaviour(handler), gate.identity.tls is not None
        if handler.request_streaming and not has_certificates:
            return handler

        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            if has_certificates:
                try:
                    gate.check_certificate(method, context)
                except Refusal as refusal:
                    tell(method, context.peer(), refusal)
                    context.abort(refusal.code, str(refusal))
            if isinstance(request, NoMessage):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.text)
            try:
                return behaviour(request, context)
            except FORESEEN as error:
                context.abort(*answer_of(error))

        return _rebuilt(handler, checked)


def _refusing(method: str, refusal: Refusal) -> Callable[[Any, grpc.ServicerContext], Any]:
    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        tell(method, context.peer(), refusal)
        context.abort(refusal.code, str(refusal))

    return refuse


class AsyncGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # no generic when it runs
    """Interceptor of servers in an event loop."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Called by gRPC for each call."""
        handler = await continuation(details)
        if handler is None:
            return None
        method, gate = details.method, self._gate
        try:
            gate.check_metadata(method, details.invocation_metadata)
        except Refusal as refusal:
            reason = refusal

            async def refuse(request: Any, context: Any) -> None:
                tell(method, context.peer(), reason)
                await context.abort(reason.code, str(reason))

            return _rebuilt(handler, refuse)
        behaviour = _behaviour(handler)
        if gate.identity.tls is None and inspect.isasyncgenfunction(behaviour):
            # Each message would have to be handed on.
            return handler
        return _rebuilt(handler, _checked(gate, method, behaviour))


def _checked(gate: Gate, method: str, behaviour: Any) -> Any:
    """Looks at the caller's certificate before the handler of a call, which may be a generator."""

    async def check(context: Any) -> None:
        if gate.identity.tls is None:
            return
        try:
            gate.check_certificate(method, context)
        except Refusal as refusal:
            tell(method, context.peer(), refusal)
            await context.abort(refusal.code, str(refusal))

    if inspect.isasyncgenfunction(behaviour):

        async def generated(request: Any, context: Any) -> AsyncIterator[Any]:
            await check(context)
            async with contextlib.aclosing(behaviour(request, context)) as replies:
                async for reply in replies:
                    yield reply

        return generated

    async def answered(request: Any, context: Any) -> Any:
        await check(context)
        if isinstance(request, NoMessage):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.text)
        try:
            return await behaviour(request, context)
        except FORESEEN as error:
            await context.abort(*answer_of(error))

    return answered


def _behaviour(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _rebuilt(handler: Any, behaviour: Any) -> Any:
    """A handler of the same kind of call."""
    if handler.request_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
    else:
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
    read = handler.request_deserializer
    return make(
        behaviour, read if handler.request_streaming else forgiving(read), handler.response_serializer
    )


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return True


def threaded_gates(gate: Gate) -> list[Any]:
    """What a server with threads is made with."""
    # Messages of streams that are none are refused by gRPC, with a traceback for each.
    logging.getLogger("grpc._common").addFilter(_without_traceback)
    return [ThreadedGate(gate)]


def async_gates(gate: Gate) -> list[Any]:
    """What a server in an event loop is made with."""
    return [AsyncGate(gate)]


def add_port(server: Any, address: str, gate: Gate) -> int:
    """Listen, encrypted if this process has certificates; returns the port.

    Raises:
        RuntimeError: the port is taken; of gRPC.
    """
    tls = gate.identity.tls
    gate.handshakes.address = address
    if tls is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, _server_credentials(tls, gate.handshakes)))


def _server_credentials(tls: TlsFiles, handshakes: Handshakes) -> grpc.ServerCredentials:
    """Certificates that are looked at anew with each connection."""
    told = tls.material().version

    def configuration() -> grpc.ServerCertificateConfiguration:
        material = tls.material()
        return grpc.ssl_server_certificate_configuration(
            [(material.key, material.certificate)], root_certificates=material.authority
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        handshakes.began()
        version = tls.material().version
        if version == told:
            return None
        told = version
        return configuration()

    # None leaves the configuration as it is; the stubs do not know that.
    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        fetch,  # type: ignore[arg-type]
        require_client_authentication=True,
    )
