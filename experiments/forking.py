"""``python -m experiments.forking MODULE FD`` has imported what ``python -m MODULE`` needs, and makes such processes.

Importing takes a task manager 1.7 s of processor time, most of what a short test takes; a fork takes none of it. So
the steps of all jobs and their kernels are there, too, and not only what a process imports before it knows its job.
What is asked for comes through the socket ``FD`` (``experiments.forked_processes``); the exit codes go back.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

#: Bytes of one message.
MESSAGE_BYTES_MAX = 1 << 20
#: Imported beside the module's ``__main__``: modules, and packages with all that is in them.
_NEEDED = {
    # FastAPI looks for models of its first kind when it sends its first answer.
    "control_plane": ("control_plane.process", "weir.config", "pydantic.v1"),
    "task_manager": ("task_manager.process", "weir.config", "weir.dataflow.loading"),
    "log_broker": ("log_broker.process", "weir.security.identity", "weir.records.etcd_keeper"),
}
_PACKAGES = {
    "control_plane": ("weir.dataflow", "weir.specs"),
    "task_manager": ("task_manager", "weir.operators", "weir.state"),
    "log_broker": ("log_broker",),
}
#: What begins a process, and clients of servers, which few jobs need.
_LEFT_OUT = {"__main__", "kafka", "kafka_connectors", "cassandra", "delta_sink"}


def main() -> None:
    """Make processes until the other end of the socket is closed; in such a process: be it."""
    # Of the terminal's Ctrl-C only those who are meant hear.
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    module, fd = sys.argv[1], int(sys.argv[2])
    entry = importlib.import_module(f"{module}.__main__")
    for name in (*_NEEDED[module], *chain.from_iterable(map(_modules_of, _PACKAGES[module]))):
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
    _end(entry.start)


def _end(run: Callable[[], None]) -> None:
    """Run a process to its end, without taking down what it was forked with, which is 0.2 s of a core.

    An error that nobody expects goes the usual way.
    """
    code: object = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    if code is not None and not isinstance(code, int):
        raise SystemExit(code)
    # As the interpreter does it: other threads end first.
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _modules_of(package: str) -> list[str]:
    """All modules of a package but those that are left out."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return [item.name for item in found if not _LEFT_OUT & {*item.name.split(".")}]


def _serve(connection: socket.socket, own: dict[str, str]) -> Callable[[], None] | None:
    """Make processes; returns in each of them, with what is to be done there first, and at the end (None)."""
    ended, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    # Whoever has asked for this server may have had a thousand files open, too many for select.
    looked_at = select.poll()
    for descriptor in (connection.fileno(), ended):
        looked_at.register(descriptor, select.POLLIN)
    connection.send(b"{}")
    while True:
        ready = [descriptor for descriptor, _ in looked_at.poll()]
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
