"""The thread between ``weir run`` and the processes that it starts: what they tell each other, and their end.

Each process gets one end of a pair of sockets (``--parent-fd``). What goes through it are JSON objects, one a line.
When ``weir run`` ends, however that happens (kill -9 included), the operating system closes its end, and the process
ends, too.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, ClassVar

Message = dict[str, Any]

#: Exit code of a process whose ``weir run`` is gone; nobody is there to see it.
_PARENT_GONE_EXIT_CODE = 1


class Parent:
    """The process's end. From the beginning on the process ends at once when the other end is closed."""

    _open: ClassVar[dict[int, Parent]] = {}

    @classmethod
    def at(cls, fd: int, on_text: Callable[[str], None] | None = None) -> Parent:
        """Return the parent at this file descriptor, which may be open already; arguments are the constructor's."""
        parent = cls._open.get(fd)
        if parent is None:
            cls._open[fd] = parent = cls(fd, on_text)
        parent.on_text = on_text
        return parent

    def __init__(self, fd: int, on_text: Callable[[str], None] | None = None) -> None:
        """``fd``: inherited; ``on_text``: see below."""
        self._socket = socket.socket(fileno=fd)
        # Processes that the job's own code starts must not keep it open.
        self._socket.set_inheritable(False)
        #: Called, by a thread, with text that is to be shown to the user.
        self.on_text = on_text
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    def receive(self) -> Message:
        """The next message that is no text to show; blocks until there is one."""
        return self._messages.get()

    def tell(self, message: Message) -> None:
        """Send a message; called by one thread."""
        send(self._socket, message)

    def _watch(self) -> None:
        # As a crash, not as an orderly end: a later run of the same job goes on from its latest checkpoint.
        receive_all(self._socket, self._take)
        os._exit(_PARENT_GONE_EXIT_CODE)

    def _take(self, message: Message) -> None:
        if "text" not in message:
            self._messages.put(message)
        elif self.on_text is not None:
            self.on_text(message["text"])


def send(connection: socket.socket, message: Message) -> bool:
    """Send one message; False if the other side has gone."""
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def receive_all(connection: socket.socket, take: Callable[[Message], None]) -> None:
    """Call ``take`` with each message; returns when the other side has gone."""
    try:
        with connection.makefile("rb") as lines:
            for line in lines:
                take(json.loads(line))
    except OSError:
        return
