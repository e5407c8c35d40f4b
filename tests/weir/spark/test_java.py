from __future__ import annotations

import os
from pathlib import Path

import pytest

from weir.errors import ConfigError
from weir.spark.java import find_java, parse_java_major


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_major_version_is_read(text: str, major: int | None):
    assert parse_java_major(text) == major


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_goes_before_path(tmp_path: Path):
    at_home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "other", "17.0.1")
    path = f"{on_path.parent}{os.pathsep}{os.environ['PATH']}"
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}) == at_home
    assert find_java({"PATH": path}) == on_path


def test_old_java_is_refused(tmp_path: Path):
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(ConfigError, match="is Java 11, Spark needs 17 or newer"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_java_home_without_java_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"JAVA_HOME is .* does not exist"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("script", "arguments"), [("workgen.py", ["--events", "10"]), ("plot.py", ["LATENCIES"])]
)
def test_missing_java_is_one_line(run_script, tmp_path: Path, script: str, arguments: list[str]):
    latencies = tmp_path / "run.txt"
    latencies.write_text("1700000000000,1.000\n")
    arguments = [str(latencies) if argument == "LATENCIES" else argument for argument in arguments]
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": ""}
    done = run_script(script, *arguments, "--out", tmp_path / "out", env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{script}: error: Spark needs Java, and there is no java on PATH and no JAVA_HOME:"
        " install a Java 17+ runtime (Debian: openjdk-17-jre-headless)"
    ]
    assert not (tmp_path / "out").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.txt"]
