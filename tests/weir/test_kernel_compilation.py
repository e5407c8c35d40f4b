"""Kernels: every module with some is known; a cold cache is compiled with progress, a warm one costs nothing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weir import kernel_compilation
from weir.clock import SystemClock

ROOT = Path(__file__).parents[2]
COLD = (
    "from weir.clock import SystemClock; from weir.kernel_compilation import compile_kernels; "
    "compile_kernels(lambda progress: print(progress, flush=True), SystemClock())"
)


def test_modules_with_kernels_are_found_and_no_others():
    names = set(kernel_compilation.kernel_modules())
    assert "weir.key_kernels" in names
    assert not {"weir.errors", "weir.kernel_compilation", "weir.config.models"} & names


def test_the_list_of_modules_is_complete():
    known = [name for name in kernel_compilation.kernel_modules() if not name.startswith("jobs.")]
    assert sorted(known) == sorted(kernel_compilation.KERNEL_MODULES)


def test_warming_up_imports_them_and_says_so(capsys):
    assert kernel_compilation.main() == 0
    printed = capsys.readouterr().out
    for name in kernel_compilation.kernel_modules():
        assert name in sys.modules
        assert f"kernels of {name}: " in printed


def test_the_cache_is_looked_for_where_numba_has_it(monkeypatch, tmp_path):
    from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator

    from weir import key_kernels

    kernel = key_kernels.hash_integers.py_func
    source = Path(key_kernels.__file__)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert InTreeCacheLocator(kernel, str(source)).get_cache_path() == str(
        kernel_compilation.cache_directory(source)
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert UserProvidedCacheLocator(kernel, str(source)).get_cache_path() == str(
        kernel_compilation.cache_directory(source)
    )


def test_a_warm_start_is_silent_and_imports_nothing(monkeypatch):
    kernel_compilation.compile_kernels(lambda progress: None, SystemClock())
    assert not kernel_compilation.kernels_missing()
    monkeypatch.setattr(
        kernel_compilation.importlib, "import_module", lambda name: pytest.fail(f"imports {name}")
    )
    began_s = time.process_time()
    kernel_compilation.compile_kernels(lambda progress: pytest.fail(str(progress)), SystemClock())
    # Usually a millisecond or two.
    assert time.process_time() - began_s < 0.2


@pytest.fixture
def one_kernel(tmp_path):
    """A copy of Weir's package of which only the module with the cheapest kernel is left to compile."""
    shutil.copytree(ROOT / "weir", tmp_path / "weir", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "weir" / "kernel_compilation.py"
    text = file.read_text()
    begin, end = text.index("KERNEL_MODULES = ("), text.index("#: Of these, modules")
    file.write_text(
        f'{text[:begin]}KERNEL_MODULES = ("weir.operators.text_masks", "weir.operators.stateless.busy")\n{text[end:]}'
    )
    return tmp_path


def run(directory, code=COLD, **environment):
    variables = {**os.environ, "PYTHONPATH": str(directory), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory, env=variables)


@pytest.mark.scenario
def test_a_cold_cache_is_compiled_once_with_progress(one_kernel, tmp_path):
    cold = run(one_kernel).stdout.splitlines()
    assert cold[0] == "compiling kernels (once): 2 of 2, weir.operators.stateless.busy..."
    assert cold[1].startswith("compiling kernels (once): 2 of 2, weir.operators.stateless.busy ")
    assert cold[1].endswith(" s")
    assert len(cold) == 2
    assert run(one_kernel).stdout == ""
    # As after an upgrade that changed nothing in the module: looked at, and found current.
    os.utime(one_kernel / "weir" / "operators" / "stateless" / "busy.py")
    assert run(one_kernel).stdout == ""
    changed = one_kernel / "weir" / "operators" / "stateless" / "busy.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    assert len(run(one_kernel).stdout.splitlines()) == 2


@pytest.mark.scenario
def test_a_package_that_cannot_be_written_has_its_cache_elsewhere(one_kernel, tmp_path):
    """Numba would raise where there is no home directory either. Superusers may write anywhere: told by a patch."""
    elsewhere = "import os; os.access = lambda *_: False\n" + COLD
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert len(run(one_kernel, elsewhere, **cache).stdout.splitlines()) == 2
    assert list((tmp_path / "cache" / "weir" / "kernels").rglob("busy.*.nbi"))
    assert run(one_kernel, elsewhere, **cache).stdout == ""
    nowhere = run(one_kernel, elsewhere, XDG_CACHE_HOME="/proc/nowhere")
    assert len(nowhere.stdout.splitlines()) == 2
    assert "set NUMBA_CACHE_DIR" in nowhere.stderr
