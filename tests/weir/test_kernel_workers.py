"""Kernels are compiled side by side, each once on a machine, whoever asks for it."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What another test's process writes at this moment, under a name that is gone when it has.
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
KERNEL = """
    from weir.kernels.declare import kernel as compiled


    @compiled("int64(int64)")
    def number_{number}(value):
        return value + {number}
"""
COMPILE = """
    from weir.console import kernel_compilation
    names = [f"weir.kernel_{n}.number_{n}" for n in range(3)]
    failures = kernel_compilation.compile_kernels(names, lambda name, s: print(name, s, flush=True))
    print(*failures, sep="\\n")
"""


@pytest.fixture
def package(tmp_path):
    """A copy of Weir with three small modules of kernels, and an empty cache."""
    # With what Python has compiled, which is most of the work of each of these processes.
    shutil.copytree(ROOT / "weir", tmp_path / "weir", ignore=UNFINISHED)
    for number in range(3):
        (tmp_path / "weir" / f"kernel_{number}.py").write_text(textwrap.dedent(KERNEL.format(number=number)))
    return tmp_path


def start(directory, code=COMPILE):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), "NUMBA_CACHE_DIR": str(directory / "kernels")},
    )


@pytest.mark.scenario
def test_two_that_start_at_once_compile_each_kernel_once(package):
    begun = [start(package) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], told
    lines = [line.split() for output, _ in told for line in output.splitlines() if line]
    assert len(lines) == 6
    assert sorted(name for name, seconds in lines if float(seconds) > 0) == [
        f"weir.kernel_{number}.number_{number}" for number in range(3)
    ]


@pytest.mark.scenario
def test_a_process_that_is_killed_is_told(package):
    killed = package / "weir" / "kernel_1.py"
    killed.write_text(f"import os\nos.kill(os.getpid(), 9)\n{killed.read_text()}")
    output, errors = start(package).communicate(timeout=120)
    assert "the process that compiled weir.kernel_1.number_1 ended with code -9" in output, errors


@pytest.mark.scenario
def test_a_kernel_compiled_behind_is_used_when_it_is_there_and_not_compiled_twice(package):
    code = """
        from weir.kernels import declare as kernels
        from weir.kernels import behind as kernels_behind
        from weir.kernel_0 import number_0
        kernels.tell_compilations(lambda name, s: print("compiled here"))
        behind = kernels_behind.KernelBehind(number_0)
        print(behind.look())
        behind.did_without(1_000_000)
        behind._process.wait()
        behind._next_s = 0
        print(behind.look(), number_0(5))
    """
    output, errors = start(package, code).communicate(timeout=120)
    assert output.split() == ["False", "True", "5"], errors
