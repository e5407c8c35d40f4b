"""What a scrape shows, that it costs nothing between scrapes, and how serving and pushing fail."""

import contextlib
import logging
import socket
import threading
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from weir.errors import AddressInUseError, ConfigError
from weir.metrics import (
    DEFINITIONS,
    JobFacts,
    JobMetrics,
    LatencyMetrics,
    LatencyRecorder,
    MetricsPusher,
    QuestionMetrics,
    StoreMetrics,
    SubtaskLabels,
    SubtaskMetrics,
    register_process_metrics,
    serve_metrics,
)
from weir.protocol.job.latency_share import BUCKETS_MS
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.testing.manual_clock import ManualClock
from weir.types import StoreStats, SubtaskId, TableStats

LABELS = SubtaskLabels("server_count", 3, "count -> sink", 1)
SHOWN = {"job": "server_count", "stage": "3", "operator": "count -> sink", "subtask": "1"}


@dataclass
class Counters:
    records_in: int = 0
    batches_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    batches_out: int = 0
    bytes_out: int = 0
    records_rejected: int = 0
    records_late: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    backpressured_s: float = 0.0
    output_queued_rows: int = 0
    output_queued_age_s: float = 0.0
    watermark_ms: int = WATERMARK_MIN_MS
    restore_groups: int = 0
    restoring_groups: int = 0
    restore_s: float = 0.0
    state_hold_s_max: float = 0.0
    inputs: tuple = ()
    lags: dict = field(default_factory=dict)


@dataclass
class Input:
    """How far event time has come on a channel."""

    watermark_ms: int
    is_idle: bool = False
    producer: SubtaskId = field(default_factory=lambda: SubtaskId(1, 0))
    edge_index: int = 0


@pytest.fixture
def registry():
    return CollectorRegistry()


def wait_until(condition):
    ticker = threading.Event()
    while not condition():
        ticker.wait(0.01)


def test_subtask_counters_are_read_at_the_scrape(registry):
    counters = Counters()
    SubtaskMetrics(registry, ManualClock()).add(LABELS, counters, lambda: 4)
    counters.records_in, counters.busy_s = 7, 1.5
    assert registry.get_sample_value("weir_subtask_records_in_total", SHOWN) == 7
    assert registry.get_sample_value("weir_subtask_busy_seconds_total", SHOWN) == 1.5
    assert registry.get_sample_value("weir_subtask_queue_depth_batches", SHOWN) == 4
    counters.records_in = 9
    assert registry.get_sample_value("weir_subtask_records_in_total", SHOWN) == 9


def test_every_counter_of_a_subtask_has_its_own_sample(registry):
    names = [
        name
        for name in Counters.__annotations__
        if name not in ("watermark_ms", "inputs", "lags")
        and not name.startswith(("restor", "output", "state_hold"))
    ]
    SubtaskMetrics(registry, ManualClock()).add(
        LABELS, Counters(**{name: 100 + i for i, name in enumerate(names)}), lambda: 0
    )
    for i, name in enumerate(names):
        shown = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        assert registry.get_sample_value(f"weir_subtask_{shown}_total", SHOWN) == 100 + i


def test_rows_that_wait_on_output_channels(registry):
    counters = Counters(output_queued_rows=7, output_queued_age_s=0.25, state_hold_s_max=0.125)
    SubtaskMetrics(registry, ManualClock()).add(LABELS, counters, lambda: 0)
    assert registry.get_sample_value("weir_subtask_state_hold_seconds_max", SHOWN) == 0.125
    assert registry.get_sample_value("weir_subtask_output_queued_rows", SHOWN) == 7
    assert registry.get_sample_value("weir_subtask_output_queued_age_seconds", SHOWN) == 0.25


def test_the_restore_of_a_subtask(registry):
    counters = Counters(restore_groups=8, restoring_groups=3, restore_s=1.5)
    SubtaskMetrics(registry, ManualClock()).add(LABELS, counters, lambda: 0)
    shown = {
        name: registry.get_sample_value(f"weir_subtask_{name}", SHOWN)
        for name in ("restore_groups", "restoring_groups", "restore_seconds")
    }
    assert shown == {"restore_groups": 8, "restoring_groups": 3, "restore_seconds": 1.5}


@pytest.mark.parametrize(
    ("watermark_ms", "lag_s"), [(WATERMARK_MIN_MS, None), (WATERMARK_MAX_MS, 0), (1_000, 1.5), (3_000, -0.5)]
)
def test_watermark_lag(registry, watermark_ms, lag_s):
    clock = ManualClock(2_500_000)
    SubtaskMetrics(registry, clock).add(LABELS, Counters(watermark_ms=watermark_ms), lambda: 0)
    assert registry.get_sample_value("weir_subtask_watermark_lag_seconds", SHOWN) == lag_s


def test_watermark_lag_of_channels(registry):
    inputs = (
        Input(1_000),
        Input(WATERMARK_MIN_MS, producer=SubtaskId(1, 1)),
        Input(2_000, producer=SubtaskId(2, 5), edge_index=1),
        Input(2_000, is_idle=True, producer=SubtaskId(2, 6), edge_index=1),
    )
    SubtaskMetrics(registry, ManualClock(2_500_000)).add(LABELS, Counters(inputs=inputs), lambda: 0)
    name = "weir_channel_watermark_lag_seconds"
    producers = [("0", "1", "0"), ("0", "1", "1"), ("1", "2", "5"), ("1", "2", "6")]
    found = [
        registry.get_sample_value(
            name, SHOWN | dict(zip(("input", "producer_stage", "producer_subtask"), producer, strict=True))
        )
        for producer in producers
    ]
    assert found == [1.5, None, 0.5, None]


def test_lags_are_shown_by_partition(registry):
    metrics = SubtaskMetrics(registry, ManualClock())
    metrics.add(LABELS, Counters(lags={"words[0]": 5, "words[1]": 0}), lambda: 0)
    found = [
        registry.get_sample_value("weir_source_lag_records", SHOWN | {"partition": f"words[{number}]"})
        for number in range(3)
    ]
    assert found == [5, 0, None]


def test_a_removed_subtask_is_not_shown(registry):
    metrics = SubtaskMetrics(registry, ManualClock())
    metrics.add(LABELS, Counters(), lambda: 0)
    metrics.remove(LABELS)
    metrics.remove(LABELS)
    assert registry.get_sample_value("weir_subtask_records_in_total", SHOWN) is None


def test_store_statistics_are_read_once_per_scrape(registry):
    reads = []

    def stats():
        reads.append(1)
        return StoreStats(1, 2, 3, 4, 5, 6, 7, tables=TableStats(*range(8, 20)))

    metrics = StoreMetrics(registry)
    metrics.add("127.0.0.1:8018", "rocksdb", stats)
    assert not reads
    text = generate_latest(registry).decode()
    assert len(reads) == 1
    labels = '{backend="rocksdb",task_manager="127.0.0.1:8018"}'
    names = "gets_total puts_total deletes_total cache_hits_total cache_misses_total memory_bytes disk_bytes"
    for i, name in enumerate(names.split()):
        assert f"weir_store_{name}{labels} {i + 1}.0\n" in text
    names = (
        "total_table_bytes estimated_keys memory_table_bytes level_0_files pending_merge_bytes running_merges "
        "running_flushes background_errors stalls_total stall_seconds_total get_seconds_total write_seconds_total"
    )
    for i, name in enumerate(names.split()):
        assert f"weir_store_{name}{labels} {i + 8}.0\n" in text
    metrics.remove("127.0.0.1:8018", "rocksdb")
    assert "rocksdb" not in generate_latest(registry).decode()


def test_latencies_fall_into_the_bucket_whose_bound_they_do_not_exceed(registry):
    recorder = LatencyRecorder()
    LatencyMetrics(registry).add(LABELS, recorder)
    recorder.observe_us(np.array([-3, 0, 500, 501, 1000, 60_000_000, 60_000_001]))
    recorder.observe_us(np.array([999.5]))
    for bound, count in [("0.0005", 3), ("0.001", 6), ("0.0015", 6), ("60.0", 7), ("+Inf", 8)]:
        assert registry.get_sample_value("weir_latency_seconds_bucket", SHOWN | {"le": bound}) == count
    assert registry.get_sample_value("weir_latency_seconds_count", SHOWN) == 8
    assert registry.get_sample_value("weir_latency_seconds_sum", SHOWN) == pytest.approx(120.0029985)


def test_a_batch_of_latencies_counts_like_a_loop():
    latencies = np.random.default_rng(1).lognormal(9, 3, 5_000)
    recorder = LatencyRecorder()
    recorder.observe_us(latencies)
    counts, sum_s = recorder.read()
    bounds = [bound * 1000 for bound in BUCKETS_MS]
    expected = [0] * (len(bounds) + 1)
    for latency in latencies.tolist():
        expected[next((i for i, bound in enumerate(bounds) if latency <= bound), len(bounds))] += 1
    assert counts.tolist() == expected
    assert sum_s == pytest.approx(latencies.sum() / 1e6)


def test_an_empty_batch_changes_nothing():
    recorder = LatencyRecorder()
    recorder.observe_us(np.array([], dtype=np.int64))
    assert recorder.read()[0].sum() == 0


def test_job_facts(registry):
    facts = JobFacts(
        "j",
        "RUNNING",
        ("CREATED", "RUNNING"),
        *(2, 3, 15, 6, {"running": 5, "failed": 1}),
        restarts=4,
        restores={"COMPLETE": 7, "GIVEN_UP": 1},
        rejected={"events": 3},
        autoscaled={"up": 1},
        restoring_subtasks=9,
        checkpoint_age_s=1.5,
        disks={"a:1": (10, 100)},
    )
    JobMetrics(registry, lambda: facts)
    value = registry.get_sample_value
    assert value("weir_job_state", {"job": "j", "state": "RUNNING"}) == 1
    assert value("weir_job_state", {"job": "j", "state": "CREATED"}) == 0
    assert value("weir_job_subtasks", {"job": "j", "state": "running"}) == 5
    assert value("weir_job_generation", {"job": "j"}) == 2
    assert value("weir_job_restarts_total", {"job": "j"}) == 4
    assert value("weir_job_restores_total", {"job": "j", "state": "COMPLETE"}) == 7
    assert value("weir_job_restoring_subtasks", {"job": "j"}) == 9
    assert value("weir_job_checkpoint_age_seconds", {"job": "j"}) == 1.5
    assert value("weir_disk_free_bytes", {"task_manager": "a:1"}) == 10
    assert value("weir_disk_bytes", {"task_manager": "a:1"}) == 100
    assert (value("weir_task_managers"), value("weir_slots"), value("weir_slots_used")) == (3, 15, 6)


def test_what_is_shown_is_what_is_defined(registry):
    register_process_metrics(registry, "task_manager")
    SubtaskMetrics(registry, ManualClock()).add(
        LABELS, Counters(watermark_ms=1, inputs=(Input(1),), lags={"a[0]": 5}), lambda: 0
    )
    StoreMetrics(registry).add("a:1", "rocksdb", lambda: StoreStats(tables=TableStats()))
    LatencyMetrics(registry).add(LABELS, LatencyRecorder())
    JobMetrics(
        registry,
        lambda: JobFacts(
            "j",
            "A",
            ("A",),
            subtasks={"running": 1},
            restores={"COMPLETE": 0},
            rejected={"events": 3},
            autoscaled={"up": 1},
            checkpoint_age_s=1.5,
            disks={"a:1": (1, 2)},
            standbys={("a:1", "b:1"): (0, 3, 7)},
        ),
    )
    QuestionMetrics(registry).observe("seen", "n", "latest", 200, 0.001)
    shown = {}
    for family in registry.collect():
        if family.name.startswith("weir_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
            shown[name] = (family.type, family.documentation, labels)
    defined = {item.name: (item.kind, item.meaning, {frozenset(item.labels)}) for item in DEFINITIONS}
    assert shown == defined
    assert registry.get_sample_value("process_resident_memory_bytes") > 1 << 20


def test_registering_the_same_concern_twice_is_refused(registry):
    LatencyMetrics(registry)
    with pytest.raises(ValueError, match="weir_latency_seconds"):
        LatencyMetrics(registry)


def test_the_page_is_served_until_closed(registry):
    JobMetrics(registry, lambda: JobFacts("j", "A", ("A",)))
    server = serve_metrics(registry, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert b"weir_task_managers 0.0" in answer.read()
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_silent_connections_do_not_keep_a_scrape_out(registry):
    server = serve_metrics(registry, "127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(80)
        ]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
            assert answer.status == 200
        assert all(each.recv(1) == b"" for each in silent[:16])


def test_a_busy_port_and_a_foreign_host_are_told_apart(registry):
    server = serve_metrics(registry, "127.0.0.1", 0)
    with pytest.raises(
        AddressInUseError, match=rf"127\.0\.0\.1:{server.port} is in use; choose another prom"
    ):
        serve_metrics(registry, "127.0.0.1", server.port)
    server.close()
    with pytest.raises(ConfigError, match=r"cannot listen on prometheus\.prometheus_host 192\.0\.2\.1"):
        serve_metrics(registry, "192.0.2.1", 0)


class Gateway(BaseHTTPRequestHandler):
    """Records what is pushed; answers 500 while ``server.broken``."""

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.pushes.append((self.path, body))
        self.send_response(500 if self.server.broken else 200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def gateway():
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    server.pushes, server.broken = [], False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_metrics_are_pushed_at_intervals_and_when_closed(registry, gateway):
    facts = [JobFacts("j", "A", ("A",))]
    JobMetrics(registry, lambda: facts[0])
    address = f"127.0.0.1:{gateway.server_port}"
    pusher = MetricsPusher(registry, address, "weir", "127.0.0.1:8018", interval_s=0.01)
    wait_until(lambda: len(gateway.pushes) >= 2)
    facts[0] = JobFacts("j", "A", ("A",), task_managers=8)
    pusher.close()
    path, body = gateway.pushes[-1]
    assert path == "/metrics/job/weir/instance/127.0.0.1%3A8018"
    assert b"weir_task_managers 8.0" in body
    count = len(gateway.pushes)
    pusher.close()
    assert len(gateway.pushes) == count


def test_a_failing_gateway_is_logged_once_and_its_return_too(registry, gateway, caplog):
    caplog.set_level(logging.WARNING)
    gateway.broken = True
    address = f"127.0.0.1:{gateway.server_port}"
    pusher = MetricsPusher(registry, address, "weir", "x", interval_s=0.01)
    wait_until(lambda: len(gateway.pushes) >= 4)
    gateway.broken = False
    wait_until(lambda: "takes metrics again" in caplog.text)
    pusher.close()
    assert caplog.text.count("does not take metrics") == 1


def test_questions_are_counted_by_states_that_there_are():
    registry = CollectorRegistry()
    metrics = QuestionMetrics(registry)
    # Labels are not for callers to make up: a state has its own when it has answered.
    metrics.observe("made up", "by a caller", "latest", 404, 0.001)
    for status, took_s in ((200, 0.0004), (200, 0.004), (503, 0.5), (404, 0.001)):
        metrics.observe("seen", "n", "latest", status, took_s)
    metrics.observe("", "", "", 400, 0)
    for number in range(200):
        metrics.observe(f"step {number}", "n", "checkpoint", 200, 70.0)

    def value(name, *labels):
        names = ("step", "state", "consistency", "result")
        return registry.get_sample_value(name, dict(zip(names, labels, strict=False)))

    counted = "weir_questions_total"
    assert value(counted, "seen", "n", "latest", "answered") == 2
    assert value(counted, "seen", "n", "latest", "nothing") == 1
    assert value(counted, "seen", "n", "latest", "try_again") == 1
    assert value(counted, "other", "other", "latest", "nothing") == 1
    assert value(counted, "other", "other", "", "malformed") == 1
    assert value(counted, "other", "other", "checkpoint", "answered") == 101
    labels = {"step": "seen", "state": "n", "consistency": "latest"}
    for bound, count in (("0.0005", 1), ("0.001", 2), ("+Inf", 3)):
        assert registry.get_sample_value("weir_question_seconds_bucket", {**labels, "le": bound}) == count
    assert value("weir_question_seconds_sum", "seen", "n", "latest") == pytest.approx(0.0054)
