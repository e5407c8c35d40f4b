"""Modules with kernels are compiled side by side: each once, after those that it needs, and failures are told."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from weir.kernel_compilation import KERNEL_MODULES
from weir.kernel_workers import PROCESSES_MAX, Schedule, kernel_needs, processes_for

ROOT = Path(__file__).parents[2]


def test_what_a_module_needs_is_read_from_its_imports():
    needs = kernel_needs(KERNEL_MODULES)
    assert list(needs) == list(KERNEL_MODULES)
    assert "weir.operators.sources.json_scan" in needs["weir.operators.sources.json_late"]
    assert needs["weir.kernels"] == set()


def test_a_module_is_handed_out_once_what_it_needs_has_ended():
    schedule = Schedule({"late": {"base"}, "base": set(), "other": set()})
    assert [schedule.take(), schedule.take(), schedule.take()] == ["base", "other", None]
    schedule.end("other")
    assert schedule.take() is None
    schedule.end("base")
    assert schedule.take() == "late"
    schedule.end("late")
    assert schedule.take() is None


def test_modules_that_need_each_other_do_not_wait_for_ever():
    schedule = Schedule({"a": {"b"}, "b": {"a"}})
    assert schedule.take() == "a"
    assert schedule.take() is None
    schedule.end("a")
    assert schedule.take() == "b"


def test_the_kernels_of_weir_are_all_handed_out():
    schedule = Schedule(kernel_needs(KERNEL_MODULES))
    taken = []
    while name := schedule.take():
        taken.append(name)
        schedule.end(name)
    assert sorted(taken) == sorted(KERNEL_MODULES)


def test_there_are_no_more_processes_than_processors_or_modules(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert [processes_for(missing) for missing in (1, 3, 30)] == [1, 3, PROCESSES_MAX]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert processes_for(30) == 1


KERNEL = """
    from weir.kernels import kernel as compiled


    @compiled("int64(int64)")
    def kernel(value):
        return value + {number}
"""
COMPILE = """
    import logging
    from weir import kernel_workers
    from weir.clock import SystemClock
    from weir.kernel_compilation import compile_kernels
    logging.basicConfig(format="%(message)s", level="INFO")
    kernel_workers.os.sched_getaffinity = lambda pid: {0, 1}
    compile_kernels(lambda progress: print(progress, flush=True), SystemClock())
"""


@pytest.fixture
def package(tmp_path):
    """A copy of Weir of which three small modules are left to compile."""
    shutil.copytree(ROOT / "weir", tmp_path / "weir", ignore=shutil.ignore_patterns("__pycache__"))
    for number, name in enumerate(("first", "second", "third")):
        (tmp_path / "weir" / f"kernel_{name}.py").write_text(textwrap.dedent(KERNEL.format(number=number)))
    file = tmp_path / "weir" / "kernel_compilation.py"
    text = file.read_text()
    begin, end = text.index("KERNEL_MODULES = ("), text.index("#: Of these, modules")
    names = '"weir.kernel_first", "weir.kernel_second", "weir.kernel_third"'
    file.write_text(f"{text[:begin]}KERNEL_MODULES = ({names})\n{text[end:]}")
    return tmp_path


def start(directory):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(COMPILE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
    )


@pytest.mark.scenario
def test_two_that_start_at_once_compile_each_kernel_once(package):
    begun = [start(package) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], told
    lines = [line for output, _ in told for line in output.splitlines()]
    for name in ("first", "second", "third"):
        assert sum(f"weir.kernel_{name}..." in line for line in lines) == 1
        assert sum(f"weir.kernel_{name} " in line for line in lines) == 1
        assert len(list((package / "weir" / "__pycache__").glob(f"kernel_{name}.*.nbi"))) == 1
    assert len(lines) == 6
    assert start(package).communicate(timeout=120) == ("", "")


@pytest.mark.scenario
def test_a_process_that_is_killed_is_told_and_its_module_is_compiled_all_the_same(package):
    killed = package / "weir" / "kernel_second.py"
    killed.write_text(
        "import os, signal, sys\nif sys.argv[0] == '-c' and len(sys.argv) > 1:\n"
        f"    os.kill(os.getpid(), signal.SIGKILL)\n{killed.read_text()}"
    )
    process = start(package)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "the process that compiled weir.kernel_second ended with code -9" in errors
    assert "weir.kernel_second " in output
    assert list((package / "weir" / "__pycache__").glob("kernel_second.*.nbi"))
    assert start(package).communicate(timeout=120)[0] == ""


@pytest.mark.scenario
def test_what_is_wrong_with_a_kernel_is_told_by_the_process_that_needs_it(package):
    (package / "weir" / "kernel_third.py").write_text("import numba\nraise ValueError('no such type')\n")
    process = start(package)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "weir.kernel_third ended with code 1: ValueError: no such type" in errors
    assert errors.endswith("ValueError: no such type\n")
