"""A connection to a service that a test cuts and mends: as if the service was killed, without its long start."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from experiments.ports import free_port


class Cable:
    """Passes on what comes to ``port`` of 127.0.0.1 to another port, until it is cut."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        #: How long everything takes in addition, each way.
        self.delay_s = 0.0
        self._target_port = target_port
        self._sockets: list[socket.socket] = []
        self._pumps: list[threading.Thread] = []
        self.mend()

    def mend(self) -> None:
        """Take connections, again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self) -> None:
        """End all connections and refuse further ones; safe to call twice."""
        _end(self._listener)
        self._accepting.join()
        self._listener.close()
        for each in self._sockets:
            _end(each)
        for pump in self._pumps:
            pump.join()
        for each in self._sockets:
            each.close()
        self._sockets, self._pumps = [], []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._sockets.append(near)
                far = socket.create_connection(("127.0.0.1", self._target_port))
                self._sockets.append(far)
                for ends in ((near, far), (far, near)):
                    pump = threading.Thread(target=self._pump, args=ends)
                    pump.start()
                    self._pumps.append(pump)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self.delay_s)
                target.sendall(data)
        _end(source)
        _end(target)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
