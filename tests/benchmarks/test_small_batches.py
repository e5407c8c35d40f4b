"""What a small batch costs is measured over as many polls as were asked for."""

from __future__ import annotations

from benchmarks.small_batches import measure


def test_every_poll_is_measured_at_both_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = measure(20, 100, tmp_path / "zout")
    assert figures["polls"] == 20
    for stage in ("source", "consumer"):
        assert 0 < figures[f"{stage}_p10_us"] <= figures[f"{stage}_p50_us"]
