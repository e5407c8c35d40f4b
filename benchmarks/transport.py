"""What the exchange between two processes carries, by batch size, beside plain gRPC with messages of that size."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from benchmarks.results import BenchmarkError, BenchmarkResult
from benchmarks.transport_peer import MESSAGE_BYTES_MAX, RAW_ECHO, RAW_STREAM
from task_manager.connections import connect
from task_manager.exchange.channels import ChannelLimits, CreditGate
from task_manager.exchange.peer_link import PeerLink
from weir.clock import SystemClock
from weir.rows.records import EndOfStream, batch_bytes
from weir.rpc.wire import JobIdentity, message_size_options
from weir.types import ChannelId, SubtaskId

BATCH_ROWS = (1, 1_000, 32_768, 262_144)
#: Messages on the way; as many as the engine allows, and no more bytes than it allows.
_IN_FLIGHT_MAX, _IN_FLIGHT_BYTES_MAX = 20, 8 << 20
_BATCHES_MAX = 5_000
_PINGS = 300
_TIMEOUT_S = 60.0
_IDENTITY = JobIdentity("transport", "", 1)


def make_batch(rows: int) -> pa.RecordBatch:
    """A batch as the throughput job sends it behind its hash exchange."""
    rng = np.random.default_rng(rows)
    return pa.record_batch(
        {
            "id": rng.integers(1, 101, rows),
            "server_name": [f"server-{number}" for number in rng.integers(1, 100_001, rows).tolist()],
            "_event_time_ms": np.full(rows, 1_700_000_000_000),
            "_ingest_time_us": np.full(rows, 1_700_000_000_000_000),
            "_key_hash": rng.integers(0, 2**63, rows).astype(np.uint64),
        }
    )


class Peer:
    """The receiving process; use as a context manager."""

    def __enter__(self) -> Self:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transport_peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = f"127.0.0.1:{self.read()['port']}"
        self.connection = connect(self.address, message_size_options(MESSAGE_BYTES_MAX))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        try:
            self._popen.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.communicate()

    def read(self) -> dict[str, Any]:
        """The next thing it says.

        Raises:
            BenchmarkError: it has ended.
        """
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise BenchmarkError("the receiving process of the transport benchmark ended")
        facts: dict[str, Any] = json.loads(line)
        return facts


class _Event:
    """What a gate wakes."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def wait(self) -> None:
        if not self._event.wait(_TIMEOUT_S):
            raise BenchmarkError(f"no credit came back for {_TIMEOUT_S:g} s")
        self._event.clear()


class _Link:
    """One open channel to the peer."""

    def __init__(self, peer: Peer, size_bytes: int) -> None:
        self._woken = _Event()
        in_flight_bytes = max(2 * size_bytes, min(_IN_FLIGHT_MAX * size_bytes, _IN_FLIGHT_BYTES_MAX))
        self.gate = CreditGate(
            ChannelLimits(_IN_FLIGHT_MAX, in_flight_bytes, 1e6), self._woken, SystemClock()
        )
        self.gate.wake_on_release = True
        self._link = PeerLink(peer.connection, peer.address, _IDENTITY, SystemClock())
        channel = ChannelId(SubtaskId(0, 0), SubtaskId(1, 0), 0)
        self.channel = self._link.open(channel, self.gate, MESSAGE_BYTES_MAX)
        self.channel.wait_accepted()

    def send(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        while not self.gate.has_room(size_bytes):
            self._woken.wait()
        self.channel.send(batch)
        self.channel.flush()

    def wait_idle(self) -> None:
        while not self.gate.idle:
            self._woken.wait()

    def close(self) -> None:
        self.channel.send(EndOfStream())
        self.channel.flush()
        self.channel.close()


def _stream(peer: Peer, batch: pa.RecordBatch, batches: int) -> float:
    """Seconds to send so many batches, all of them finished by the receiver.

    Raises:
        BenchmarkError: the receiver counted other rows.
    """
    size_bytes = batch_bytes(batch)
    link = _Link(peer, size_bytes)
    began_s = time.perf_counter()
    for _ in range(batches):
        link.send(batch, size_bytes)
    link.wait_idle()
    elapsed_s = time.perf_counter() - began_s
    link.close()
    received = peer.read()
    if received != {"rows": batches * batch.num_rows, "batches": batches}:
        raise BenchmarkError(f"{batches} batches of {batch.num_rows} rows sent, {received} received")
    return elapsed_s


def _raw_stream(peer: Peer, size_bytes: int, messages: int) -> float:
    """The same with plain bytes."""
    credits = threading.Semaphore(_IN_FLIGHT_MAX)
    body = bytes(size_bytes)

    def requests() -> Iterator[bytes]:
        for _ in range(messages):
            credits.acquire()
            yield body

    began_s = time.perf_counter()
    for _ in peer.connection.stream_stream(RAW_STREAM, None, None)(requests(), timeout=_TIMEOUT_S):
        credits.release()
    return time.perf_counter() - began_s


def _ping_ms(peer: Peer) -> list[float]:
    """Milliseconds from sending one row until its credit is back."""
    batch = make_batch(1)
    link = _Link(peer, batch_bytes(batch))
    times = []
    for _ in range(_PINGS):
        began_s = time.perf_counter()
        link.send(batch, 0)
        link.wait_idle()
        times.append((time.perf_counter() - began_s) * 1e3)
    link.close()
    peer.read()
    return times


def _raw_ping_ms(peer: Peer) -> list[float]:
    """Milliseconds of one unary call."""
    echo = peer.connection.unary_unary(RAW_ECHO, None, None)
    times = []
    for _ in range(_PINGS):
        began_s = time.perf_counter()
        echo(b"x" * 64, timeout=_TIMEOUT_S)
        times.append((time.perf_counter() - began_s) * 1e3)
    return times


def run(events: int, repeat: int, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Send up to ``events`` rows per batch size, ``repeat`` times.

    Raises:
        BenchmarkError: rows were lost on the way.
    """
    runs = []
    with Peer() as peer:
        _stream(peer, make_batch(100), 20)
        for number in range(1, repeat + 1):
            sizes: dict[str, Any] = {}
            for index, rows in enumerate(BATCH_ROWS):
                report(f"run {number} of {repeat}: batches of {rows:,} rows", index / len(BATCH_ROWS))
                sizes[f"batch_of_{rows}"] = _one_size(peer, rows, events)
            report(f"run {number} of {repeat}: round trips", 1.0)
            runs.append(_figures(sizes, _ping_ms(peer), _raw_ping_ms(peer)))
    config = {
        "events": events,
        "batch_rows": list(BATCH_ROWS),
        "columns": make_batch(1).schema.names,
        "in_flight_max": _IN_FLIGHT_MAX,
        "in_flight_bytes_max": _IN_FLIGHT_BYTES_MAX,
    }
    return BenchmarkResult("transport", config, runs)


def _one_size(peer: Peer, rows: int, events: int) -> dict[str, Any]:
    batch = make_batch(rows)
    size_bytes = batch.serialize().size
    batches = max(2, min(_BATCHES_MAX, events // rows))
    seconds = _stream(peer, batch, batches)
    raw_seconds = _raw_stream(peer, size_bytes, batches)
    return {
        "rows_per_second": rows * batches / seconds,
        "mb_per_second": size_bytes * batches / seconds / 1e6,
        "reference_mb_per_second": size_bytes * batches / raw_seconds / 1e6,
        "ratio_to_reference": raw_seconds / seconds,
        "batches": batches,
        "message_kb": size_bytes / 1e3,
    }


def _figures(sizes: dict[str, Any], pings_ms: list[float], raw_pings_ms: list[float]) -> dict[str, Any]:
    default = sizes[f"batch_of_{BATCH_ROWS[2]}"]
    return {
        "events_per_second": default["rows_per_second"],
        **sizes,
        "round_trip": {
            "p50_ms": statistics.median(pings_ms),
            "p99_ms": _p99(pings_ms),
            "max_ms": max(pings_ms),
        },
        "reference": {
            "what": "plain gRPC with bytes: one stream with messages of the same size; unary calls",
            "p50_ms": statistics.median(raw_pings_ms),
            "p99_ms": _p99(raw_pings_ms),
            "max_ms": max(raw_pings_ms),
        },
        "ratio_to_reference": default["ratio_to_reference"],
    }


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
