"""Compiled kernels are as new as all their sources, shared between checkouts, and compiled when they are called."""

import importlib
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import weir
from tests.weir.test_kernel_workers import ROOT, UNFINISHED
from weir.console import kernel_compilation
from weir.kernels import cache as kernel_cache
from weir.kernels.cache import DIGESTS_MAX, KernelCache, directory_of
from weir.kernels.sources import digest_of
from weir.plan.stages import physical_graph

PART = "from weir.kernels.declare import kernel_part\n\n\n@kernel_part\ndef part(value):\n    return value + {number}\n"
KERNEL = """
from weir.kernels.declare import kernel
from weir.kernel_of_parts import part


@kernel("int64(int64)", "float64(float64)")
def whole(value):
    return part(value) * 2
"""
CALL = """
from weir.kernels.declare import tell_compilations
tell_compilations(lambda name, seconds: seconds is None and print("compiled", name))
from weir.kernel_whole import whole
print(whole(1), whole(1.5))
"""

FIRST = """
from weir.kernels import declare
import weir.kernel_whole
declare.load_first_kernel()
print("weir.kernel_whole.whole" in declare._waiting)
"""

HABIT = """
from weir.kernels import declare, habits
habits.load_habitual(["b:B", "a:A"])
print("weir.kernel_whole" in __import__("sys").modules and not declare._waiting)
from weir.kernel_whole import whole
whole(1)
habits.note_habitual(["a:A", "b:B", "a:A"])
"""


@pytest.fixture
def checkouts(tmp_path):
    """Two copies of Weir with a kernel and its part in modules of their own."""
    for name in ("one", "two"):
        # With what Python has compiled, which is most of the work of each of these processes.
        shutil.copytree(ROOT / "weir", tmp_path / name / "weir", ignore=UNFINISHED)
        (tmp_path / name / "weir" / "kernel_of_parts.py").write_text(PART.format(number=1))
        (tmp_path / name / "weir" / "kernel_whole.py").write_text(KERNEL)
    return tmp_path


def call(checkouts, name, code=CALL, **environment):
    variables = {
        **os.environ,
        "NUMBA_CACHE_DIR": "",
        "XDG_CACHE_HOME": str(checkouts / "cache"),
        **environment,
    }
    # Python itself compares time stamps of its compiled modules: of the part that changes there must be none.
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    variables["PYTHONPATH"] = str(checkouts / name)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=checkouts / name, env=variables, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


@pytest.mark.scenario
def test_what_a_kind_of_job_has_called_is_there_before_it_is_called_again(checkouts):
    assert call(checkouts, "one", HABIT)[0] == ["False"]
    assert call(checkouts, "one", HABIT)[0] == ["True"]
    [path] = (checkouts / "cache" / "weir" / "kernels" / "habits").iterdir()
    path.write_text("os.path.join\nweir.no_such.kernel\nweir.kernel_whole.whole\n\n")
    assert call(checkouts, "one", HABIT)[0] == ["True"]


@pytest.mark.scenario
def test_a_part_that_changes_under_a_warm_cache_is_compiled_anew(checkouts):
    assert call(checkouts, "one", FIRST)[0] == ["True"]
    assert call(checkouts, "one")[0] == ["compiled weir.kernel_whole.whole", "4 5.0"]
    assert call(checkouts, "one")[0] == ["4 5.0"]
    # A process that starts takes one that the disk has, and compiles none.
    assert call(checkouts, "one", FIRST)[0] == ["False"]
    # Another checkout, and an installation of the same version, find it.
    assert call(checkouts, "two")[0] == ["4 5.0"]
    part = checkouts / "one" / "weir" / "kernel_of_parts.py"
    before = part.stat()
    part.write_text(PART.format(number=2))
    # Nothing but the content tells.
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert call(checkouts, "one")[0] == ["compiled weir.kernel_whole.whole", "6 7.0"]
    assert call(checkouts, "two")[0] == ["4 5.0"]


@pytest.mark.scenario
def test_what_is_damaged_is_compiled_again_and_what_cannot_be_kept_is_compiled_at_each_start(checkouts):
    call(checkouts, "one")
    for file in (checkouts / "cache" / "weir" / "kernels").rglob("whole*.nbc"):
        file.write_bytes(file.read_bytes()[:100])
    for file in (checkouts / "cache" / "weir" / "kernels").rglob("*.nbc"):
        file.write_bytes(b"\x80\x05nothing")
    lines, errors = call(checkouts, "one")
    assert lines == ["compiled weir.kernel_whole.whole", "4 5.0"]
    assert "this kernel is compiled again" in errors
    assert call(checkouts, "one")[0] == ["4 5.0"]
    lines, errors = call(checkouts, "one", XDG_CACHE_HOME="/proc/nowhere")
    assert lines == ["compiled weir.kernel_whole.whole", "4 5.0"]
    assert "set NUMBA_CACHE_DIR" in errors


def test_older_digests_are_removed(tmp_path, monkeypatch):
    from weir.kernels import cache as kernel_cache
    from weir.keys import key_kernels

    monkeypatch.setattr(kernel_cache, "cache_directory", lambda: tmp_path)
    function = key_kernels.hash_integers.py_func
    for number in range(20):
        old = tmp_path / f"weir.keys.key_kernels-{number}"
        old.mkdir()
        os.utime(old, (number, number))
    kernel_cache.KernelCache(function)._impl.locator.ensure_cache_path()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        directory_of(function).name,
        *(f"weir.keys.key_kernels-{n}" for n in range(21 - DIGESTS_MAX, 20)),
    }


def test_a_digest_has_all_that_a_module_imports(tmp_path):
    package = tmp_path / "made"
    package.mkdir()
    (package / "whole.py").write_text("def late():\n    from made import part\n")
    (package / "part.py").write_text("from made.constants import (\n    ONE,\n)\n")
    digests = set()
    for content in ("ONE = 1\n", "ONE = 2\n"):
        digest_of.cache_clear()
        (package / "constants.py").write_text(content)
        digests.add(digest_of(package / "whole.py"))
    assert len(digests) == 2


def test_a_job_needs_the_kernels_of_its_steps():
    flow = weir.Dataflow("counts")
    events = flow.source("events", weir.JsonLines("events.jsonl", schema={"id": int, "name": str}))
    events.key_by("name").count("count").sink("out", weir.Print())
    names = set(kernel_compilation.kernels_of(physical_graph(flow.build())))
    assert "weir.operators.sources.json.json_scan.scan_lines" in names
    assert "weir.keys.key_kernels.hash_bytes" in names
    assert not any("csv" in name or "parquet" in name or "join" in name for name in names)
    assert names < set(kernel_compilation.all_kernels())


def test_a_call_takes_the_signatures_that_were_declared():
    from weir.kernels.declare import kernel

    @kernel("int64(int64)", "float64(float64)")
    def double(value):
        return value * 2

    assert double.signatures == []
    assert (double(1.5), double(2)) == (3.0, 4)
    assert len(double.signatures) == 2


HALF_KEPT = """
from weir.kernels.declare import kernel


@kernel("int64(int64)", "float64(float64)")
def double(value):
    return value * 2
"""


def test_a_kernel_of_which_the_disk_has_one_signature_is_called_with_both(tmp_path, monkeypatch):
    """Another process is about to write the other one, or was killed before."""
    monkeypatch.setattr(kernel_cache, "cache_directory", lambda: tmp_path / "kept")
    (tmp_path / "half_kept.py").write_text(HALF_KEPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    saved = []

    def save_the_first(self, sig, data):
        saved.append(sig)
        if len(saved) == 1:
            save(self, sig, data)

    save = KernelCache.save_overload
    monkeypatch.setattr(KernelCache, "save_overload", save_the_first)
    for _ in range(2):
        monkeypatch.delitem(sys.modules, "half_kept", raising=False)
        double = importlib.import_module("half_kept").double
        assert [double(1), double(1.5), double(2), double(2.5)] == [2, 3.0, 4, 5.0]
    # The first one was taken from the disk.
    assert len(saved) == 3
