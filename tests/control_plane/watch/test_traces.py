"""Traces by OpenTelemetry's library: what a real receiver gets, and what a collector that is away costs."""

import logging
import sys
import time

import pytest

from control_plane.watch.traces import Traces, sender_of
from experiments.ports import free_port
from tests.control_plane.cluster import COUNT, Cluster
from tests.control_plane.virtual import run, until
from tests.otlp_receiver import OtlpReceiver, attributes_of
from weir.config import TracesConfig
from weir.errors import CheckpointError, ConfigError
from weir.protocol.checkpoints.checkpoint_model import CheckpointState
from weir.protocol.spans import Span

MS = 1_000_000


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def quiet_library(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    before = logging.getLogger("opentelemetry.exporter").level
    yield
    logging.getLogger("opentelemetry.exporter").setLevel(before)


def until_real(condition):
    """Return when a condition holds that a thread brings about."""
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def traced(here, url):
    job = here.parts.job
    sender = sender_of(TracesConfig(endpoint=url))({"weir.job": job.graph.logical.name})
    traces = Traces(job, here.parts.clock, here.parts.rescaler.log, sender)
    here.parts.checkpointer.listeners.append(traces.checkpoint_ended)
    return traces


def test_a_receiver_gets_checkpoints_and_rescales_as_they_are_recorded(receiver):
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        traces = traced(here, receiver.url)
        checkpointer = here.parts.checkpointer
        record = checkpointer.request()
        await until(lambda: record.state is CheckpointState.COMPLETE)
        here.store.error = CheckpointError("the disk at s3://me:hunter2@bucket is full")
        failed = checkpointer.request()
        await until(lambda: failed.state is CheckpointState.FAILED)
        here.parts.rescaler.request(COUNT, 3)
        await until(lambda: here.parts.rescaler.log.current is None)
        traces.look()
        traces.look()
        traces.close()
        report = here.parts.rescaler.log.report(1)
        views = [checkpointer.view(each) for each in (record, failed)]
        await here.close()
        return report, views

    found = []

    async def kept(clock):
        found.append(await test(clock))

    run(kept)
    [(report, views)] = found
    assert set(receiver.paths) == {"/v1/traces"}
    assert all(each["service.name"] == "weir" and each["weir.job"] == "job" for each in receiver.resources)
    for span, view in zip(receiver.roots("checkpoint"), views, strict=True):
        told = attributes_of(span)
        assert told["weir.checkpoint.id"] == view.id
        assert told["weir.checkpoint.state"] == view.state
        assert told["weir.generation"] == 1
        assert abs(span.start_time_unix_nano - view.started_ms * MS) <= MS
        assert abs(span.end_time_unix_nano - view.ended_ms * MS) <= MS
        assert [part.name for part in receiver.within(span)].count("checkpoint.part") == 3
    good, bad = receiver.roots("checkpoint")
    assert (good.status.code, bad.status.code) == (0, 2)
    assert bad.status.message == "the disk at s3://***@bucket is full"
    [rescale] = receiver.roots("rescale")
    assert rescale.start_time_unix_nano == report["started_ms"] * MS
    assert rescale.end_time_unix_nano == report["phases"]["COMPLETE"] * MS
    assert [span.name for span in receiver.within(rescale)] == [
        "rescale.preparation",
        "rescale.switch",
        "rescale.move",
    ]
    assert attributes_of(rescale)["weir.rescale.to"] == 3


def test_a_collector_that_is_away_is_told_of_once_and_holds_nothing_up(receiver, caplog):
    caplog.set_level(logging.INFO)
    receiver.status = 400
    sender = sender_of(TracesConfig(endpoint=receiver.url))({})
    for number in range(3):
        sender.send(Span("checkpoint", number, number + 1))
        until_real(lambda number=number: len(receiver.paths) > number)
    receiver.status = 200
    until_real(lambda: caplog.messages)
    sender.send(Span("checkpoint", 3, 4))
    until_real(lambda: len(caplog.messages) == 2)
    sender.close()
    assert caplog.messages == [
        f"traces: {receiver.url}/v1/traces takes none (HTTP 400 Bad Request): they are lost until it does",
        f"traces: {receiver.url}/v1/traces takes them again",
    ]
    assert [span.start_time_unix_nano for span in receiver.spans] == [3 * MS]


def test_the_end_does_not_wait_for_a_collector_that_nobody_runs(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    sender = sender_of(TracesConfig(endpoint=f"http://127.0.0.1:{free_port()}"))({})
    sender.send(Span("checkpoint", 1, 2))
    until_real(lambda: caplog.messages)
    assert "takes none (Connection refused)" in caplog.text
    began_s = time.monotonic()
    sender.send(Span("checkpoint", 2, 3))
    sender.close()
    assert time.monotonic() - began_s < 1


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    assert sender_of(TracesConfig()) is None
    monkeypatch.delitem(sys.modules, "control_plane.watch.otlp", raising=False)
    for name in ("opentelemetry.sdk", "opentelemetry.sdk.trace", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        sender_of(TracesConfig(endpoint="http://localhost:4318"))
    assert str(caught.value) == (
        "traces.endpoint is set, but OpenTelemetry's library is not installed; run: pip install 'weir[traces]'"
    )


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", ""),
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://collector.example/otlp/v1/traces", "https://collector.example/otlp/v1/traces"),
    ],
)
def test_the_path_is_added_where_there_is_none(endpoint, url):
    assert TracesConfig(endpoint=endpoint).url == url


@pytest.mark.parametrize(
    "endpoint", ["localhost:4318", "grpc://x:4317", "http://", "http://h:99999", "http://h h"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint):
    with pytest.raises(ValueError, match="endpoint"):
        TracesConfig(endpoint=endpoint)
