"""Processes that ``weir run`` starts first of all: they import what they need while it reads its own arguments."""

from __future__ import annotations

import os
import site
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FOLLOWS_NOT = "--no-follow"


@dataclass(frozen=True, eq=False)
class Started:
    """A process that waits for its arguments."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket
    #: What it writes comes through pipes, because another process draws on the terminal.
    is_relayed: bool


_started: dict[str, Started] = {}


def begin(arguments: Sequence[str]) -> None:
    """Start the processes that ``weir run`` will need; called before anything else is imported.

    Does nothing for another command. What is not taken, as after a wrong argument, ends with this process.

    Args:
        arguments: of ``weir``.
    """
    if arguments[:1] != ["run"] or "--help" in arguments:
        return
    from weir.kernels.sources import cache_directory

    # All processes keep their kernels at the same place.
    cache_directory()
    draws = sys.stderr.isatty() and _FOLLOWS_NOT not in arguments
    # The longest start-up first.
    _started["task_manager"] = start("task_manager", None, is_relayed=draws, owns_terminal=False)
    _started["control_plane"] = start("control_plane", None, is_relayed=False, owns_terminal=True)


def take(module: str, *, is_relayed: bool) -> Started | None:
    """A process of :func:`begin` for this module, once; None: there is none, or it writes to another place."""
    found = _started.pop(module, None)
    if found is not None and found.is_relayed != is_relayed:
        found.connection.close()
        return None
    return found


def start(
    module: str, environment: Mapping[str, str] | None, *, is_relayed: bool, owns_terminal: bool
) -> Started:
    """A process that imports what ``python -m module`` needs, and then waits for its arguments.

    Args:
        module: with a ``__main__`` that takes ``--parent-fd``.
        environment: of the process; None: this process's.
        is_relayed: what it writes to the terminal goes to this process.
        owns_terminal: it writes to the terminal itself, and only to standard error.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        popen = subprocess.Popen(
            # Without -P a module of the working directory would come before one beside the job's file.
            [sys.executable, "-P", "-m", "weir.process.prepared_process", module, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr
            if owns_terminal
            else subprocess.PIPE
            if is_relayed and sys.stdout.isatty()
            else None,
            stderr=subprocess.PIPE if is_relayed else None,
            env=_with_this_weir(os.environ if environment is None else environment),
            pass_fds=[theirs.fileno()],
            # Ctrl-C is for this process, which ends the others in order.
            start_new_session=True,
        )
    return Started(popen, ours, is_relayed)


def _with_this_weir(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to run the same installation or clone of Weir."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = str(Path(__file__).parents[2])
    if ours not in (*paths, *site.getsitepackages(), site.getusersitepackages()):
        paths.append(ours)
    # What the job prints is seen at once, and not lost if its process is killed.
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
