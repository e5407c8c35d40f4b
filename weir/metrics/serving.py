"""The metrics page of a process, and pushing the same metrics to a Pushgateway."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, push_to_gateway

from weir.errors import AddressInUseError, ConfigError
from weir.process.newcomers import Newcomers

log = logging.getLogger(__name__)

_PUSH_TIMEOUT_S = 5.0
#: Each has a thread; of more, the oldest is hung up on.
_CONNECTIONS_MAX = 64
#: For each part of a request.
_REQUEST_S = 10.0


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._open = Newcomers(_CONNECTIONS_MAX)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called with each connection, which is for one request."""
        self._open.came(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called when it is answered."""
        self._open.proved(request.fileno())
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called in the midst of an exception: who hangs up, or says nothing, is no news."""
        log.debug("metrics: a request of %s was not answered", client_address, exc_info=True)

    def server_bind(self) -> None:
        """Bind without the reverse name look-up of the base class, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""


class MetricsServer:
    """A running page; ``port`` is the real one when 0 was asked for."""

    def __init__(self, server: WSGIServer) -> None:
        self.port = int(server.server_port)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port; safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve ``registry`` at ``http://host:port/metrics`` from a daemon thread until the result is closed.

    Raises:
        AddressInUseError: another process has the port.
        ConfigError: the host is not an address of this machine, or the port needs more rights.
    """
    kind = _ServerV6 if ":" in host else _Server
    try:
        server = make_server(host, port, make_wsgi_app(registry), kind, _QuietHandler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"metrics: {host}:{port} is in use; choose another prometheus.prometheus_port "
                "(0: any free one)"
            ) from error
        raise ConfigError(
            f"metrics: cannot listen on prometheus.prometheus_host {host}, port {port}: "
            f"{error.strerror or error}"
        ) from error
    return MetricsServer(server)


class MetricsPusher:
    """Pushes at intervals from its own thread, and a last time when closed.

    A gateway that does not answer is logged once, not at each try, and again when it is back.
    """

    def __init__(
        self, registry: CollectorRegistry, gateway: str, job: str, instance: str, interval_s: float
    ) -> None:
        """Start the thread.

        Args:
            registry: what to push.
            gateway: ``host:port`` of the Pushgateway.
            job: label ``job`` of everything pushed (``prometheus.job_name``).
            instance: label ``instance``, this process's address; equal ones overwrite each other.
            interval_s: time between pushes.
        """
        self._registry = registry
        self._gateway = gateway
        self._job = job
        self._instance = instance
        self._interval_s = interval_s
        self._failing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Push once more and end the thread, within the push timeout; safe to call twice."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            self._push()
        self._push()

    def _push(self) -> None:
        grouping = {"instance": self._instance}
        try:
            push_to_gateway(self._gateway, self._job, self._registry, grouping, timeout=_PUSH_TIMEOUT_S)
        except OSError as error:
            if not self._failing:
                log.warning(
                    "metrics: Pushgateway %s does not take metrics (%s); trying on", self._gateway, error
                )
            self._failing = True
        else:
            if self._failing:
                log.warning("metrics: Pushgateway %s takes metrics again", self._gateway)
            self._failing = False
