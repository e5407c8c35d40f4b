"""Entries of running processes: every call of gRPC, pages, frames of questions and calls, and the bare ports."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

import weir.log
from experiments.cluster import Cluster
from experiments.fuzzing.inputs import damaged, fill, http_request
from experiments.log_cluster import LogCluster
from task_manager.exchange.frames import SIZES
from weir.questions.link import HEADER
from weir.rpc import control_pb2, control_pb2_grpc, data_pb2, data_pb2_grpc, log_pb2, state_pb2
from weir.rpc.wire import PROTOCOL_VERSION

Try = Callable[[random.Random], object]

JOB = "weir.examples.word_count"
#: An input that takes longer hangs.
LIMIT_S = 10.0
_READ_BYTES = 65_536
#: A stream that goes on is ended.
_STREAM_S, _REPLIES_MAX = 0.5, 3
#: Not of them: what ends the job is no finding.
_PAGES = (
    "/",
    "/status",
    "/plan",
    "/routing",
    "/history",
    "/logs",
    "/profile",
    "/configuration",
    "/checkpoints",
    "/savepoint",
    "/scale",
    "/rescales",
    "/rescales/{}",
    "/drain",
    "/restores",
    "/report",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/events",
    "/login",
    "/state",
    "/state/{}",
    "/state/{}/{}",
    "/state/{}/{}/{}",
    "/log",
    "/keyvalue/{}",
    "/range/{}/{}",
    "/all",
    "/{}",
    "*",
    "//",
    "http://127.0.0.1/status",
)


class FuzzedCluster:
    """A control plane whose job waits for more task managers, and one that has registered; callers are not checked."""

    def __init__(self, directory: Path, popen: Any = None) -> None:
        """Start nothing yet; ``popen``: as of ``Cluster``."""
        settings = {
            "security.insecure": "true",
            "controlPlane.state_path": "",
            "controlPlane.min_task_managers": 99,
            "controlPlane.checkpoint_uri": str(directory / "checkpoints"),
        }
        self._cluster = Cluster(directory / "cluster", task_managers=99, settings=settings, popen=popen)
        # Its commands of clients read the variable, too: they are of this process.
        trusting = {"WEIR_SECURITY_INSECURE": "1"}
        self._log = LogCluster(directory / "log", 1, lease_ms=30_000, environment=trusting)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FuzzedCluster:
        cluster = self._stack.enter_context(self._cluster)
        cluster.start_control_plane(JOB, {}, exit_when_finished=False)
        cluster.start_task_manager()
        status = cluster.wait_for(lambda status: bool(status["task_managers"]), "a task manager")
        self._manager, self._pages = (status["task_managers"][0][key] for key in ("address", "http"))
        self._plane = f"127.0.0.1:{cluster.grpc_port}"
        log = self._stack.enter_context(self._log)
        self._broker, self._controller = f"127.0.0.1:{log.ports[1]}", f"127.0.0.1:{log.controller_port}"
        self._channels = {
            address: self._stack.enter_context(grpc.insecure_channel(address))
            for address in (self._plane, self._manager, self._broker, self._controller)
        }
        stub = control_pb2_grpc.TaskManagerStub(self._channels[self._manager])
        self._told = stub.Status(control_pb2.StatusRequest(), timeout=LIMIT_S)
        links = data_pb2_grpc.ExchangeStub(self._channels[self._manager])
        asked = data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION)
        self._link = links.OpenLink(asked, timeout=LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def targets(self) -> dict[str, Try]:
        """Return the entries by name."""
        made: dict[str, Try] = {}
        others = {"ControlPlane": self._plane, "LogBroker": self._broker, "LogController": self._controller}
        for module in (control_pb2, data_pb2, state_pb2, log_pb2):
            for service in module.DESCRIPTOR.services_by_name.values():
                address = others.get(service.name, self._manager)
                for method in service.methods:
                    made[f"{service.name}.{method.name}"] = self._call(address, method)
        port = self._told.question_port
        for name, greeting in (
            ("questions", self._told.question_greeting),
            ("calls", self._told.frequent_calls_greeting),
            ("strangers", b"weir-ask-1\n"),
        ):
            made[f"frames of {name}"] = self._frames(port, greeting)
        made["links of rows"] = self._rows(self._link.port, self._link.greeting)
        made["pages of the control plane"] = self._http(f"127.0.0.1:{self._cluster.http_port}")
        made["pages of a task manager"] = self._http(self._pages)
        made["pages of the log's controller"] = self._http(f"127.0.0.1:{self._log.http_port}")
        made["bytes at gRPC of the control plane"] = self._bytes(self._plane)
        made["bytes at gRPC of a task manager"] = self._bytes(self._manager)
        return made

    def trouble(self) -> str:
        """Why the processes are not as they must be; "": they are."""
        for name, process in self._cluster.processes.items():
            text = process.log_path.read_text(errors="replace")
            if not process.alive():
                return f"{name} has ended: {process.log_tail()}"
            if "Traceback" in text:
                return f"{name} has logged a traceback: {text[text.index('Traceback') :][:2_000]}"
        for number in (0, 1):
            text = self._log.log_path(number).read_text(errors="replace")
            if "Traceback" in text:
                return f"the log has logged a traceback: {text[text.index('Traceback') :][:2_000]}"
        if not weir.log.log_status(self._log.addresses).brokers:
            return "the log has no broker any more"
        status = self._cluster.status(LIMIT_S)
        if status is None or len(status["task_managers"]) != 1:
            return f"the control plane does not answer, or has lost its task manager: {status}"
        return ""

    def rss_bytes(self) -> int:
        """Memory of all processes."""
        for process in self._cluster.processes.values():
            process.sample()
        return sum(process.rss_bytes for process in self._cluster.processes.values()) + self._log.rss_bytes()

    def _call(self, address: str, method: Any) -> Try:
        path = f"/{method.containing_service.full_name}/{method.name}"
        kind = GetMessageClass(method.input_type)
        channel = self._channels[address]

        def request(rng: random.Random) -> bytes:
            message = fill(rng, kind())
            if "handshake" in kind.DESCRIPTOR.fields_by_name and rng.random() < 0.7:
                message.handshake.protocol_version = PROTOCOL_VERSION  # type: ignore[attr-defined]
            content = message.SerializeToString()
            return damaged(rng, content) if rng.random() < 0.2 else content

        def work(rng: random.Random) -> object:
            try:
                if method.client_streaming and method.server_streaming:
                    stream = channel.stream_stream(path, None, None)(
                        iter([request(rng), request(rng)]), timeout=_STREAM_S
                    )
                    return list(itertools.islice(stream, _REPLIES_MAX))
                if method.client_streaming:
                    return channel.stream_unary(path, None, None)(
                        iter([request(rng), request(rng)]), timeout=LIMIT_S
                    )
                if method.server_streaming:
                    return list(channel.unary_stream(path, None, None)(request(rng), timeout=LIMIT_S))
                return channel.unary_unary(path, None, None)(request(rng), timeout=LIMIT_S)
            except grpc.RpcError as error:
                _check(path, error, is_stream=method.client_streaming and method.server_streaming)
                return None

        return work

    @staticmethod
    def _frames(port: int, greeting: bytes) -> Try:
        def work(rng: random.Random) -> object:
            content = fill(rng, control_pb2.QueryRequest()).SerializeToString()
            content = bytes((rng.randrange(6),)) + damaged(rng, content)
            frame = (
                HEADER.pack(rng.choice((len(content), 0, 2**32 - 1, 1 << 26)), rng.randrange(2**64)) + content
            )
            begun = greeting if rng.random() < 0.9 else damaged(rng, greeting)
            return _sent(f"127.0.0.1:{port}", begun + (damaged(rng, frame) if rng.random() < 0.3 else frame))

        return work

    @staticmethod
    def _rows(port: int, greeting: bytes) -> Try:
        def work(rng: random.Random) -> object:
            head, body = (
                fill(rng, data_pb2.ChannelFrame()).SerializeToString(),
                rng.randbytes(rng.randrange(300)),
            )
            head_bytes = rng.choice((len(head), len(head), len(head), 0, 1 << 26, 2**32 - 1))
            frame = SIZES.pack(head_bytes, len(body)) + head + body
            begun = greeting if rng.random() < 0.9 else damaged(rng, greeting)
            return _sent(f"127.0.0.1:{port}", begun + (damaged(rng, frame) if rng.random() < 0.3 else frame))

        return work

    @staticmethod
    def _bytes(address: str) -> Try:
        return lambda rng: _sent(address, damaged(rng, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0"))

    @staticmethod
    def _http(address: str) -> Try:
        def work(rng: random.Random) -> object:
            answer = _sent(address, http_request(rng, _PAGES))
            if answer.startswith(b"HTTP/1.1 500"):
                raise AssertionError(f"no clear error: {answer[:500]!r}")
            return answer

        return work


def _check(path: str, error: grpc.RpcError, *, is_stream: bool) -> None:
    """An error that nobody has foreseen is UNKNOWN; a call that takes too long hangs, unless it is a stream."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNKNOWN or (code is grpc.StatusCode.DEADLINE_EXCEEDED and not is_stream):
        raise AssertionError(f"{path}: {code.name}: {details}") from error


def _sent(address: str, content: bytes) -> bytes:
    """What comes back at once; the other end may hang up."""
    host, _, port = address.rpartition(":")
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection((host, int(port)), LIMIT_S) as connection,
    ):
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        # A question that is not complete is not answered, and a stream of events goes on.
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            return connection.recv(_READ_BYTES)
    return b""
