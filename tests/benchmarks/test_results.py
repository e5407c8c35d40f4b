"""Results: medians, bars, tables and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command_line import execute
from benchmarks.report import BEGIN, END, HEADLINES, headlines, tables, update_page
from benchmarks.results import (
    Bar,
    BenchmarkResult,
    figure_rows,
    format_figure,
    result_table,
    what_is_wrong,
    write_json,
)
from weir.errors import InputError

ROOT = Path(__file__).parents[2]


def result() -> BenchmarkResult:
    runs = [
        {
            "events": 10,
            "p99_ms": 3.0,
            "peak_rss_bytes_max": 5 << 20,
            "reference": {"what": "x", "p99_ms": 1.0},
        },
        {
            "events": 10,
            "p99_ms": 9.0,
            "peak_rss_bytes_max": 9 << 20,
            "reference": {"what": "x", "p99_ms": 2.0},
        },
        {
            "events": 10,
            "p99_ms": 4.0,
            "peak_rss_bytes_max": 1 << 20,
            "reference": {"what": "x", "p99_ms": 9.0},
        },
    ]
    bars = (Bar("p99_ms", "at most", 3), Bar("events", "at least", 10), Bar("absent", "at least", 1))
    return BenchmarkResult("some", {"keys": 3}, runs, bars)


def test_medians_stand_beside_the_single_runs():
    document = result().as_json()
    assert document["name"] == "some"
    assert document["config"] == {"keys": 3}
    assert document["p99_ms"] == 4.0
    assert document["peak_rss_bytes_max"] == 9 << 20
    assert document["reference"] == {"what": "x", "p99_ms": 2.0}
    assert isinstance(document["events"], int)
    assert [run["p99_ms"] for run in document["repeats"]] == [3.0, 9.0, 4.0]


def wrong_result(**figures: object) -> dict[str, object]:
    """Three runs; only the second has the figures."""
    right = {"events": 10, "lost": 0, "rescale": {"duplicated": 0}, "wrong_seeds": {}}
    return BenchmarkResult("some", {}, [right, {**right, **figures}, right]).as_json()


def test_wrong_results_are_found_in_every_run():
    assert what_is_wrong(wrong_result()) == ""
    found = what_is_wrong(wrong_result(lost=2, rescale={"duplicated": 3}, p99_ms=9.0))
    assert found == "lost is 2, rescale: duplicated is 3"


@pytest.mark.parametrize(("wrong", "code"), [(0, 0), (3, 1)])
def test_a_benchmark_with_a_wrong_result_ends_with_exit_code_1(tmp_path, capsys, wrong, code):
    bars = (Bar("p99_ms", "at most", 1), Bar("wrong", "at most", 0))
    missed = BenchmarkResult("time_law", {}, [{"p99_ms": 5.0, "wrong": wrong}], bars).as_json()
    with pytest.raises(SystemExit) as ended:
        execute(lambda report: missed, tmp_path / "result.json")
    assert ended.value.code == code
    # It is written all the same.
    assert json.loads((tmp_path / "result.json").read_text())["wrong"] == wrong
    assert ("error: the result is wrong: wrong is 3" in capsys.readouterr().err) == bool(wrong)


def test_bars_judge_medians_and_skip_figures_that_are_absent():
    lines = {line["metric"]: line["met"] for line in result().as_json()["bars"]}
    assert lines == {"p99_ms": False, "events": True}


def test_rows_have_units_and_verdicts():
    rows = {label: (value, bar) for label, value, bar in figure_rows(result().as_json())}
    assert rows["p99_ms"] == ("4.00 ms", "at most 3.00 ms: MISSED")
    assert rows["peak_rss_bytes_max"] == ("9 MiB", "")
    assert rows["reference: p99_ms"] == ("2.00 ms", "")
    assert "keys" not in rows
    assert result_table(result().as_json()).row_count == len(rows)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("events_per_second", 1_234_567.8, "1,234,568"),
        ("ratio_to_reference", 0.41234, "0.412"),
        ("first_event_s", 1.5, "1.50 s"),
        ("output_gap_ms_max", 76.216, "76.22 ms"),
        ("watermark_lag_s_max", 1, "1.00 s"),
        ("events_per_core_s_min", 100_000, "100,000"),
        ("lost", 0, "0"),
        ("lost", None, "-"),
        ("what", "Polars", "Polars"),
    ],
)
def test_figures_are_formatted_by_their_unit(name, value, text):
    assert format_figure(name, value) == text


def test_machine_facts_name_no_host():
    import platform

    document = result().as_json()
    assert document["machine"]["cores"] >= 1
    assert platform.node() not in json.dumps(document["machine"])


def test_the_page_is_made_anew_between_its_markers(tmp_path):
    document = result().as_json()
    document["command"] = "python -m benchmarks some"
    write_json(tmp_path / "results" / "some.json", document)
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert update_page(page, tmp_path / "results", tables) == 1
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| some | `p99_ms` | at most 3.00 ms | 4.00 ms | MISSED |" in text
    update_page(page, tmp_path / "results", tables)
    assert page.read_text() == text


def test_headlines_are_in_words_and_every_missed_bar_is_among_them():
    documents = [
        BenchmarkResult(
            "start_up", {}, [{"first_event_s": 0.5}], (Bar("first_event_s", "at most", 2),), "x"
        ).as_json(),
        BenchmarkResult(
            "windows", {}, [{"one": 1, "two": 9}], (Bar("one", "at most", 2), Bar("two", "at most", 2)), "x"
        ).as_json(),
    ]
    assert headlines(documents).splitlines()[2:] == [
        "| start of a job: until the first row | 0.50 s | at most 2.00 s | met |",
        "| windows: `two` | 9 | at most 2 | MISSED |",
    ]


def test_each_headline_is_a_figure_with_a_bar_of_the_results_that_are_kept():
    names = {(name, label) for _, name, label in HEADLINES}
    documents = [json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").glob("*.json")]
    kept = {(each["name"], label) for each in documents for label, _, verdict in figure_rows(each) if verdict}
    assert names <= kept


def test_figures_that_must_be_0_have_a_row_only_if_they_are_not():
    bars = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
    documents = [
        BenchmarkResult(name, {}, [{"lost": lost, "duplicated": 0}], bars, "x").as_json()
        for name, lost in (("first", 0), ("second", 0), ("third", 2))
    ]
    text = tables(documents)
    bars_table, _, rest = text.partition("\n\n")
    assert bars_table.endswith("| third | `lost` | at most 0 | 2 | MISSED |")
    assert "first" not in bars_table
    assert rest.startswith(
        "0, as it must be: `lost`, `duplicated` of first, second.\n\n0, as it must be: `duplicated` of third.\n\n"
    )


def test_a_page_without_results_or_markers_is_refused(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text("no markers\n")
    with pytest.raises(InputError, match="run: make bench"):
        update_page(page, tmp_path, tables)
    write_json(tmp_path / "some.json", result().as_json() | {"command": "x"})
    with pytest.raises(InputError, match="needs the lines"):
        update_page(page, tmp_path, tables)
    assert page.read_text() == "no markers\n"


def test_queries_have_a_table_with_bars_and_a_chart_of_their_own():
    figures = {
        "events_per_second": 1_200_000.0,
        "events_per_second_per_core": 600_000.0,
        "cpu_seconds_per_million_events": 1.666,
        "peak_state_bytes": 3 << 20,
        "rows": 7,
    }
    slow = figures | {"events_per_second": 10.0, "events_per_second_per_core": 300_000.0}
    fast = figures | {"auction_events_per_second_per_core": 1_200_000.0, "equal_to_reference": True}
    queries = {"q0": fast, "q5": slow}
    bars = [Bar(f"queries: {name}: events_per_second", "at least", 300_000) for name in queries]
    document = BenchmarkResult("nexmark", {}, [{"queries": queries}], bars).as_json()
    assert [line["met"] for line in document["bars"]] == [True, False]
    text = tables([document])
    assert (
        "| q0 | 1,200,000 | 300,000 | met | 600,000 | 155,000 | 3.9 | 7.7 | 1.67 | 3 MiB | 7 | equal |"
        in text
    )
    assert "MISSED | 300,000 | 22,000 | 13.6 | 13.6 | 1.67 | 3 MiB | 7 | not compared |" in text
    assert f"q0  {'█' * 60} 600,000\nq5  {'█' * 30} 300,000\n" in text
