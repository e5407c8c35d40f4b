"""Sessions with a database that is not there."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys

import pytest

from experiments.ports import free_port
from weir.clock import SystemClock
from weir.config.stores import CassandraConfig
from weir.errors import StateError
from weir.state import patience
from weir.state.cassandra.errors import DatabaseAwayError
from weir.state.cassandra.session import Session, open_session


def open_sockets() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0}


def test_a_session_leaves_no_socket_to_the_garbage_collector() -> None:
    gc.disable()
    try:
        before = open_sockets()
        with pytest.raises(DatabaseAwayError, match=r"cannot connect.*see whether it runs"):
            open_session(CassandraConfig(port=free_port(), when_away="fail", give_up_after_ms=0))
        assert open_sockets() <= before
    finally:
        gc.enable()


def test_a_closed_session_says_so() -> None:
    session = Session(CassandraConfig(), SystemClock())
    session.close()
    session.close()
    with pytest.raises(StateError, match=r"the session with Cassandra at 127.0.0.1:9042 is closed"):
        session.connect()


def test_who_only_asks_is_told_why_and_does_not_wait() -> None:
    session = Session(CassandraConfig(port=free_port()), SystemClock())

    def give_up(why_away: str) -> None:
        if why_away:
            raise TimeoutError(why_away)

    try:
        with patience.limited(give_up), pytest.raises(TimeoutError, match=r"Cassandra at .* does not answer"):
            session.connect()
    finally:
        session.close()


#: Takes a port. In a process of its own, because what is tested for would end no test, nor let pytest do anything.
_GIVE_UP = """
import sys
from weir.state.cassandra.session import open_session
from weir.config.stores import CassandraConfig

class Enough(Exception):
    pass

def give_up():
    raise Enough

try:
    open_session(CassandraConfig(port=int(sys.argv[1])), check_cancelled=give_up)
except Enough:
    print("told")
"""


def test_giving_up_while_the_driver_connects_does_not_stop_the_process() -> None:
    """A job that is restarted while the database begins does so; the driver must not be freed meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-c", _GIVE_UP, port], capture_output=True, text=True, timeout=90, check=False
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "told\n", "")
