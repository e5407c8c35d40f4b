"""Runs the cases against both systems in turn, and what is no case: failover, a reader, recovery.

Records have the predecessor's sizes, 114 to 1,194 bytes, or are JSON objects of 1 KiB. Both systems keep three copies,
in the same directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import weir.log
from benchmarks.results import BenchmarkResult
from benchmarks.wal.cases import COMPRESSION, FAILOVER, LINGER_MS, READER, RECOVERY, WIRE, Case, chosen
from benchmarks.wal.document import BARS, as_document, ratios
from benchmarks.wal.failover import failover
from benchmarks.wal.figures import Client, Usage
from benchmarks.wal.kafka_client import KafkaClient
from benchmarks.wal.kafka_failover import kafka_failover
from benchmarks.wal.reading import reading
from benchmarks.wal.recovery import recovery
from benchmarks.wal.weir_client import WeirClient
from benchmarks.wal.wire import wire
from experiments.kafka_brokers import Brokers
from experiments.log_cluster import LogCluster
from services.errors import ServiceError
from weir.errors import WeirError

#: Kafka's machine code is made while it runs.
_WARM_UP_S = 5.0
#: Of each topic; both systems write three times as much. Memory would be full otherwise, whatever the retention.
_RETENTION_BYTES = 512 << 20
#: By the retention of a case; 0: for ever.
_RETENTION_MS = {"": 0, "7d": 7 * 86_400_000, "1m": 60_000, "5s": 5_000}
_TOPICS = {retention: f"wal{'-' * bool(retention)}{retention}" for retention in _RETENTION_MS}
#: Deleted segments are gone at once, or the memory file system fills.
_KAFKA_PROPERTIES = {"log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "500"}
_HEAP = "512m"
_MEMORY = Path("/dev/shm")
Report = Callable[[str, float], None]


@dataclass(frozen=True)
class WalOptions:
    """Command-line options."""

    seconds: float = 5.0
    repeat: int = 3
    only: Sequence[str] = ()
    with_kafka: bool = True
    #: Where the cases on disk, and the recovery, keep their data; None: the directory of temporary files.
    disk: Path | None = None
    recovery_bytes: float = 10e9


def run(
    options: WalOptions, report: Report, save: Callable[[dict[str, Any]], None] = lambda document: None
) -> dict[str, Any]:
    """Run all cases and the other parts ``repeat`` times; returns the result's document.

    What fails is named in ``failed`` of the document, and the others go on: they take half an hour.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.
        save: called after each round with the document of what was measured until then.

    Raises:
        BenchmarkError: the systems do not even answer at the beginning.
        ConfigError: there is no such case.
        ServiceError: there is no Java or no Maven.
    """
    cases, trials = chosen(options.only)
    runs: list[dict[str, Any]] = [{"cases": {}} for _ in range(options.repeat)]

    def keep() -> None:
        save(_document(options, runs))

    # Most cases run in memory: a disk would be measured, and not the two systems.
    memory = _MEMORY if _MEMORY.is_dir() else None
    for is_on_disk, place in ((False, memory), (True, options.disk)):
        some = [case for case in cases if case.on_disk is is_on_disk]
        has_reader = READER in trials and not is_on_disk
        if some or has_reader:
            _measure(options, some, runs, place, report, keep, has_reader=has_reader)
    for number, found in enumerate(runs):
        said = _prefixed(report, number, options)
        if WIRE in trials:
            said(WIRE, 0.0)
            _attempt(found, WIRE, said, partial(wire, options.seconds))
        if FAILOVER in trials:
            with tempfile.TemporaryDirectory(prefix="weir-wal-", dir=memory) as directory:
                _attempt(found, FAILOVER, said, partial(failover, Path(directory), said))
            if options.with_kafka:
                with tempfile.TemporaryDirectory(prefix="weir-wal-", dir=memory) as directory:
                    theirs = partial(kafka_failover, Path(directory) / "kafka", _HEAP, said)
                    _attempt(found, f"{FAILOVER} of Kafka", said, theirs)
        if RECOVERY in trials:
            with tempfile.TemporaryDirectory(prefix="weir-wal-", dir=options.disk) as directory:
                _attempt(
                    found, RECOVERY, said, partial(recovery, Path(directory), options.recovery_bytes, said)
                )
        keep()
    return _document(options, runs)


def _attempt(found: dict[str, Any], name: str, report: Report, measure: Callable[[], Any]) -> None:
    """Add what is measured to a run's figures; or why it was not, so that one failure does not cost the others."""
    try:
        found |= measure()
    except (WeirError, OSError, psutil.Error) as error:
        found.setdefault("failed", {})[name] = str(error)
        report(f"{name} FAILED: {error}", 0.0)


def _document(options: WalOptions, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [{**found, **ratios(found["cases"])} for found in runs if found != {"cases": {}}]
    config = {
        "seconds": options.seconds,
        "brokers": 3,
        "replication": 3,
        "linger_ms": LINGER_MS,
        "compression": dict(COMPRESSION),
        "partitions": {"weir": 1, "kafka": KafkaClient.partitions},
        "retention_bytes": _RETENTION_BYTES,
    }
    return as_document(BenchmarkResult("wal", config, measured, BARS))


def _prefixed(report: Report, number: int, options: WalOptions) -> Report:
    return lambda step, done: report(f"run {number + 1} of {options.repeat}: {step}", done)


def _measure(
    options: WalOptions,
    cases: Sequence[Case],
    runs: Sequence[dict[str, Any]],
    place: Path | None,
    report: Report,
    keep: Callable[[], None],
    *,
    has_reader: bool,
) -> None:
    """Add the figures of some cases, all with brokers in one place, to those of each run."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-wal-", dir=place) as directory,
        _clients(Path(directory), options.with_kafka, report) as (cluster, clients),
    ):
        ours = clients[0]
        for client in clients if cases else ():
            report(f"warming up: {client.system}", 0.0)
            client.measure(Case("send", "random"), min(_WARM_UP_S, options.seconds))
        for number, found in enumerate(runs):
            said = _prefixed(report, number, options)
            _one_run(found, cases, clients, options.seconds, number, said)
            if has_reader and isinstance(ours, WeirClient):
                read = partial(reading, ours, cluster.addresses, _TOPICS[""], options.seconds, said)
                _attempt(found, READER, said, read)
            keep()


@contextmanager
def _clients(directory: Path, with_kafka: bool, report: Report) -> Iterator[tuple[LogCluster, list[Client]]]:
    """Yield a client of each system, ours first, which all run until the end."""
    report("starting the log", 0.0)
    with LogCluster(directory / "weir") as cluster:
        for retention, kept_ms in _RETENTION_MS.items():
            weir.log.create_topic(
                cluster.addresses,
                _TOPICS[retention],
                retention_bytes=_RETENTION_BYTES,
                retention_ms=kept_ms,
            )
        ours = WeirClient(cluster.addresses, _TOPICS, [cluster.pid(number) for number in cluster.ports])
        if not with_kafka:
            yield cluster, [ours]
            return
        report("starting Kafka", 0.0)
        brokers = Brokers(directory / "kafka", heap=_HEAP, properties=_KAFKA_PROPERTIES)
        try:
            try:
                theirs = KafkaClient(brokers.start(), _TOPICS, brokers)
            except ServiceError as error:
                raise ServiceError(f"{error}; with --no-kafka the log is measured alone") from error
            theirs.create_topics(_RETENTION_MS, _RETENTION_BYTES)
            yield cluster, [ours, theirs]
        finally:
            brokers.close()


def _one_run(
    found: dict[str, Any],
    cases: Sequence[Case],
    clients: Sequence[Client],
    seconds: float,
    number: int,
    report: Report,
) -> None:
    for index, case in enumerate(cases):
        # Nobody is always the second, who gets a warm processor and a full page cache.
        for client in clients if (number + index) % 2 == 0 else reversed(clients):
            name = f"{client.system}, {case.name}"
            report(name, index / len(cases))

            def measure(client: Client = client, case: Case = case, name: str = name) -> dict[str, Any]:
                return {"cases": found["cases"] | {name: _one_case(client, case, seconds)}}

            _attempt(found, name, report, measure)


def _one_case(client: Client, case: Case, seconds: float) -> dict[str, Any]:
    usage = Usage(client.broker_pids())
    measured = client.measure(case, seconds)
    return {
        "system": client.system,
        "case": case.name,
        "acks": case.acks,
        "mode": case.mode,
        "data": case.data,
        "compression": case.compression,
        "idempotent": case.idempotent or client.system == WeirClient.system,
        # Kafka's client has no limit unless it is told one.
        "in_flight": case.in_flight or (WeirClient.in_flight if client.system == WeirClient.system else 0),
        "batch_records_max": 1 if case.single or case.mode == "sync" else 0,
        "retention": case.retention,
        "place": "disk" if case.on_disk else "memory",
        **measured,
        **usage.figures(),
    }
