"""What the processes set up before they begin."""

import subprocess
import sys

import pytest

#: What the processes log in these tests.
TOLD = ["the job failed", "a checkpoint failed"]

PROBE = """
import resource
from weir.process.entry_point import keep_freed_memory
if {keeps}:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(16):
    # Without it every block is a mapping of its own beyond 128 KiB, and later one that the end of the heap gives back.
    blocks = [bytearray(8 << 20) + b"x" for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keeps):
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(keeps=keeps)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_blocks_that_were_freed_are_used_again():
    assert faults(keeps=True) < faults(keeps=False) / 4


LOGS = """
import logging, sys
from pathlib import Path
from weir.process.entry_point import REPEATED_LOGGER, set_up_logging
set_up_logging("process", verbose=False, path=Path(sys.argv[1]), has_parent=sys.argv[2] == "parent")
logging.getLogger(REPEATED_LOGGER).error("the job failed")
logging.getLogger("control_plane").warning("a checkpoint failed")
"""


@pytest.mark.parametrize(("starter", "shown"), [("parent", ["a checkpoint failed"]), ("nobody", TOLD)])
def test_what_weir_run_says_itself_is_in_the_log_file_only(tmp_path, starter, shown):
    path = tmp_path / "log"
    command = [sys.executable, "-c", LOGS, str(path), starter]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert messages(done.stderr) == shown
    assert messages(path.read_text()) == TOLD


UNFORESEEN = """
import sys, threading
from weir.process.entry_point import set_up_logging
from weir.redaction import KNOWN
set_up_logging("process", verbose=False)
KNOWN.learn({"password": "pl4nted-S3cret"})
def fail():
    raise RuntimeError("\\x1b[2J it was pl4nted-S3cret")
thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
fail()
"""


def test_what_nobody_has_foreseen_is_an_entry_of_the_log_without_secrets():
    done = subprocess.run(
        [sys.executable, "-c", UNFORESEEN], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("process CRITICAL an error that nobody has foreseen in thread") == 2
    assert done.stderr.count(r"RuntimeError: \x1b[2J it was ***") == 2
    assert "\x1b" not in done.stderr


def messages(log):
    return [line.split(maxsplit=3)[-1] for line in log.splitlines()]
