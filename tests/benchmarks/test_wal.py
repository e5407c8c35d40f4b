"""What the benchmark of the log makes of its figures: which cases run, percentiles, medians, ratios, its CSV file."""

from __future__ import annotations

import csv
import itertools

import pytest

from benchmarks.results import BenchmarkError, BenchmarkResult, what_is_wrong
from benchmarks.wal.cases import CASES, Case, chosen, records
from benchmarks.wal.document import BARS, CSV_COLUMNS, as_document, cases_table, ratios, write_csv
from benchmarks.wal.figures import figures
from benchmarks.wal.run import WalOptions, _attempt, _document, _one_run
from weir.errors import ConfigError

#: MiB/s with acks=all by system, mode and data.
SPEEDS = {
    ("weir", "send", "random"): 180.0,
    ("weir", "send", "words"): 390.0,
    ("weir", "send_many", "random"): 190.0,
    ("weir", "send_many", "words"): 900.0,
    ("kafka", "send", "random"): 150.0,
    ("kafka", "send", "words"): 250.0,
    ("kafka", "send_many", "random"): 200.0,
    ("kafka", "send_many", "words"): 300.0,
}


def case_figures(system: str, case: Case, speed: float, p50_ms: float, p99_ms: float) -> dict[str, object]:
    """Figures of one case as a run has them."""
    return {
        **{"system": system, "case": case.name, "acks": case.acks, "mode": case.mode, "data": case.data},
        **{"compression": case.compression, "idempotent": system == "weir", "in_flight": 5},
        **{"batch_records_max": 0, "retention": case.retention, "place": "memory"},
        **{"acknowledged_mb_per_second": speed, "records_per_second": 1, "p50_ms": p50_ms, "p99_ms": p99_ms},
        **{"broker_processors": 1.0, "client_processors": 0.5, "peak_broker_bytes": 100 << 20},
    }


def one_run(factor: float = 1.0) -> dict[str, object]:
    """Figures of a run in which our log is so much faster than `SPEEDS`, and answers after 1 ms times this."""
    cases = {}
    for (system, mode, data), speed in SPEEDS.items():
        case = Case(mode, data)
        ours = speed * factor if system == "weir" else speed
        cases[f"{system}, {case.name}"] = case_figures(system, case, ours, 5.0, 9.0)
    for system, p50_ms in (("weir", factor), ("kafka", 0.5)):
        for mode in ("sync", "paced"):
            case = Case(mode, "random")
            cases[f"{system}, {case.name}"] = case_figures(system, case, 1.0, p50_ms, 4 * p50_ms)
    return {**ratios(cases), "cases": cases}


def test_cases_are_chosen_by_a_part_of_their_names():
    cases, trials = chosen(())
    assert cases == list(CASES)
    assert trials == ["failover", "reader", "wire"]
    assert chosen(["paced"]) == ([Case("paced", "random")], [])
    # A whole name is that case alone, not those whose names go on.
    assert chosen(["sync, random, acks=all"]) == ([Case("sync", "random")], [])
    assert chosen(["recovery", "send_many, words"]) == ([Case("send_many", "words")], ["recovery"])
    with pytest.raises(ConfigError, match="--only sink: no case has it; there are send, random, acks=all; "):
        chosen(["sync", "sink"])


def test_names_of_cases_differ():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("data", ["random", "words", "json", "pool"])
def test_records_have_the_sizes_that_are_told(data):
    made = records(data, 300)
    sizes = {len(record) for record in made}
    assert sizes == {1024} if data == "json" else 114 <= min(sizes) <= max(sizes) <= 1194
    assert (len(set(made)) == 300) is (data in ("random", "json"))
    assert data != "pool" or len(set(made)) <= 50
    assert [len(record) for record in records(data, 300)] == [len(record) for record in made]


def test_a_case_tells_speed_and_percentiles():
    found = figures(1000, 3 << 20, [each / 1000 for each in range(100, 0, -1)], 2.0)
    assert found == {
        "acknowledged_mb_per_second": 1.5,
        "records_per_second": 500,
        "p50_ms": 51.0,
        "p99_ms": 100.0,
    }
    with pytest.raises(BenchmarkError, match="nothing was acknowledged"):
        figures(0, 0, [], 2.0)


def test_ratios_are_to_the_faster_call_of_kafka():
    run = one_run()
    assert {name: value for name, value in run.items() if name != "cases"} == {
        # The smaller of 180 / 200 and 390 / 300.
        "ratio_to_kafka_client": 0.9,
        "ratio_send_many_random": 0.95,
        "ratio_send_many_words": 3.0,
        "sync_p50_ratio": 2.0,
        "sync_p99_ratio": 2.0,
        "paced_p99_ratio": 2.0,
        "peak_weir_broker_bytes": 100 << 20,
    }


def test_a_ratio_without_its_cases_is_left_out():
    cases = one_run()["cases"]
    assert isinstance(cases, dict)
    ours = {name: case for name, case in cases.items() if name.startswith("weir")}
    assert ratios(ours) == {"peak_weir_broker_bytes": 100 << 20}
    theirs = {name: case for name, case in cases.items() if name.startswith("kafka")}
    assert ratios(theirs) == {}
    sync = {name: case for name, case in cases.items() if "sync" in name}
    assert ratios(sync).keys() == {"sync_p50_ratio", "sync_p99_ratio", "peak_weir_broker_bytes"}


def test_the_file_has_medians_of_each_case():
    document = as_document(BenchmarkResult("wal", {}, [one_run(factor) for factor in (1.0, 3.0, 2.0)], BARS))
    assert len(document["cases"]) == len(SPEEDS) + 4
    first = document["cases"][0]
    assert (first["system"], first["mode"], first["data"]) == ("weir", "send", "random")
    assert first["acknowledged_mb_per_second"] == 360.0
    assert [run["cases"][0]["acknowledged_mb_per_second"] for run in document["repeats"]] == [180, 540, 360]
    found = {line["metric"]: (line["value"], line["met"]) for line in document["bars"]}
    assert found["ratio_to_kafka_client"] == (1.8, True)
    assert found["ratio_send_many_words"] == (6.0, True)
    assert found["sync_p50_ratio"] == (4.0, False)
    assert first["ratio_to_kafka"] == pytest.approx(2.4)


def test_a_lost_record_makes_the_result_wrong():
    runs = [{**one_run(), "lost": 0, "duplicated": 0, "reordered": each} for each in (0, 1, 0)]
    assert what_is_wrong(as_document(BenchmarkResult("wal", {}, runs, BARS))) == "reordered is 1"


def test_the_csv_has_one_header_and_a_line_for_each_case_and_run(tmp_path):
    document = as_document(BenchmarkResult("wal", {}, [one_run(1.0), one_run(2.0)], BARS))
    for _ in range(2):
        write_csv(tmp_path / "made" / "wal.csv", document)
    with (tmp_path / "made" / "wal.csv").open() as file:
        lines = list(csv.reader(file))
    assert lines[0] == list(CSV_COLUMNS)
    # The predecessor's, as they were.
    assert ",".join(lines[0][:6]) == "Async,ACK,Idempotent,MaxOpenReqs,FlushThreshold,Throughput(MBs/sec)"
    assert len(lines) == 1 + 2 * (len(SPEEDS) + 4)
    first = dict(zip(lines[0], lines[1], strict=True))
    assert first["Async"] == "true"
    assert (first["ACK"], first["Throughput(MBs/sec)"], first["PeakBrokerMiB"]) == ("-1", "180.0", "100")
    assert {line[0] for line in lines if "sync" in itertools.chain(line)} == {"false"}


@pytest.mark.parametrize("with_kafka", [True, False])
def test_the_table_has_both_systems_in_a_row(with_kafka):
    document = as_document(BenchmarkResult("wal", {}, [one_run()], BARS))
    document["cases"] = [each for each in document["cases"] if with_kafka or each["system"] == "weir"]
    table = cases_table(document)
    assert table.row_count == 6
    assert next(iter(table.columns[0].cells)) == "send, random, acks=all"
    assert next(iter(table.columns[3].cells)) == ("1.20" if with_kafka else "-")


class Half:
    """A client that loses every case of one kind of data."""

    system = "weir"

    def broker_pids(self):
        return ()

    def measure(self, case, seconds):
        if case.data == "pool":
            raise BenchmarkError("no answer from the log")
        return figures(1000, 3 << 20, [0.001], seconds)


def test_a_case_that_fails_does_not_cost_the_others_their_figures():
    runs = [{"cases": {}}, {"cases": {}}]
    cases = [Case("send", "pool"), Case("send", "random")]
    said = []
    _one_run(runs[0], cases, [Half()], 1.0, 0, lambda step, done: said.append(step))
    assert list(runs[0]["cases"]) == ["weir, send, random, acks=all"]
    assert "weir, send, pool, acks=all FAILED: no answer from the log" in said
    _attempt(runs[0], "reader", lambda step, done: None, lambda: {"reader_share": 0.9})
    # A round that has not begun counts for nothing.
    document = _document(WalOptions(), runs)
    assert [case["case"] for case in document["cases"]] == ["send, random, acks=all"]
    assert document["failed"] == {"weir, send, pool, acks=all": "no answer from the log"}
    assert document["reader_share"] == 0.9
    assert len(document["repeats"]) == 1
