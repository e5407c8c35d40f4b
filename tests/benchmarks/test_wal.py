"""What the benchmark of the log makes of its figures: which cases run, percentiles, medians and ratios."""

from __future__ import annotations

import pytest

from benchmarks.results import BenchmarkError, BenchmarkResult
from benchmarks.wal import BARS, CASES, as_document, cases_table, chosen, ratios
from benchmarks.wal_clients import Case, figures
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


def one_run(factor: float = 1.0) -> dict[str, object]:
    """Figures of a run in which our log is so much faster than `SPEEDS`, and answers after 1 ms times this."""
    cases = {}
    for (system, mode, data), speed in SPEEDS.items():
        ours = speed * factor if system == "weir" else speed
        cases[f"{system}, {mode}, {data}, acks=all"] = {
            **{"system": system, "acks": "all", "mode": mode, "data": data},
            **{"acknowledged_mb_per_second": ours, "records_per_second": 1, "p50_ms": 5.0, "p99_ms": 9.0},
        }
    for system, p50_ms in (("weir", factor), ("kafka", 0.5)):
        cases[f"{system}, sync, random, acks=all"] = {
            **{"system": system, "acks": "all", "mode": "sync", "data": "random"},
            **{"acknowledged_mb_per_second": 1.0, "records_per_second": 1, "p50_ms": p50_ms, "p99_ms": 3.0},
        }
    return {**ratios(cases), "cases": cases}


def test_cases_are_chosen_by_a_part_of_their_names():
    assert chosen(()) == list(CASES)
    assert chosen(["sync"]) == [Case("sync", "random")]
    assert chosen(["send_many, words", "acks=0"]) == [
        Case("send_many", "words"),
        Case("send", "random", "0"),
        Case("send", "words", "0"),
    ]
    with pytest.raises(ConfigError, match="--only sink: no case has it; there are send, random, acks=all; "):
        chosen(["sync", "sink"])


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
        "ratio_send_many_words": 3.0,
        "sync_p50_ratio": 2.0,
    }


def test_a_ratio_without_its_cases_is_left_out():
    cases = one_run()["cases"]
    assert isinstance(cases, dict)
    assert ratios({name: case for name, case in cases.items() if name.startswith("weir")}) == {}
    assert ratios({name: case for name, case in cases.items() if "sync" in name}) == {"sync_p50_ratio": 2.0}


def test_the_file_has_medians_of_each_case():
    document = as_document(BenchmarkResult("wal", {}, [one_run(factor) for factor in (1.0, 3.0, 2.0)], BARS))
    assert len(document["cases"]) == len(SPEEDS) + 2
    first = document["cases"][0]
    assert (first["system"], first["mode"], first["data"]) == ("weir", "send", "random")
    assert first["acknowledged_mb_per_second"] == 360.0
    assert [run["cases"][0]["acknowledged_mb_per_second"] for run in document["repeats"]] == [180, 540, 360]
    assert {line["metric"]: (line["value"], line["met"]) for line in document["bars"]} == {
        "ratio_to_kafka_client": (1.8, True),
        "ratio_send_many_words": (6.0, True),
        "sync_p50_ratio": (4.0, False),
    }


@pytest.mark.parametrize("with_kafka", [True, False])
def test_the_table_has_both_systems_in_a_row(with_kafka):
    document = as_document(BenchmarkResult("wal", {}, [one_run()], BARS))
    document["cases"] = [each for each in document["cases"] if with_kafka or each["system"] == "weir"]
    table = cases_table(document)
    assert table.row_count == 5
    assert next(iter(table.columns[0].cells)) == "send, random, all"
    assert next(iter(table.columns[3].cells)) == ("1.20" if with_kafka else "-")
