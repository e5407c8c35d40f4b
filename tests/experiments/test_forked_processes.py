"""Processes that are forked and not started: as those of ``python -m`` to whoever waits for them."""

import os
import subprocess
import sys

import psutil
import pytest

from experiments.forked_processes import Forks

pytestmark = pytest.mark.scenario


def test_a_forked_process_is_like_one_that_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_path = tmp_path / "log"

    def start(*arguments, **variables):
        with log_path.open("ab") as log:
            return forks.popen(
                [sys.executable, "-m", "control_plane", *arguments], log, environment | variables
            )

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Forks() as forks:
        wrong = start("--job", "nowhere", "--port", "0", "--http-port", "0")
        assert wrong.wait(60) == wrong.returncode == wrong.poll() == 2
        text = log_path.read_text()
        assert "nowhere" in text
        assert "Traceback" not in text

        (tmp_path / "mine.py").write_text(
            "import os, weir\n"
            "def build():\n"
            "    print('folder', os.getcwd(), 'mine', os.environ['MINE'], flush=True)\n"
            "    flow = weir.Dataflow('mine')\n"
            "    flow.source('rows', weir.JsonLines('rows.jsonl', schema={'id': int})).sink('out', weir.Print())\n"
            "    return flow\n"
        )
        runs = start("--job", "mine", "--port", "0", "--http-port", "0", MINE="yes")
        while f"folder {tmp_path} mine yes" not in log_path.read_text():
            assert runs.poll() is None, log_path.read_text()
        assert psutil.Process(runs.pid).cwd() == str(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            runs.wait(0.01)
        runs.kill()
        assert runs.wait(60) == -9
        # Of one that has ended nobody else gets the signal.
        runs.kill()
        # Nor is it an error that one ends between the look and the signal.
        runs.returncode = None
        monkeypatch.setattr(runs, "poll", lambda: None)
        runs.terminate()
        last = start("--job", "mine", "--port", "0", "--http-port", "0", MINE="yes")
    # The server has ended, and what it has made has not.
    psutil.Process(last.pid).kill()
