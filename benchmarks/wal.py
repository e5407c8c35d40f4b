"""A write-ahead log shipped to three brokers: to ours and to a real Kafka, in turn, by one process in Python.

Records have the predecessor's sizes, 114 to 1,194 bytes: random bytes, which are not compressed, or one repeated word,
which is, with lz4. Both systems keep three copies, in the same directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import weir.log
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.wal_clients import COMPRESSION, LINGER_MS, TOPIC, Case, Client, WeirClient
from benchmarks.wal_kafka import KafkaClient
from experiments.kafka_brokers import Brokers
from experiments.log_cluster import LogCluster
from services.errors import ServiceError
from weir.errors import ConfigError

BARS = (
    Bar("ratio_to_kafka_client", "at least", 1.0),
    Bar("ratio_send_many_words", "at least", 3.0),
    Bar("sync_p50_ratio", "at most", 2.5),
)
CASES = (
    *(Case(mode, data) for mode in ("send", "send_many") for data in ("random", "words")),
    *(Case("send", data, acks) for acks in ("1", "0") for data in ("random", "words")),
    Case("sync", "random"),
)
#: Kafka's machine code is made while it runs.
_WARM_UP_S = 5.0
_RETENTION_BYTES = 512 << 20
#: Deleted segments are gone at once, or the memory file system fills.
_KAFKA_PROPERTIES = {"log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "500"}
_HEAP = "512m"
Figures = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class WalOptions:
    """Command-line options."""

    seconds: float = 5.0
    repeat: int = 3
    only: Sequence[str] = ()
    with_kafka: bool = True


def chosen(only: Sequence[str]) -> list[Case]:
    """Return the cases whose name has one of these texts; all of them if there is none.

    Raises:
        ConfigError: no case has it.
    """
    for text in only:
        if not any(text in case.name for case in CASES):
            raise ConfigError(f"--only {text}: no case has it; there are {'; '.join(c.name for c in CASES)}")
    return [case for case in CASES if not only or any(text in case.name for text in only)]


def run(options: WalOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """Start both systems and run all cases ``repeat`` times; returns the result's document.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: a record was not acknowledged.
        ConfigError: there is no such case.
        ServiceError: there is no Java or no Maven.
    """
    cases = chosen(options.only)
    # Both write everything three times: a disk would be measured, and not they.
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="weir-wal-", dir=place) as directory,
        _clients(Path(directory), options.with_kafka, report) as clients,
    ):
        for client in clients:
            report(f"warming up: {client.system}", 0.0)
            client.measure(cases[0], _WARM_UP_S)
        runs = [
            _one_run(cases, clients, options.seconds, number, f"run {number + 1} of {options.repeat}", report)
            for number in range(options.repeat)
        ]
    config = {
        "seconds": options.seconds,
        "brokers": 3,
        "replication": 3,
        "linger_ms": LINGER_MS,
        "compression": COMPRESSION,
        "partitions": {"weir": 1, "kafka": KafkaClient.partitions},
        "directory": str(place or tempfile.gettempdir()),
    }
    return as_document(BenchmarkResult("wal", config, runs, BARS))


@contextmanager
def _clients(
    directory: Path, with_kafka: bool, report: Callable[[str, float], None]
) -> Iterator[list[Client]]:
    """Yield a client of each system, which all run until the end."""
    report("starting the log", 0.0)
    with LogCluster(directory / "weir") as cluster:
        weir.log.create_topic(cluster.addresses, TOPIC, retention_bytes=_RETENTION_BYTES)
        ours = WeirClient(cluster.addresses)
        if not with_kafka:
            yield [ours]
            return
        report("starting Kafka", 0.0)
        brokers = Brokers(directory / "kafka", heap=_HEAP, properties=_KAFKA_PROPERTIES)
        try:
            try:
                theirs = KafkaClient(brokers.start())
            except ServiceError as error:
                raise ServiceError(f"{error}; with --no-kafka the log is measured alone") from error
            theirs.create_topic(_RETENTION_BYTES)
            yield [ours, theirs]
        finally:
            brokers.close()


def _one_run(
    cases: Sequence[Case],
    clients: Sequence[Client],
    seconds: float,
    number: int,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for index, case in enumerate(cases):
        # Nobody is always the second, who gets a warm processor and a full page cache.
        for client in clients if (number + index) % 2 == 0 else reversed(clients):
            report(f"{label}: {client.system}, {case.name}", index / len(cases))
            found[f"{client.system}, {case.name}"] = {
                "system": client.system,
                "acks": case.acks,
                "mode": case.mode,
                "data": case.data,
                **client.measure(case, seconds),
            }
    return {**ratios(found), "cases": found}


def ratios(found: Figures) -> dict[str, float]:
    """Return what the bars judge, of the cases of one run; without those for which a case is missing.

    Kafka's speed is that of its faster call, ``produce`` or ``produce_batch``.
    """

    def speed(system: str, mode: str, data: str) -> float:
        return float(found[f"{system}, {mode}, {data}, acks=all"]["acknowledged_mb_per_second"])

    def to_kafka(mode: str, data: str) -> float:
        return speed("weir", mode, data) / max(speed("kafka", each, data) for each in ("send", "send_many"))

    def p50_ms(system: str) -> float:
        return float(found[f"{system}, {Case('sync', 'random').name}"]["p50_ms"])

    figures: dict[str, Callable[[], float]] = {
        "ratio_to_kafka_client": lambda: min(to_kafka("send", data) for data in ("random", "words")),
        "ratio_send_many_words": lambda: to_kafka("send_many", "words"),
        "sync_p50_ratio": lambda: p50_ms("weir") / p50_ms("kafka"),
    }
    known = {}
    for name, figure in figures.items():
        try:
            known[name] = round(figure(), 3)
        except KeyError:
            continue
    return known


def as_document(result: BenchmarkResult) -> dict[str, Any]:
    """Return what the file holds, with the cases as a list: medians above, those of each run in ``repeats``."""
    document = result.as_json()
    listed: list[dict[str, Any]] = [
        {**part, "cases": list(part["cases"].values())} for part in (document, *document["repeats"])
    ]
    return {**listed[0], "repeats": listed[1:]}


def cases_table(document: Mapping[str, Any]) -> Table:
    """Make the table of the cases, both systems side by side."""
    table = Table(title="acknowledged MiB/s; ms until half / 99 % of the records are acknowledged")
    for column in ("mode, data, acks", "Weir", "Kafka", "ratio", "Weir ms", "Kafka ms"):
        table.add_column(column, justify="left" if "," in column else "right")
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in document["cases"]:
        rows.setdefault(f"{case['mode']}, {case['data']}, {case['acks']}", {})[case["system"]] = case
    for name, systems in rows.items():
        speeds = {each: case["acknowledged_mb_per_second"] for each, case in systems.items()}
        times = {each: f"{_ms(case['p50_ms'])}/{_ms(case['p99_ms'])}" for each, case in systems.items()}
        both = ("weir", "kafka")
        table.add_row(
            name,
            *(f"{speeds[each]:,.1f}" if each in speeds else "-" for each in both),
            f"{speeds['weir'] / speeds['kafka']:.2f}" if "kafka" in speeds else "-",
            *(times.get(each, "-") for each in both),
        )
    return table


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
