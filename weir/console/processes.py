"""Processes that ``weir run`` starts: how they begin, talk and end. None outlives the command."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from weir.clock import Clock
from weir.console import head_start
from weir.process.lifeline import Message, receive_all, send
from weir.process.prepared_process import order

#: How long processes may take to end in order before they are killed.
_END_S = 5.0
#: How long what a process has told may take to arrive once it has ended; a process of the job's own may hold the line.
_LAST_WORDS_S = 1.0


@dataclass(frozen=True)
class Told:
    """A process sent a message."""

    child: Child
    message: Message


@dataclass(frozen=True)
class Ended:
    """A process has ended; ``code`` is negative if a signal ended it."""

    child: Child
    code: int
    #: It was told before, and nothing has come of it.
    is_late: bool = False


@dataclass(frozen=True)
class Signalled:
    """A signal came to ``weir run``."""

    number: int
    #: It was told before, and what was to come of it has not.
    is_late: bool = False


Event = Told | Ended | Signalled


@dataclass(eq=False)
class Child:
    """A process of the run; messages go through a pair of sockets."""

    name: str
    popen: subprocess.Popen[bytes]
    connection: socket.socket
    #: Copy what it writes.
    pumps: list[threading.Thread] = field(default_factory=list)

    def tell(self, message: Message) -> bool:
        """Send a message; False if it has gone."""
        return send(self.connection, message)

    def cut_off(self) -> None:
        """Let it end at once, as if this process had died."""
        with contextlib.suppress(OSError):
            # Closing alone would wait for the thread that reads.
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Children:
    """The processes of a run. Everything that happens to them goes to one queue."""

    def __init__(self, environment: Mapping[str, str], terminal: Terminal | None, clock: Clock) -> None:
        """``terminal``: takes what the processes write there; None: they write themselves."""
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._environment = dict(environment)
        self._terminal = terminal
        self._clock = clock
        self._children: list[Child] = []

    def start(
        self, name: str, module: str, arguments: Sequence[str], *, owns_terminal: bool = False
    ) -> Child:
        """Start ``python -m module``.

        Args:
            name: for messages.
            module: with a ``__main__`` that takes ``--parent-fd``.
            arguments: of the command line.
            owns_terminal: it writes to the terminal itself, and only to standard error.
        """
        relays = self._terminal is not None and not owns_terminal
        found = head_start.take(module, is_relayed=relays)
        if found is None:
            found = head_start.start(
                module, self._environment, is_relayed=relays, owns_terminal=owns_terminal
            )
        send(found.connection, order(self._environment.get("PYTHONPATH", ""), list(arguments)))
        popen, ours = found.popen, found.connection
        child = Child(name, popen, ours)
        self._children.append(child)
        for stream in filter(None, (popen.stdout, popen.stderr)):
            assert self._terminal is not None
            child.pumps.append(_thread(self._terminal.pump, stream))
        ears = _thread(receive_all, ours, lambda message: self.events.put(Told(child, message)))
        _thread(self._wait, child, ears)
        return child

    def close(self) -> None:
        """End what still runs: as if this process had died, and after a while by force."""
        for child in self._children:
            child.cut_off()
        deadline_s = self._clock.monotonic_s() + _END_S
        for child in self._children:
            try:
                child.popen.wait(max(deadline_s - self._clock.monotonic_s(), 0.0))
            except subprocess.TimeoutExpired:
                child.popen.kill()
                child.popen.wait()
            for pump in child.pumps:
                pump.join(_END_S)

    def _wait(self, child: Child, ears: threading.Thread) -> None:
        code = child.popen.wait()
        # Its last words come before its end.
        ears.join(_LAST_WORDS_S)
        for pump in child.pumps:
            # What processes of the job's own still write is not waited for.
            pump.join(_END_S)
        self.events.put(Ended(child, code))


class Terminal:
    """The terminal, on which one process draws (the control plane's ``--follow``); others' text goes through it."""

    def __init__(self) -> None:
        #: Draws; None: nobody does.
        self.owner: Child | None = None
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Put text above what is drawn."""
        with self._lock:
            if (
                self.owner is None
                or self.owner.popen.poll() is not None
                or not self.owner.tell({"text": text})
            ):
                sys.stderr.write(text)
                sys.stderr.flush()

    def pump(self, stream: IO[bytes]) -> None:
        """Show whole lines of what a process writes, until it has ended."""
        rest = b""
        while chunk := os.read(stream.fileno(), 1 << 16):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                self.show((whole + newline).decode(errors="replace"))
        if rest:
            self.show(rest.decode(errors="replace") + "\n")


def _thread(target: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread
