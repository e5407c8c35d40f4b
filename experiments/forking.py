"""``python -m experiments.forking MODULE FD`` has imported what ``python -m MODULE`` needs, and makes such processes.

Importing takes a task manager 1.7 s of processor time, most of what a short test takes; a fork takes none of it. What
is asked for comes through the socket ``FD`` (``experiments.forked_processes``); the exit codes go back.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

#: Bytes of one message.
MESSAGE_BYTES_MAX = 1 << 20
#: Imported beside the module's ``__main__``.
_NEEDED = {
    "control_plane": ("control_plane.process", "weir.config"),
    "task_manager": ("task_manager.process", "weir.config", "weir.dataflow.loading"),
}


def main() -> None:
    """Make processes until the other end of the socket is closed; in such a process: be it."""
    # Of the terminal's Ctrl-C only those who are meant hear.
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    module, fd = sys.argv[1], int(sys.argv[2])
    entry = importlib.import_module(f"{module}.__main__")
    for name in _NEEDED[module]:
        importlib.import_module(name)
    if module == "task_manager":
        importlib.import_module("weir.kernels.declare").load_kept_kernels()
    gc.collect()
    # What is there is never garbage, and not written to when the others are looked for.
    gc.freeze()
    with socket.socket(fileno=fd) as connection:
        made = _serve(connection, os.environ.copy())
    if made is None:
        return
    signal.signal(signal.SIGINT, at_interrupt)
    gc.enable()
    made()
    entry.start()


def _serve(connection: socket.socket, own: dict[str, str]) -> Callable[[], None] | None:
    """Make processes; returns in each of them, with what is to be done there first, and at the end (None)."""
    ended, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    connection.send(b"{}")
    while True:
        ready, _, _ = select.select([connection.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 512)
            _tell_ends(connection)
        if connection.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 1)
        if not data:
            return None
        (log,) = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            os.close(ended)
            os.close(noted)
            order = json.loads(data)
            return lambda: _become(order, log)
        os.close(log)
        connection.send(json.dumps({"pid": pid}).encode())


def _tell_ends(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        connection.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(order: dict[str, Any], log: int) -> None:
    """Be as if started with these arguments, variables, folder and processors."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    os.sched_setaffinity(0, order["cpus"])
    sys.path[0] = order["folder"]
    sys.argv = [order["module"], *order["arguments"]]
    importlib.invalidate_caches()


if __name__ == "__main__":
    main()
