from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from weir.author.operator import OperatorContext
from weir.errors import InputError, StateError
from weir.operators.sinks.latency_format import LatencyText
from weir.operators.sinks.latency_sink import LatencySink
from weir.rows.records import with_system_columns
from weir.specs import LatencySinkSpec
from weir.testing.manual_clock import ManualClock

START_US = 1_700_000_000_000_000


def batch(ingest_us):
    times = np.array(ingest_us, dtype=np.int64)
    return with_system_columns(pa.record_batch({"id": pa.array(range(len(times)))}), times // 1000, times)


def opened(directory, clock, subtask=0, parallelism=1, **context):
    sink = LatencySink(LatencySinkSpec(str(directory), "run"))
    sink.open(
        OperatorContext(
            "job",
            "latency",
            4,
            subtask,
            parallelism,
            job_start_us=START_US,
            clock=clock,
            run_facts={"batch_size": 7, "odd": pa.int64()},
            **context,
        )
    )
    return sink


def test_one_line_per_event_and_a_sidecar(tmp_path):
    clock = ManualClock(START_US)
    sink = opened(tmp_path, clock)
    assert json.loads((tmp_path / "latest.json").read_text())["status"] == "running"
    clock.advance_ms(1000)
    now = clock.now_us()
    sink.process(batch([now - 1, now - 12_345, now, now - 1_000_000, now + 1_500]))
    clock.advance_ms(1)
    sink.process(batch([now]))
    sink.flush()
    expected = [
        "1700000001000,0.001",
        "1700000001000,12.345",
        "1700000001000,0.000",
        "1700000001000,1000.000",
        "1700000001000,-1.500",
        "1700000001001,1.000",
    ]
    assert (tmp_path / "latest.txt").read_text().splitlines() == expected
    sink.finish()
    sink.close()
    assert (tmp_path / "latest.txt").resolve().name == "run-20231114-221320.txt"
    facts = json.loads((tmp_path / "run-20231114-221320.json").read_text())
    assert facts["status"] == "finished"
    assert facts["run"]["batch_size"] == 7
    assert (facts["start_epoch_ms"], facts["end_epoch_ms"]) == (START_US // 1000, clock.now_us() // 1000)
    assert (facts["events"], facts["latency_ms_min"], facts["latency_ms_max"]) == (6, -1.5, 1000.0)
    assert facts["latency_ms_p50"] == 0.001


def test_earlier_runs_are_kept_and_latest_moves(tmp_path):
    for events in (1, 2):
        sink = opened(tmp_path, ManualClock(START_US))
        sink.process(batch([START_US] * events))
        sink.finish()
        sink.close()
    assert len((tmp_path / "run-20231114-221320.txt").read_text().splitlines()) == 1
    assert len((tmp_path / "run-20231114-221320-2.txt").read_text().splitlines()) == 2
    assert (tmp_path / "latest.txt").readlink().name == "run-20231114-221320-2.txt"


def test_subtasks_have_their_own_files_and_stale_links_go(tmp_path):
    for subtask in (0, 1):
        opened(tmp_path, ManualClock(START_US), subtask, 2).close()
    assert {path.name for path in tmp_path.glob("latest*")} == {
        "latest.0.txt",
        "latest.1.txt",
        "latest.0.json",
        "latest.1.json",
    }
    assert json.loads((tmp_path / "latest.1.json").read_text())["status"] == "stopped"
    opened(tmp_path, ManualClock(START_US)).close()
    assert {path.name for path in tmp_path.glob("latest*")} == {"latest.txt", "latest.json"}
    assert len(list(tmp_path.glob("run-*.1.txt"))) == 1


def test_unwritable_directory_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        opened(tmp_path / "file", ManualClock(START_US))


def test_percentiles_agree_with_numpy():
    rng = np.random.default_rng(3)
    latencies = np.concatenate([rng.integers(0, 3000, 5000), rng.lognormal(10, 2, 5000).astype(np.int64)])
    text = LatencyText()
    for part in np.array_split(latencies, 7):
        lines = bytes(text.add(START_US, START_US - part)).splitlines()
        assert [line.split(b",")[1] for line in lines] == [b"%.3f" % (us / 1000) for us in part]
    for percent in (1, 50, 95, 99, 100):
        exact = np.percentile(latencies, percent, method="inverted_cdf") / 1000
        assert text.percentile_ms(percent) == pytest.approx(exact, rel=0.001)
    assert text.summary()["latency_ms_mean"] == pytest.approx(latencies.mean() / 1000)


def test_no_events_no_percentiles():
    assert LatencyText().summary()["latency_ms_p99"] is None


def snapshot(sink, checkpoint=1):
    """As it comes back from a manifest."""
    return json.loads(json.dumps(sink.snapshot(checkpoint)))


def write(sink, *latencies_us):
    sink.process(batch([sink._context.clock.now_us() - latency for latency in latencies_us]))


def written(path):
    return [round(float(line.split(",")[1]) * 1000) for line in path.read_text().splitlines()]


def facts(path):
    return json.loads(path.with_suffix(".json").read_text())


def test_a_restart_goes_on_behind_the_checkpoint_in_the_same_file(tmp_path):
    first = opened(tmp_path, ManualClock(START_US))
    write(first, 10, 20, 5000)
    restored = {0: snapshot(first)}
    write(first, 30, 40)
    first.flush()
    later = ManualClock(START_US + 5_000_000)
    second = opened(tmp_path, later, generation=2, restored=restored)
    assert second.path == first.path
    # The first one only slept: it writes on, and marks its run as stopped; nobody sees either.
    write(first, 50)
    first.flush()
    first.close()
    write(second, 30, 40, 60)
    second.finish()
    third = opened(tmp_path, later, generation=3, restored={0: snapshot(second, 0)})
    assert facts(third.path)["status"] == "running"
    third.finish()
    third.close()
    second.close()
    path = (tmp_path / "latest.txt").resolve()
    assert written(path) == [10, 20, 5000, 30, 40, 60]
    found = facts(path)
    assert (found["status"], found["generation"], found["restarts"], found["events"]) == ("finished", 3, 2, 6)
    assert (found["latency_ms_min"], found["latency_ms_max"]) == (0.01, 5.0)
    assert found["latency_ms_mean"] == pytest.approx(sum([10, 20, 5000, 30, 40, 60]) / 6000)
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, path.with_suffix(".json").name, *LINKS}


LINKS = ("latest.txt", "latest.json")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_other_subtasks_share_the_files_of_a_run(tmp_path, before, after):
    clock = ManualClock(START_US)
    sinks = [opened(tmp_path, clock, index, before) for index in range(before)]
    for index, sink in enumerate(sinks):
        write(sink, 10 + index)
    restored = {index: snapshot(sink) for index, sink in enumerate(sinks)}
    for sink in sinks:
        write(sink, 999)
        sink.flush()
    successors = [
        opened(
            tmp_path,
            clock,
            index,
            after,
            generation=2,
            restored=restored,
            subtask_indices=tuple(range(after)),
        )
        for index in range(after)
    ]
    for index, sink in enumerate(successors):
        write(sink, 20 + index)
        sink.finish()
    for sink in (*successors, *sinks):
        sink.close()
    found = [latency for path in sorted(tmp_path.glob("latest*.txt")) for latency in written(path)]
    assert sorted(found) == [10 + n for n in range(before)] + [20 + n for n in range(after)]
    assert len(list(tmp_path.glob("run-*.txt"))) == max(before, after)


def test_a_machine_without_the_file_begins_a_new_one(tmp_path, caplog):
    first = opened(tmp_path / "here", ManualClock(START_US))
    write(first, 10)
    second = opened(tmp_path / "there", ManualClock(START_US), generation=2, restored={0: snapshot(first)})
    write(second, 20)
    second.finish()
    second.close()
    first.close()
    assert "up to the checkpoint are not in" in caplog.text
    assert written(second.path) == [20]
    assert facts(second.path)["events"] == 1


@pytest.fixture
def fsyncs(monkeypatch):
    """Sizes of the files that were brought to the disk, as they were then."""
    sizes, fsync = [], os.fsync

    def noting(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return sizes


def test_rows_do_not_wait_for_the_disk_but_a_checkpoint_does(tmp_path, fsyncs):
    sink = opened(tmp_path, ManualClock(START_US))
    write(sink, 10)
    told = snapshot(sink)["bytes"]
    assert fsyncs == []
    with ThreadPoolExecutor(1) as another_thread:
        another_thread.submit(sink.sync).result()
        assert fsyncs == [told]
        # Nothing came since, and what is there already needs no open file.
        snapshot(sink, 2)
        sink.close()
        another_thread.submit(sink.sync).result()
    assert fsyncs == [told]


def test_what_a_sink_did_not_bring_to_the_disk_before_it_was_closed_is_in_no_checkpoint(tmp_path):
    sink = opened(tmp_path, ManualClock(START_US))
    write(sink, 10)
    snapshot(sink)
    sink.close()
    with pytest.raises(InputError, match="was closed before its lines were on the disk"):
        sink.sync()


def test_a_full_disk_fails_the_checkpoint(tmp_path, monkeypatch):
    sink = opened(tmp_path, ManualClock(START_US))
    write(sink, 10)
    snapshot(sink)

    def fails(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(InputError, match="No space left on device; make room there"):
            sink.sync()
    sink.close()


def test_a_foreign_snapshot_is_refused(tmp_path):
    with pytest.raises(StateError, match="something else than a latency file of version 1"):
        opened(tmp_path, ManualClock(START_US), generation=2, restored={0: {"kind": "two_phase_sink"}})


@pytest.mark.parametrize("latency_us", [-7, 0, 2047, 2048, 4095, 4096, 1_234_567, 2**50 + 1])
def test_a_snapshot_has_the_greatest_latency_however_large_it_is(latency_us):
    text, restored = LatencyText(), LatencyText()
    text.add(START_US, np.array([START_US - 3, START_US - latency_us], dtype=np.int64))
    restored.restore(text.state())
    assert sum(text.state()["buckets"][1]) == 2
    assert restored.percentile_ms(100) == text.percentile_ms(100)


#: Of these latencies; numbers of buckets are in snapshots, and mean the same to every program that reads them.
GOLDEN_US = [-7, 0, 5, 2047, 2048, 2049, 4095, 4096, 5000, 5000, 1_234_567, 2**40 + 1]
GOLDEN_STATE = {
    "events": 12,
    "totals_us": [1_099_512_886_677, -7, 1_099_511_627_777],
    "buckets": [[0, 5, 2047, 2048, 3071, 3072, 3298, 11_445, 31_744], [2, 1, 1, 2, 1, 1, 2, 1, 1]],
}


def test_golden_statistics():
    text, restored = LatencyText(), LatencyText()
    text.add(START_US, np.array([START_US - latency_us for latency_us in GOLDEN_US], dtype=np.int64))
    assert text.state() == GOLDEN_STATE
    restored.restore(GOLDEN_STATE)
    # Above 2.047 ms the middles of buckets.
    told = [restored.percentile_ms(percent) for percent in (10, 40, 60, 80, 90)]
    assert told == [0.0, 2.049, 4.098, 5.002, 1234.432]
    assert restored.state() == GOLDEN_STATE
