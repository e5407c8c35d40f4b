"""A proxy before a broker that keeps one request of a kind, and hands it over when a test says so.

As a network does that loses a connection with a packet under way: the client asks again over another one.
"""

import contextlib
import re
import socket
import struct
import threading

from services.kafka import HOST

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
_TIMEOUT_S = 60.0
#: A transactional id, as sinks name them.
_ID = re.compile(rb"weir/[^\0]*?/[0-9a-f]{8}/\d")


class LateRequests:
    """Listens where clients are told that the broker is; use as a context manager.

    Args:
        port: that the broker tells its clients.
        target_port: where it listens for them.
    """

    def __init__(self, port, target_port):
        self._target = (HOST, target_port)
        self._lock = threading.Lock()
        self._wanted = self._kept = None
        self._deliver_before = []
        self._is_kept = threading.Event()
        self._sockets = set()
        #: To what was handed over before another request.
        self.answers = []
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, name="late", daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self._lock:
            held = [self._listener, *self._sockets]
        for item in held:
            _shut(item)

    def keep_next(self, kind, about=b"", closes=True, hands_over=False):
        """Keep the next request of this kind.

        Args:
            kind: of the request.
            about: what is in it.
            closes: its connection; or else it stays open, and silent.
            hands_over: to the broker, so that only the answer is lost.
        """
        with self._lock:
            self._kept = None
            self._is_kept.clear()
            self._wanted = (kind, about, closes, hands_over)

    def deliver_before(self, *kinds):
        """Hand the kept request over before the last of these, when the others have passed in this order.

        Only requests of the same transactional id count.
        """
        with self._lock:
            self._deliver_before = list(reversed(kinds))

    def wait_until_kept(self):
        """Return when the client has sent it."""
        assert self._is_kept.wait(_TIMEOUT_S), "no such request came"

    def deliver(self):
        """Hand the kept request over now; returns when the broker has answered, with the answer's body."""
        self.wait_until_kept()
        return self._asked(self._kept)

    def _asked(self, request):
        with socket.create_connection(self._target, _TIMEOUT_S) as connection:
            connection.sendall(request)
            size = struct.unpack(">i", _received(connection, 4))[0]
            return _received(connection, size)[4:]

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._sockets |= {near, far}
            for ends in ((self._pass_requests, near, far), (self._pass_answers, far, near)):
                threading.Thread(target=self._run, args=ends, name="late", daemon=True).start()

    def _run(self, pass_on, source, target):
        with contextlib.suppress(OSError):
            pass_on(source, target)
        for item in (source, target):
            _shut(item)
        with self._lock:
            self._sockets -= {source, target}

    def _pass_answers(self, source, target):
        while data := source.recv(1 << 16):
            target.sendall(data)

    def _pass_requests(self, source, target):
        while True:
            head = _received(source, 4)
            request = head + _received(source, struct.unpack(">i", head)[0])
            kind = struct.unpack(">h", request[4:6])[0]
            with self._lock:
                is_awaited, wanted = self._deliver_before[-1:] == [kind], self._wanted
                is_awaited = is_awaited and _ID.search(self._kept)[0] in request
                if is_awaited:
                    self._deliver_before.pop()
                    is_awaited = not self._deliver_before
                is_kept = wanted is not None and wanted[0] == kind and wanted[1] in request
                if is_kept:
                    self._wanted, self._kept = None, request
            if is_awaited:
                self.answers.append(self.deliver())
            if not is_kept:
                target.sendall(request)
                continue
            _, _, closes, hands_over = wanted
            if hands_over:
                self._asked(request)
            self._is_kept.set()
            if closes:
                return


def _received(source, size):
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def _shut(item):
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
    item.close()
