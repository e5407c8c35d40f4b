"""The checkpoint and recovery benchmarks: their sink and arithmetic, and runs with little state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.checkpoint import CheckpointOptions
from benchmarks.checkpoint import run as run_checkpoint
from benchmarks.checkpoint_figures import change_figures, checkpoint_figures, steady_checkpoints
from benchmarks.record_sink import RecordSink, read_records
from benchmarks.recovery import RecoveryOptions, kill_figures
from benchmarks.recovery import run as run_recovery
from benchmarks.results import BenchmarkError
from benchmarks.sustained import OverloadedError
from weir.author.operator import OperatorContext
from weir.rows.records import with_system_columns


def batch(*ids):
    return with_system_columns(pa.record_batch({"id": pa.array(ids), "n": pa.array([1] * len(ids))}), 1, 2)


def opened(directory, generation, restored):
    sink = RecordSink(str(directory))
    sink.open(OperatorContext("job", "record", 1, 0, 1, generation=generation, restored=restored))
    return sink


def test_records_that_were_rolled_back_do_not_count(tmp_path):
    sink = opened(tmp_path, 1, {})
    sink.process(batch(1, 2))
    sink.snapshot(1)
    assert len(read_records(tmp_path)) == 0
    sink.commit(1)
    sink.process(batch(3))
    manifest = sink.snapshot(2)
    sink.process(batch(4))
    sink.snapshot(3)
    sink.process(batch(5))
    assert read_records(tmp_path)[:, 0].tolist() == [1, 2]
    successor = opened(tmp_path, 2, {0: manifest})
    # The zombie's commit comes too late.
    sink.commit(3)
    sink.close()
    successor.process(batch(4, 5))
    successor.snapshot(0)
    successor.commit(0)
    records = read_records(tmp_path)
    assert records[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert records[:, 1].tolist() == [1] * 5
    assert (np.diff(records[:, 2]) >= 0).all()
    assert read_records(tmp_path, 2)[:, 0].tolist() == [4, 5]
    assert not list(tmp_path.glob(".*"))


def checkpoint(number, state="COMPLETE", duration_ms=100, new_bytes=10):
    return {
        "id": number,
        "state": state,
        "started_ms": 1000 * number,
        "duration_ms": duration_ms,
        "new_bytes": new_bytes,
        "size_bytes": 7,
        "cause": "the disk is full" if state == "FAILED" else "",
    }


def test_checkpoints_of_the_steady_phase():
    found = [
        checkpoint(4, duration_ms=300),
        checkpoint(3, "FAILED"),
        checkpoint(2, new_bytes=30),
        checkpoint(1),
    ]
    waiting = {**checkpoint(5), "started_ms": None}
    steady = steady_checkpoints([waiting, *found], 2000, 5000)
    assert [item["id"] for item in steady] == [2, 3, 4]
    figures = checkpoint_figures(steady)
    assert (figures["duration_ms"], figures["duration_ms_max"]) == (200, 300)
    assert (figures["new_bytes"], figures["new_bytes_max"]) == (20, 30)
    assert (figures["checkpoints"], figures["checkpoints_failed"]) == (2, 1)
    with pytest.raises(BenchmarkError, match="no checkpoint was made in the steady phase: the disk is full"):
        checkpoint_figures([checkpoint(3, "FAILED")])


def test_a_key_that_changes_twice_counts_once():
    # Key, count, arrival in ms: with one of 2 written anew, those whose sum is even.
    rows = [(1, 1, 500), (1, 2, 1100), (1, 3, 1200), (2, 2, 1300), (2, 4, 1400), (3, 2, 1500), (1, 5, 2500)]
    records = np.array([(key, count, 1000 * time_ms, 0) for key, count, time_ms in rows])
    figures = change_figures(records, [checkpoint(1), checkpoint(2)], 100, 10, 2)
    assert figures == {"changed_bytes": 200, "changed_share": 0.2, "changed_counts": 3}
    assert change_figures(records, [checkpoint(1)], 100, 10, 2)["changed_share"] is None


def test_the_share_that_changes_follows_the_state():
    options = CheckpointOptions(state_bytes=1_024_000_000, rate=50_000)
    assert options.load().rewrite_every == 5
    assert options.load(0.1).rewrite_every == 50
    assert options.load(0.1).keys == 100_000


def test_figures_of_a_kill():
    arrivals = np.arange(0, 10_000_000, 1000)
    records = np.stack([arrivals, arrivals, arrivals, arrivals - 2000], axis=1)
    killed_us = 4_000_000
    late = (arrivals > killed_us) & (arrivals < 6_250_000)
    records[late, 3] -= 500_000
    gone = (arrivals >= killed_us) & (arrivals < 5_500_000)
    records = records[~gone]
    figures = kill_figures(records, records[records[:, 2] >= killed_us], 2_000_000, killed_us)
    assert figures["first_output_ms"] == 1500
    # Ten of a second may be late.
    assert figures["caught_up_ms"] == 2300
    assert figures["before"]["events"] == 2000
    never = kill_figures(records, records[(records[:, 2] > 5e6) & (records[:, 2] < 6.2e6)], 0, killed_us)
    assert (never["caught_up_ms"], never["caught_up"]) == (None, 0)
    with pytest.raises(BenchmarkError, match="nothing was delivered after the kill"):
        kill_figures(records, records[:0], 2_000_000, killed_us)
    with pytest.raises(OverloadedError, match="nothing is delivered in time"):
        kill_figures(records[records[:, 2] > killed_us], records, 2_000_000, killed_us)


@pytest.mark.scenario
def test_checkpoints_of_little_state(tmp_path, forked):
    options = CheckpointOptions(
        state_bytes=1e6,
        rate=2000,
        duration_s=4,
        settle_s=0.2,
        interval_ms=300,
        events=20_000,
        pairs=1,
        compare=False,
        data_root=tmp_path,
    )
    document = run_checkpoint(options, lambda step, done: None).as_json()
    assert (document["lost"], document["duplicated"]) == (0, 0)
    assert document["checkpoints"] >= 2
    assert document["checkpoints_failed"] == 0
    assert document["duration_ms"] > 0
    assert document["new_bytes"] > document["changed_bytes"] > 0
    assert 0 < document["p50_ms"] <= document["p99_ms"]
    assert document["throughput_ratio"] > 0
    judged = {line["metric"] for line in document["bars"]}
    assert judged == {"throughput_ratio", "duration_ms", "lost", "duplicated"}


@pytest.mark.scenario
def test_recovery_of_little_state(tmp_path, forked):
    options = RecoveryOptions(
        state_bytes=1e6,
        rate=2000,
        duration_s=8,
        settle_s=0.2,
        before_s=1,
        compare=False,
        data_root=tmp_path,
    )
    document = run_recovery(options, lambda step, done: None).as_json()
    assert (document["lost"], document["duplicated"]) == (0, 0)
    assert document["restarts"] >= 1
    assert document["first_output_ms"] > 0
    assert document["before"]["events"] > 0
    assert document["after"]["events"] > 0
