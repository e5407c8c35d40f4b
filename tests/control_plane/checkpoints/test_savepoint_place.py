"""Where a savepoint may go."""

from __future__ import annotations

import pytest

import weir
from control_plane.checkpoints.savepoint_place import refused_place


@pytest.fixture
def graph(tmp_path):
    flow = weir.Dataflow("job")
    rows = flow.source("in", weir.JsonLines(str(tmp_path / "in"), schema={"id": int}))
    rows.sink("out", weir.JsonLinesSink(str(tmp_path / "out")))
    rows.sink("latency", weir.LatencySink(str(tmp_path / "zout"), "run"))
    return flow.build()


@pytest.fixture
def refused(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    return lambda path, store=str(tmp_path / "store"): refused_place(path, graph, store)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}/out", "where sink out writes"),
        ("{}/out/deep/savepoint", "where sink out writes"),
        ("out/../out", "where sink out writes"),
        ("link/savepoint", "where sink out writes"),
        ("zout", "where sink latency writes"),
        ("file://{}/store/job", "would be in the checkpoint store"),
        ("full", "directory full is not empty"),
        ("full/file", "full/file is no directory"),
    ],
)
def test_refused(refused, tmp_path, path, words):
    assert words in refused(path.format(tmp_path))


@pytest.mark.parametrize("path", ["{}/savepoints/monday", "empty", "outside", "s3://bucket/savepoint"])
def test_taken(refused, tmp_path, path):
    assert refused(path.format(tmp_path)) == ""


def test_a_remote_store(refused):
    store = "s3://bucket/store?region=x"
    assert "would be in the checkpoint store" in refused("s3://bucket/store/mine?region=x", store)
    assert refused("s3://bucket/store_2", store) == ""
