"""What ``benchmarks wal`` tells: the figures that the bars judge, the document, the table and the CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.results import Bar, BenchmarkResult
from benchmarks.wal.cases import Case, Mode

BARS = (
    Bar("ratio_to_kafka_client", "at least", 1.0),
    Bar("ratio_acks_1", "at least", 1.0),
    Bar("ratio_acks_0", "at least", 1.0),
    Bar("ratio_send_many_random", "at least", 1.0),
    Bar("ratio_send_many_words", "at least", 3.0),
    Bar("sync_p50_ratio", "at most", 2.5),
    Bar("sync_p99_ratio", "at most", 4.0),
    Bar("paced_p99_ratio", "at most", 1.0),
    Bar("peak_weir_broker_bytes", "at most", 512 << 20),
    Bar("reader_share", "at least", 0.8),
    Bar("failover_ms", "at most", 1000.0),
    Bar("recovery_s", "at most", 2.0),
)
Figures = Mapping[str, Mapping[str, Any]]
#: The predecessor's columns, then ours.
CSV_COLUMNS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "Async": lambda case: str(case["mode"] != "sync").lower(),
    "ACK": lambda case: -1 if case["acks"] == "all" else int(case["acks"]),
    "Idempotent": lambda case: str(case["idempotent"]).lower(),
    "MaxOpenReqs": lambda case: case["in_flight"],
    "FlushThreshold": lambda case: case["batch_records_max"],
    "Throughput(MBs/sec)": lambda case: case["acknowledged_mb_per_second"],
    "System": lambda case: case["system"],
    "Case": lambda case: case["case"],
    "Mode": lambda case: case["mode"],
    "Data": lambda case: case["data"],
    "Compression": lambda case: case["compression"],
    "Retention": lambda case: case["retention"] or "by size",
    "Place": lambda case: case["place"],
    "RecordsPerSecond": lambda case: case["records_per_second"],
    "P50Ms": lambda case: case["p50_ms"],
    "P99Ms": lambda case: case["p99_ms"],
    "BrokerProcessors": lambda case: case["broker_processors"],
    "ClientProcessors": lambda case: case["client_processors"],
    "PeakBrokerMiB": lambda case: round(case["peak_broker_bytes"] / 2**20),
}


def ratios(found: Figures) -> dict[str, float]:
    """Return what the bars judge, of the cases of one run; without those for which a case is missing.

    Kafka's speed is that of its faster call, ``produce`` or ``produce_batch``.
    """

    def figure(system: str, case: Case, name: str = "acknowledged_mb_per_second") -> float:
        return float(found[f"{system}, {case.name}"][name])

    def to_kafka(case: Case) -> float:
        both = [Case("send", case.data, case.acks), Case("send_many", case.data, case.acks)]
        theirs = [figure("kafka", each) for each in both if f"kafka, {each.name}" in found]
        if not theirs:
            raise KeyError(case.name)
        return figure("weir", case) / max(theirs)

    def smaller(*cases: Case) -> float:
        return min(to_kafka(case) for case in cases)

    def latencies(mode: Mode, name: str) -> float:
        case = Case(mode, "random")
        return figure("weir", case, name) / figure("kafka", case, name)

    def peak() -> float:
        peaks = [case["peak_broker_bytes"] for case in found.values() if case["system"] == "weir"]
        if not peaks:
            raise KeyError("weir")
        return float(max(peaks))

    wanted: dict[str, Callable[[], float]] = {
        "ratio_to_kafka_client": lambda: smaller(Case("send", "random"), Case("send", "words")),
        "ratio_acks_1": lambda: smaller(Case("send", "random", "1"), Case("send", "words", "1")),
        "ratio_acks_0": lambda: smaller(Case("send", "random", "0"), Case("send", "words", "0")),
        "ratio_send_many_random": lambda: to_kafka(Case("send_many", "random")),
        "ratio_send_many_words": lambda: to_kafka(Case("send_many", "words")),
        "sync_p50_ratio": lambda: latencies("sync", "p50_ms"),
        "sync_p99_ratio": lambda: latencies("sync", "p99_ms"),
        "paced_p99_ratio": lambda: latencies("paced", "p99_ms"),
        "peak_weir_broker_bytes": peak,
    }
    known = {}
    for name, figure_of in wanted.items():
        try:
            known[name] = round(figure_of(), 3)
        except KeyError:
            continue
    return known


def as_document(result: BenchmarkResult) -> dict[str, Any]:
    """Return what the file holds, with the cases as a list: medians above, those of each run in ``repeats``.

    Each case has its ``ratio_to_kafka_client``, where Kafka ran it, too.
    """
    document = result.as_json()
    listed: list[dict[str, Any]] = [
        {**part, "cases": _with_ratios(part["cases"])} for part in (document, *document["repeats"])
    ]
    return {**listed[0], "repeats": listed[1:]}


def _with_ratios(cases: Figures) -> list[dict[str, Any]]:
    listed = []
    for case in cases.values():
        theirs = cases.get(f"kafka, {case['case']}")
        ratio = (
            {
                "ratio_to_kafka": round(
                    case["acknowledged_mb_per_second"] / theirs["acknowledged_mb_per_second"], 3
                )
            }
            if case["system"] == "weir" and theirs is not None
            else {}
        )
        listed.append({**case, **ratio})
    return listed


def cases_table(document: Mapping[str, Any]) -> Table:
    """Make the table of the cases, both systems side by side."""
    table = Table(title="acknowledged MiB/s; ms until half / 99 % of the records are acknowledged")
    for column in ("case, acks", "Weir", "Kafka", "ratio", "Weir ms", "Kafka ms"):
        table.add_column(column, justify="left" if "," in column else "right")
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in document["cases"]:
        rows.setdefault(case["case"], {})[case["system"]] = case
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


def write_csv(path: Path, document: Mapping[str, Any]) -> None:
    """Write a line for each case, system and run; the file is made anew, with one header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for repeat in document["repeats"]:
            for case in repeat["cases"]:
                writer.writerow([value(case) for value in CSV_COLUMNS.values()])
