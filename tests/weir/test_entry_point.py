"""What the processes set up before they begin."""

import subprocess
import sys

PROBE = """
import resource
from weir.entry_point import keep_freed_memory
if {keeps}:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
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
