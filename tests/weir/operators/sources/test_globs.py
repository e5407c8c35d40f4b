"""Globs with ``**``: what Python's glob finds, but each folder is searched once, whatever links there are."""

from __future__ import annotations

import glob
import os
import random

import pytest

import weir
from weir.operators.sources.files.local_input import list_input_files


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"id": 1}\n')


def test_they_match_as_everywhere(tmp_path, monkeypatch):
    rng = random.Random(3)
    for _ in range(60):
        parts = [rng.choice(["a", "b", "day=1", ".h", "[x]", "é"]) for _ in range(rng.randrange(4))]
        touch(tmp_path.joinpath("top", *parts, rng.choice(["f.json", "g.json", "h.csv"])))
    monkeypatch.chdir(tmp_path)
    patterns = [
        "top/**/*.json",
        "**/*.json",
        "top/**",
        "t*/a/**/b/*",
        "**/b/**/g.json",
        "top/**/.h/*",
        "no/**/*",
    ]
    for pattern in [*patterns, *(f"{tmp_path}/{pattern}" for pattern in patterns)]:
        expected = {path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}
        # Hidden folders are searched where the pattern names them.
        visible = {path for path in expected if "/.h/" not in path[len(str(tmp_path)) :] or ".h" in pattern}
        assert set(list_input_files(pattern, may_be_empty=True)) == visible, pattern


def test_a_link_to_a_folder_that_is_found_brings_nothing_twice(tmp_path):
    touch(tmp_path / "logs/2026-11-23/a.json")
    touch(tmp_path / "logs/2026-11-24/a.json")
    (tmp_path / "logs/0-latest").symlink_to("2026-11-24")
    flow = weir.Dataflow("links")
    source = weir.JsonLines(f"{tmp_path}/logs/**/*.json", schema={"id": int})
    flow.source("rows", source).sink("out", weir.Collect())
    assert len(weir.run(flow)["out"]) == 2
    assert list_input_files(f"{tmp_path}/logs/**") == [
        str(tmp_path / f"logs/2026-11-{day}/a.json") for day in (23, 24)
    ]


def test_links_lead_out_of_the_folder_but_not_around(tmp_path):
    touch(tmp_path / "in/x/y/a.json")
    touch(tmp_path / "elsewhere/b.json")
    (tmp_path / "in/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/x/up").symlink_to(tmp_path / "in")
    (tmp_path / "in/x/y/up").symlink_to(tmp_path / "in")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "in/x")
    (tmp_path / "in/broken").symlink_to("nowhere")
    (tmp_path / "in/itself").symlink_to("itself")
    assert list_input_files(f"{tmp_path}/in/**/*.json") == [
        str(tmp_path / "in/out/b.json"),
        str(tmp_path / "in/x/y/a.json"),
    ]


@pytest.mark.parametrize("pattern", ["in/**/*.json", "in/*/*.json"])
def test_a_folder_that_is_a_link_only_is_searched(tmp_path, pattern):
    touch(tmp_path / "elsewhere/b.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    assert list_input_files(f"{tmp_path}/{pattern}") == [str(tmp_path / "in/link/b.json")]
