"""The command ``weir run`` as a process of its own, as a user starts it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


class Command:
    """``weir run JOB`` in a folder; lines of standard error are read as they come."""

    def __init__(self, folder, job, *arguments):
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "weir", "run", str(job), "--http-port", "0", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid, self.send_signal = self._popen.pid, self._popen.send_signal
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._popen.stderr:
            self.lines.append(line.rstrip())

    def said(self, text):
        return sum(text in line for line in self.lines)

    def wait(self, timeout_s=120):
        """Returns the exit code; all lines are there then."""
        code = self._popen.wait(timeout_s)
        self._reader.join()
        return code

    def control_planes(self):
        return self._children("control_plane")

    def task_managers(self):
        return self._children("task_manager")

    def _children(self, module):
        return [child for child in psutil.Process(self.pid).children() if module in child.cmdline()]

    def close(self):
        children = psutil.Process(self.pid).children(recursive=True) if self._popen.poll() is None else []
        for process in (self._popen, *children):
            process.kill()
        self.wait()
        self._popen.stdout.close()
        self._popen.stderr.close()


def wait_for(condition, what, timeout_s=120):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)
