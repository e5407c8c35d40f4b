from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.errors import InputError
from workload.directory import check_target, publish, read_marker, staging_directory


def put(target: Path, text: str, *, overwrite: bool = False) -> None:
    with staging_directory(target) as staging:
        part = staging / "some name.jsonl"
        part.write_text(text)
        publish([part], {"parameters": {}}, staging, target, overwrite=overwrite)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_workload_is_put_in_place_and_nothing_is_left(tmp_path: Path):
    target = tmp_path / "deep" / "events"
    put(target, "1\n")
    assert names(target) == ["_workload.json", "part-00000.jsonl"]
    assert names(target.parent) == ["events"]
    assert read_marker(target) == {"format": "weir-workload/1", "parameters": {}}


def test_earlier_workload_is_replaced_only_when_told(tmp_path: Path):
    target = tmp_path / "events"
    put(target, "old\n")
    with pytest.raises(InputError, match="add --overwrite"):
        put(target, "new\n")
    assert (target / "part-00000.jsonl").read_text() == "old\n"
    put(target, "new\n", overwrite=True)
    assert (target / "part-00000.jsonl").read_text() == "new\n"
    assert names(tmp_path) == ["events"]


def test_empty_directory_may_be_filled(tmp_path: Path):
    target = tmp_path / "events"
    target.mkdir()
    put(target, "1\n")
    assert (target / "part-00000.jsonl").read_text() == "1\n"


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"format": "other"}'])
def test_directory_of_others_is_never_touched(tmp_path: Path, marker: str | None):
    (tmp_path / "part-00000.jsonl").write_text("thesis")
    if marker is not None:
        (tmp_path / "_workload.json").write_text(marker)
    with pytest.raises(InputError, match="left alone"):
        check_target(tmp_path, overwrite=True)


def test_foreign_file_beside_our_parts_is_never_deleted(tmp_path: Path):
    target = tmp_path / "events"
    put(target, "1\n")
    (target / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        put(target, "2\n", overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"


def test_file_is_refused(tmp_path: Path):
    (tmp_path / "events").write_text("")
    with pytest.raises(InputError, match="is a file"):
        check_target(tmp_path / "events", overwrite=True)


def test_failed_run_leaves_the_earlier_workload(tmp_path: Path):
    target = tmp_path / "events"
    put(target, "old\n")

    def failing_run():
        with staging_directory(target) as staging:
            (staging / "half").write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing_run()
    assert names(tmp_path) == ["events"]
    assert (target / "part-00000.jsonl").read_text() == "old\n"


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path):
    ours = tmp_path / f".events.partial-{dead_pid()}"
    unmarked = tmp_path / ".events.partial-4194305"  # beyond Linux's largest process id
    running = tmp_path / f".events.partial-{os.getppid()}"
    for directory in (ours, unmarked, running):
        directory.mkdir()
    for directory in (ours, running):
        (directory / "_partial.json").write_text("{}")
    put(tmp_path / "events", "1\n")
    assert set(names(tmp_path)) == {"events", unmarked.name, running.name}


def test_earlier_workload_is_given_back_after_a_kill_between_the_renames(tmp_path: Path):
    target = tmp_path / "events"
    put(target, "old\n")
    killed = tmp_path / f".events.partial-{dead_pid()}"
    killed.mkdir()
    (killed / "_partial.json").write_text(json.dumps({}))
    target.rename(killed / "earlier")
    with staging_directory(target):
        assert (target / "part-00000.jsonl").read_text() == "old\n"
