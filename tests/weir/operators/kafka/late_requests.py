"""A proxy before a broker that keeps one request of a kind, and hands it over when a test says so.

As a network does that loses a connection with a packet under way: the client asks again over another one.
"""

import contextlib
import re
import socket
import struct
import threading
from collections import Counter

from services.kafka import HOST

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
_TIMEOUT_S = 60.0
#: A transactional id, as sinks name them.
_ID = re.compile(rb"weir/[^\0]*?/[0-9a-f]{8}/\d")
#: One of the first slot of a subtask: the only one that a sink surely uses again, whatever its commits wait for.
FIRST_SLOT = re.compile(rb"weir/[^\0]*?/[0-9a-f]{8}/0")


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
        #: Kinds and transactional ids of what has come since :meth:`keep_next`; and why nothing can be handed over.
        self._passed = Counter()
        self._failure = None
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

    def keep_next(self, kind, about=re.compile(b""), closes=True, hands_over=False):
        """Keep the next request of this kind.

        Args:
            kind: of the request.
            about: pattern of what is in it.
            closes: its connection; or else it stays open, and silent.
            hands_over: to the broker, so that only the answer is lost.
        """
        with self._lock:
            self._kept = None
            self._is_kept.clear()
            self._passed.clear()
            self._wanted = (kind, about, closes, hands_over)

    def deliver_before(self, *kinds):
        """Hand the kept request over before the last of these, when the others have passed in this order.

        Only requests of the same transactional id count.
        """
        with self._lock:
            self._deliver_before = list(reversed(kinds))

    def wait_until_kept(self):
        """Return when the client has sent it."""
        assert self._is_kept.wait(_TIMEOUT_S), f"no such request came; {self.passed()}"

    def answered(self):
        """Return how many requests were handed over before others; raises if the broker did not answer one."""
        if self._failure is not None:
            raise AssertionError("the kept request could not be handed over") from self._failure
        return len(self.answers)

    def passed(self):
        """Say what has come since a request was to be kept, for the message of a test that fails."""
        with self._lock:
            came = [f"{count} of kind {kind} by {name}" for (kind, name), count in self._passed.items()]
            awaited = list(reversed(self._deliver_before))
            kept = self._kept and _id_in(self._kept)
        return f"kept one of {kept}, and still awaited kinds {awaited}; since then came {came}"

    def deliver(self):
        """Hand the kept request over now; returns when the broker has answered, with the answer's body."""
        self.wait_until_kept()
        return self._asked(self._kept)

    def _asked(self, request):
        with socket.create_connection(self._target, _TIMEOUT_S) as connection:
            connection.sendall(request)
            size = struct.unpack(">i", _received(connection, 4))[0]
            return _received(connection, size)[4:]

    def _deliver_awaited(self):
        try:
            self.answers.append(self.deliver())
        except Exception as error:
            # Whatever it is: nobody else hears of it in this thread, and the answer is waited for.
            self._failure = error
            raise

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, _TIMEOUT_S)
            except OSError:
                # As a broker that is too busy: the client comes again.
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            for ends in ((self._pass_requests, near, far), (self._pass_answers, far, near)):
                threading.Thread(target=self._run, args=ends, name="late", daemon=True).start()

    def _run(self, pass_on, source, target):
        try:
            with contextlib.suppress(OSError):
                pass_on(source, target)
        finally:
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
                name, wanted = _id_in(request), self._wanted
                self._passed[kind, name] += 1
                is_awaited = self._deliver_before[-1:] == [kind] and name == _id_in(self._kept)
                if is_awaited:
                    self._deliver_before.pop()
                    is_awaited = not self._deliver_before
                is_kept = wanted is not None and wanted[0] == kind and wanted[1].search(request)
                if is_kept:
                    self._wanted, self._kept = None, request
            if is_awaited:
                self._deliver_awaited()
            if not is_kept:
                target.sendall(request)
                continue
            _, _, closes, hands_over = wanted
            if hands_over:
                self._asked(request)
            self._is_kept.set()
            if closes:
                return


def _id_in(request):
    """The transactional id in a request; "": it has none."""
    found = _ID.search(request)
    return found[0].decode() if found else ""


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
