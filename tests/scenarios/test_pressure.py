"""A step that is slower than its source: bounded memory, nothing lost, and it can be cancelled."""

import json

import psutil
import pytest

pytestmark = pytest.mark.scenario

EVENTS = 250_000
#: Two subtasks sleep this long for each row: 250,000 rows of 1,000 bytes take 7 s, and are made in much less.
US_PER_ROW = 56
GROWTH_BYTES_MAX = 100 << 20


@pytest.fixture(scope="module")
def events(tmp_path_factory, write_events):
    return write_events(tmp_path_factory.mktemp("pressure") / "events.jsonl", EVENTS)


def start(cluster, parameters):
    cluster.start_control_plane("flow_slow", parameters)
    cluster.start_task_manager("first")
    cluster.start_task_manager("second")


def test_memory_stays_flat_and_nothing_is_lost(make_cluster, events, tmp_path):
    """Unbounded queues would hold 250 MB."""
    cluster = make_cluster()
    start(cluster, {"input": events, "output": tmp_path / "out", "us_per_row": US_PER_ROW})
    samples = {name: [] for name in cluster.processes}
    pressure = []

    def watch(status):
        if status["totals"]["events_out"] < EVENTS // 20:
            return
        pressure.append(max(item["backpressured_ratio"] for item in status["stages"][0]["subtasks"]))
        for name, process in cluster.processes.items():
            samples[name].append(psutil.Process(process.popen.pid).memory_info().rss)

    cluster.wait_for(
        lambda status: status["totals"]["events_out"] > EVENTS * 0.9, "the rows at the sink", on_status=watch
    )
    assert cluster.wait_ended() == {"control_plane": 0, "first": 0, "second": 0}
    assert max(pressure) > 0.5, "the source was not held back"
    for name, values in samples.items():
        assert len(values) > 10
        assert max(values) - values[0] < GROWTH_BYTES_MAX, name
        assert cluster.processes[name].peak_rss_bytes < 500 << 20, name
    ids = [
        json.loads(line)["id"]
        for part in (tmp_path / "out").glob("part-*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert len(ids) == EVENTS
    assert set(ids) == set(range(EVENTS))


def test_an_overloaded_job_can_be_cancelled(make_cluster, events, tmp_path):
    """50 ms of CPU for each row: all of them would take hours."""
    cluster = make_cluster()
    parameters = {"input": events, "output": tmp_path / "out", "us_per_row": 0, "load_ms": 50}
    start(cluster, parameters)
    cluster.wait_for(
        lambda status: status["stages"][0]["subtasks"][0]["backpressured_ratio"] > 0.3, "back-pressure"
    )
    assert cluster.http("POST", "/cancel")[0] == 202
    assert cluster.wait_ended() == {"control_plane": 3, "first": 0, "second": 0}
