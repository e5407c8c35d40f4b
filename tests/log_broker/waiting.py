"""Waiting for conditions in tests of the log."""

import time


def wait_for(condition, timeout_s=60.0):
    """Return once a condition holds."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)
