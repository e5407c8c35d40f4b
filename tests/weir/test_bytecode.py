"""Compiled modules are kept where Python was told to keep none beside the sources."""

import os
import subprocess
import sys

import pytest

from weir.process import bytecode

CODE = "from weir.process import bytecode; bytecode.keep(); import weir.spelling; print(weir.spelling.__cached__)"


@pytest.mark.parametrize("told", ["1", ""])
def test_where_a_process_keeps_them(tmp_path, told):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": told}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    code = CODE.replace("keep()", "keep()" if told else "variables() == {} or 1 / 0")
    code = f"from weir.process import bytecode; bytecode._is_compiled = lambda package: False; {code}"
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    cached = found.stdout.decode().strip()
    assert cached.startswith(str(tmp_path / "weir" / "bytecode")) == bool(told)
    assert os.path.exists(cached)


def test_nothing_changes_where_nothing_can_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(bytecode, "_is_compiled", lambda package: False)
    assert bytecode.variables() == {}
