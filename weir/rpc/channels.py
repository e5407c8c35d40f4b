"""Connections of gRPC to other processes of Weir: encrypted, or with the proof of a secret, as the identity says.

Who connects demands the role that it looks for: the name of that role must be in the other end's certificate, whatever
the address. Where the certificates are renewed, calls made later go over a new connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc
import grpc.aio

from weir.security.identity import Identity, current
from weir.security.proofs import PROOF_KEY
from weir.security.roles import Role
from weir.security.tls_files import TlsMaterial

Options = Sequence[tuple[str, Any]]
#: Pairs of metadata.
Metadata = tuple[tuple[str, str | bytes], ...]

#: Of connections with earlier certificates, those that are kept for the streams that still go over them.
_FORMER_MAX = 2


def connect(address: str, role: Role, options: Options, *, identity: Identity | None = None) -> grpc.Channel:
    """A connection to a process of a role; nothing is sent yet.

    Raises:
        ConfigError: this process was given no identity, and what the environment says of one is wrong.
    """
    ours = identity or current()
    if ours.trusts_all:
        return grpc.insecure_channel(address, options=options)

    def make(material: TlsMaterial | None) -> grpc.Channel:
        if material is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, _credentials(material), options=_named(options, role))

    return cast("grpc.Channel", _Connection(ours, make))


def connect_async(
    address: str,
    role: Role,
    options: Options,
    *,
    identity: Identity | None = None,
    more: Callable[[], Metadata] = tuple,
) -> grpc.aio.Channel:
    """Return a connection for asyncio, as :func:`connect`; ``more``: metadata that goes with each call."""
    ours = identity or current()
    made = list(options)

    def make(material: TlsMaterial | None) -> grpc.aio.Channel:
        if material is None:
            return grpc.aio.insecure_channel(address, options=made)
        return grpc.aio.secure_channel(address, _credentials(material), options=_named(made, role))

    return cast("grpc.aio.Channel", _AsyncConnection(ours, make, more))


def _credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(material.authority, material.key, material.certificate)


def _named(options: Options, role: Role) -> list[tuple[str, Any]]:
    return [*options, ("grpc.ssl_target_name_override", role.server_name)]


class _Connection:
    """A channel of gRPC, as far as stubs use one."""

    def __init__(
        self,
        identity: Identity,
        make: Callable[[TlsMaterial | None], Any],
        more: Callable[[], Metadata] = tuple,
    ) -> None:
        self._identity = identity
        self._make = make
        self._more = more
        self._lock = threading.Lock()
        self._version = 0
        self._channel = self._made()
        self._former: list[Any] = []
        self.is_closed = False

    def _made(self) -> Any:
        tls = self._identity.tls
        material = None if tls is None else tls.material()
        self._version = 0 if material is None else material.version
        return self._make(material)

    def channel(self) -> Any:
        """The one with the certificate of now."""
        tls = self._identity.tls
        if tls is not None and tls.material().version != self._version:
            with self._lock:
                if not self.is_closed and tls.material().version != self._version:
                    self._former.append(self._channel)
                    self._channel = self._made()
                    if len(self._former) > _FORMER_MAX:
                        self._end(self._former.pop(0))
        return self._channel

    def metadata(self) -> Metadata:
        """What goes with each call."""
        prover = self._identity.prover
        return self._more() if prover is None else (*self._more(), (PROOF_KEY, prover.proof()))

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Does what ``grpc.Channel`` does."""
        return _Call(self, "unary_unary", method, arguments, options)

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Does what ``grpc.Channel`` does."""
        return _Call(self, "unary_stream", method, arguments, options)

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Does what ``grpc.Channel`` does."""
        return _Call(self, "stream_unary", method, arguments, options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Does what ``grpc.Channel`` does."""
        return _Call(self, "stream_stream", method, arguments, options)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """Does what ``grpc.Channel`` does."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """Does what ``grpc.Channel`` does."""
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        """Does what ``grpc.Channel`` does."""
        for each in self._all():
            each.close()

    def _end(self, channel: Any) -> None:
        channel.close()

    def _all(self) -> list[Any]:
        with self._lock:
            self.is_closed = True
            former, self._former = self._former, []
            return [*former, self._channel]

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _AsyncConnection(_Connection):
    """The same for asyncio; used in one event loop."""

    async def close(self, grace: float | None = None) -> None:  # type: ignore[override]
        """Does what ``grpc.Channel`` does."""
        for each in self._all():
            await each.close(grace)

    def _end(self, channel: Any) -> None:
        import asyncio

        with contextlib.suppress(RuntimeError):
            self._ending = asyncio.get_running_loop().create_task(channel.close(None))


class _Call:
    """What a stub calls."""

    __slots__ = ("_channel", "_connection", "_how", "_of_channel")

    def __init__(
        self,
        connection: _Connection,
        kind: str,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        self._connection = connection
        self._how = kind, method, arguments, options
        self._channel: Any = connection.channel()
        self._of_channel = self._bound()

    def _bound(self) -> Any:
        kind, method, arguments, options = self._how
        return getattr(self._channel, kind)(method, *arguments, **options)

    def _current(self) -> Any:
        channel = self._connection.channel()
        if channel is not self._channel:
            self._channel = channel
            self._of_channel = self._bound()
        return self._of_channel

    def __call__(self, *request: Any, metadata: Metadata = (), **options: Any) -> Any:
        return self._current()(*request, metadata=(*metadata, *self._connection.metadata()), **options)

    def future(self, *request: Any, metadata: Metadata = (), **options: Any) -> Any:
        """Does what ``grpc.UnaryUnaryMultiCallable`` does."""
        more = (*metadata, *self._connection.metadata())
        return self._current().future(*request, metadata=more, **options)

    def with_call(self, *request: Any, metadata: Metadata = (), **options: Any) -> Any:
        """Does what ``grpc.UnaryUnaryMultiCallable`` does."""
        more = (*metadata, *self._connection.metadata())
        return self._current().with_call(*request, metadata=more, **options)
