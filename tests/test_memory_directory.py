"""Tests without processes write to memory where there is enough of it."""

import os
import subprocess
import sys

from tests.memory_directory import make_memory_directory


def test_what_killed_runs_left_is_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, lives, another = (tmp_path / name for name in (f"weir-tests-{ended.pid}", "weir-tests-1", "others"))
    for directory in (left, lives, another):
        (directory / "store").mkdir(parents=True)
    made = make_memory_directory(tmp_path, free_bytes_min=1)
    assert sorted(tmp_path.iterdir()) == sorted([made, lives, another])
    assert made.name == f"weir-tests-{os.getpid()}"
    assert (lives / "store").is_dir()


def test_little_memory_is_left_alone(tmp_path):
    assert make_memory_directory(tmp_path, free_bytes_min=1 << 60) is None
    assert make_memory_directory(tmp_path / "absent") is None
    assert list(tmp_path.iterdir()) == []
