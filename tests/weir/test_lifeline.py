import json
import os
import socket
import subprocess
import sys
import time

from weir.process.lifeline import receive_all, send

CHILD = """
import sys, time
from weir.process.lifeline import Parent
parent = Parent(int(sys.argv[1]))
parent.tell({"got": parent.receive()})
time.sleep(600)
"""


def test_a_process_talks_to_its_parent_and_ends_with_it():
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=dict(os.environ),
        )
    assert send(ours, {"address": "here"})
    with ours.makefile("rb") as lines:
        assert json.loads(lines.readline()) == {"got": {"address": "here"}}
        assert child.poll() is None
        began_s = time.monotonic()
        ours.shutdown(socket.SHUT_WR)
        assert child.wait(30) == 1
    assert time.monotonic() - began_s < 30
    ours.close()


def test_a_side_that_has_gone_is_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    receive_all(ours, lambda message: None)
    assert not send(ours, {})
    ours.close()
