from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.errors import ConfigError, InputError
from workload.latency_files import find_latency_files

LINE = "1700000000000,1.500000\n"


def test_directory_stands_for_its_text_files_and_links_count_once(tmp_path: Path):
    for name in ("b.txt", "a.txt", "notes.md"):
        (tmp_path / name).write_text(LINE)
    (tmp_path / "latest.txt").symlink_to("b.txt")
    (tmp_path / "latest_old.txt").symlink_to("deleted.txt")
    found = find_latency_files([tmp_path, tmp_path / "latest.txt", tmp_path / "a.txt"])
    assert [file.path.name for file in found] == ["a.txt", "b.txt"]


def test_link_leads_to_the_sidecar_of_its_target(tmp_path: Path):
    (tmp_path / "run7.txt").write_text(LINE)
    (tmp_path / "run7.json").write_text(json.dumps({"label": "local\n state", "scale_requested_ms": 1.7e12}))
    (tmp_path / "latest.txt").symlink_to("run7.txt")
    (file,) = find_latency_files([tmp_path / "latest.txt"])
    assert (file.path.name, file.label, file.marks_ms) == ("run7.txt", "local state", (1.7e12,))


def test_sidecar_says_when_scaling_was_over(tmp_path: Path):
    (tmp_path / "run.txt").write_text(LINE)
    (tmp_path / "run.json").write_text('{"scale_requested_ms": [5, 7], "scale_completed_ms": [6, 9]}')
    (file,) = find_latency_files([tmp_path])
    assert (file.marks_ms, file.completed_ms, file.warning) == ((5.0, 7.0), 9.0, None)


BROKEN = ["{", "[1]", '{"scale_requested_ms": ["soon"]}', '{"scale_completed_ms": true}']


@pytest.mark.parametrize("content", BROKEN)
def test_broken_sidecar_is_a_warning(tmp_path: Path, content: str):
    (tmp_path / "run.txt").write_text(LINE)
    (tmp_path / "run.json").write_text(content)
    (file,) = find_latency_files([tmp_path])
    assert (file.label, file.marks_ms) == ("run", ())
    assert file.warning is not None
    assert "run.json" in file.warning


def test_equal_labels_are_told_apart(tmp_path: Path):
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "run.txt").write_text(LINE)
    found = find_latency_files([tmp_path / "one", tmp_path / "two"])
    assert [file.label for file in found] == ["run (one/run)", "run (two/run)"]


def test_unfinished_run_is_a_warning(tmp_path: Path):
    (tmp_path / "run.txt").write_text(LINE)
    (tmp_path / "run.json").write_text('{"status": "running"}')
    (file,) = find_latency_files([tmp_path])
    assert file.warning is not None
    assert "has not finished" in file.warning


def test_files_of_subtasks_are_named(tmp_path: Path):
    for subtask in range(2):
        (tmp_path / f"latest.{subtask}.txt").write_text(LINE)
    with pytest.raises(InputError, match=r"one file per subtask: give .*latest\.0\.txt .*latest\.1\.txt"):
        find_latency_files([tmp_path / "latest.txt"])


def test_missing_and_empty_inputs_are_named(tmp_path: Path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"absent\.txt does not exist"):
        find_latency_files([tmp_path / "absent.txt"])
    with pytest.raises(InputError, match=r"empty\.txt is empty"):
        find_latency_files([tmp_path])
    with pytest.raises(InputError, match=r"none holds no \*\.txt"):
        find_latency_files([tmp_path / "none"])
    with pytest.raises(ConfigError, match="at least one"):
        find_latency_files([])
