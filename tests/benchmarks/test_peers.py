"""The benchmark of peers: texts, files, results row by row, slopes, and what the page says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest

from benchmarks.commands.peers import peers
from benchmarks.peers import files, flink, spark, spark_driver, weir_engine
from benchmarks.peers.files import FORMATS, events_input, nexmark_input
from benchmarks.peers.flink import Flink
from benchmarks.peers.processes import Usage, run_measured
from benchmarks.peers.rows import as_told, difference, told_by_then
from benchmarks.peers.run import Bench, slope_figures
from benchmarks.peers.section import peers_section
from benchmarks.peers.task import RefusedError, Task
from benchmarks.peers.texts import QUERIES, TABLES
from benchmarks.report import PEERS, update_page
from experiments.processes import ClusterError
from weir.sql.program import build_program

ROOT = Path(__file__).parents[2]
AVERAGES = pl.DataFrame({"category": [10, 11, 11], "average": [1.5, 2.5, 2.5]})


def task(query: str, place: Path, *, keeps: bool = False) -> Task:
    tables = QUERIES[query].tables
    made = files.Input(dict.fromkeys(tables, place), dict.fromkeys(tables, place), 0)
    return Task(QUERIES[query], "json", made, place / "run", keeps=keeps)


@pytest.mark.parametrize("query", QUERIES)
def test_flink_and_weir_get_the_same_text_and_weir_takes_it(query, tmp_path):
    of_weir = weir_engine.script(task(query, tmp_path))
    of_flink = flink.script(task(query, tmp_path))
    text = QUERIES[query].text.strip()
    assert of_weir.endswith(f"{text};\n")
    assert of_flink.endswith(f"{text};\n")
    flow = build_program("script.sql", of_weir, "script", 1)
    nodes = {node.name: node for node in flow.build().nodes}
    made = nodes[nodes["result"].inputs[0].producer].schema.names
    assert [name for name in made if name in QUERIES[query].columns] == list(QUERIES[query].columns)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (AVERAGES, ""),
        (AVERAGES.reverse(), ""),
        (AVERAGES.with_columns(average=pl.col("average") * (1 + 1e-15)), ""),
        (AVERAGES.with_columns(average=pl.col("average") + 1e-9), "3 rows differ"),
        (AVERAGES.unique(), "2 rows, not 3"),
        (AVERAGES.with_columns(category=pl.Series([10, 10, 11])), "1 rows differ"),
        (AVERAGES.with_columns(average=pl.Series([1.5, None, 2.5])), "1 rows differ"),
    ],
    ids=["the same", "another order", "last digit", "more than that", "once", "another key", "null"],
)
def test_results_are_compared_row_by_row(found, told):
    assert difference(found, AVERAGES).startswith(told)
    assert bool(difference(found, AVERAGES)) == bool(told)


def test_times_of_all_systems_become_milliseconds():
    query = QUERIES["q7"]
    row = {"auction": [1], "price": [2], "bidder": [3]}
    ms = 1_436_918_400_120
    datetime = pl.Series([ms * 1000]).cast(pl.Datetime("us", "UTC"))
    for time in ([ms], ["2015-07-15 00:00:00.12Z"], ["2015-07-15 00:00:00.12"], datetime):
        assert as_told(query, pl.DataFrame({"date_time": time, **row}))["date_time"].to_list() == [ms]
    assert as_told(query, pl.DataFrame({"date_time": ["2015-07-15 00:00:00"], **row})).row(0)[-1] == ms - 120


def test_changes_of_flink_come_to_a_table(tmp_path):
    lines = [
        {"before": None, "after": {"category": 10, "average": 1.5}, "op": "c"},
        {"before": {"category": 10, "average": 1.5}, "after": None, "op": "d"},
        {"before": None, "after": {"category": 10, "average": 2.5}, "op": "c"},
    ]
    asked = task("q4", tmp_path, keeps=True)
    (asked.directory / "result").mkdir(parents=True)
    path = asked.directory / "result" / "part-0"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Flink().rows(asked).rows() == [(10, 2.5)]
    path.write_text(json.dumps(lines[1]) + "\n")
    with pytest.raises(ValueError, match="that was not there"):
        Flink().rows(asked)


def test_later_windows_than_those_of_a_result_are_left_out():
    expected = pl.DataFrame({"window_start": [0, 10, 10, 20]})
    kept, later = told_by_then(pl.DataFrame({"window_start": [0, 10]}), expected, "window_start")
    assert (kept["window_start"].to_list(), later) == ([0, 10, 10], 1)


def test_a_result_without_rows_is_not_equal():
    expected = pl.DataFrame({"window_start": [0, 10]})
    kept, later = told_by_then(expected.clear(), expected, "window_start")
    assert later == 0
    assert difference(expected.clear(), kept) == "0 rows, not 2"
    kept, _ = told_by_then(expected.clear(), expected.clear(), "window_start")
    assert difference(expected.clear(), kept) == ""


def test_both_cuts_of_a_stream_have_its_rows_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "EVENTS_PER_TRIGGER", 1_000)
    for form in FORMATS:
        made = nexmark_input(("person", "auction"), 5_000, 1_000, form, root=tmp_path)
        assert made.rows == 5_000 * 4 // 50
        for name in ("person", "auction"):
            read = pl.read_ndjson if form == "json" else pl.read_parquet
            turns, cuts = (
                [read(path) for path in sorted(places[name].iterdir())] for places in (made.tables, made.cuts)
            )
            assert len(turns) == 2
            assert len(cuts) == 5
            assert turns[0].columns == list(TABLES[name])
            assert all(part["date_time"].is_sorted() for part in turns)
            whole = pl.concat(cuts)
            assert whole["date_time"].is_sorted()
            assert pl.concat(turns).sort("id").equals(whole.sort("id"))


def test_flat_lines_are_the_same_in_parquet(tmp_path):
    lines = events_input(1_000, "json", root=tmp_path).tables["events"]
    columns = events_input(1_000, "parquet", root=tmp_path).tables["events"]
    expected = pl.concat([pl.read_ndjson(path) for path in sorted(lines.iterdir())])
    assert pl.concat([pl.read_parquet(path) for path in sorted(columns.iterdir())]).equals(expected)


def test_what_a_start_takes_is_not_in_a_slope():
    figures = slope_figures(Usage(11.0, 20.0, 1), Usage(13.0, 23.0, 2), 100, 400)
    assert figures["events_per_second"] == 150
    assert figures["events_per_second_per_core"] == 100
    assert figures["cores"] == 1.5
    assert slope_figures(Usage(2.0, 1.0, 1), Usage(1.0, 1.0, 1), 1, 2)["events_per_second_per_core"] is None


def test_a_program_that_fails_is_told_with_the_end_of_its_log(tmp_path):
    command = [sys.executable, "-c", "print('no such table'); raise SystemExit(3)"]
    with pytest.raises(ClusterError, match=r"(?s)peer ended with 3.*no such table"):
        run_measured(command, tmp_path / "log", name="peer")


def test_cpu_of_a_program_and_of_its_own_children_is_counted(tmp_path):
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    assert run_measured([sys.executable, "-c", code], tmp_path / "log", name="peer").cpu_s >= 0.2


def document(**figures: object) -> dict[str, object]:
    return {
        "name": "peers",
        "command": "python -m benchmarks peers",
        "measured": "2026-11-29T12:00:00Z",
        "machine": {"cores": 2, "processor": "a processor"},
        "repeats": [{}],
        "config": {
            "versions": {"flink": "2.3.0", "weir": "0.1.0"},
            "settings": {"flink": {"heap": "4g"}, "weir": {"parallelism": 2}},
        },
        "json": {"q1": figures},
    }


def test_the_page_says_where_a_peer_is_faster():
    speeds = {
        "flink": {"events_per_second_per_core": 1000.0},
        "weir": {"events_per_second_per_core": 500.0},
        "ratio_to_flink_per_core": 0.5,
        "ratio_to_flink": 2.0,
        "equal_to_flink": True,
    }
    told = peers_section([document(**speeds)])
    assert "| q1 | JSON lines | 1,000 | 500 | 0.5 | equal |" in told
    assert "Faster than Weir: Flink in q1 from JSON lines (2.0 times, per core)." in told
    assert "Flink 2.3.0, Weir 0.1.0" in told
    assert "`heap=4g`" in told
    speeds |= {"ratio_to_flink_per_core": 2.0, "equal_to_flink": False}
    told = peers_section([document(**speeds)])
    assert "No peer is faster" in told
    assert "DIFFERENT" in told


def test_the_page_says_what_a_peer_refuses():
    told = peers_section([document(flink={"refused": "no such join"}, weir={})])
    assert "| q1 | JSON lines | refused |" in told
    assert "Flink refuses q1: no such join" in told
    assert "faster" not in told, "nothing was compared"
    assert "among the results" in peers_section([{"name": "throughput"}])


def test_the_page_says_which_runs_failed():
    told = peers_section([document(weir={}) | {"failed": {"q1 from json on flink": "out of memory"}}])
    assert "Failed: q1 from json on flink." in told
    assert "Failed" not in peers_section([document(weir={})])


def test_the_performance_page_has_a_place_for_the_peers(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text((ROOT / "docs/performance.md").read_text("utf-8"), "utf-8")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "peers.json").write_text(json.dumps(document(flink={}, weir={})))
    update_page(page, tmp_path / "results", peers_section, PEERS)
    assert "Flink 2.3.0, Weir 0.1.0" in page.read_text("utf-8")


class FakeSystem:
    """Runs as it is told to."""

    def __init__(self, *outcomes: Usage | Exception) -> None:
        self.outcomes = [*outcomes]

    def run(self, task: Task) -> Usage:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_what_fails_or_is_refused_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The middle one of three counts.
    small = [Usage(1.0, cpu_s, 1) for cpu_s in (1.0, 0.5, 9.0)]
    large = [Usage(2.0, cpu_s, 1) for cpu_s in (3.0, 0.1, 9.0)]
    systems = {
        "flink": FakeSystem(ClusterError("out of memory")),
        "spark": FakeSystem(RefusedError("no such join")),
        "weir": FakeSystem(*small, *large),
    }
    bench = Bench(tmp_path, systems, lambda step, done: None)
    figures = bench.figures("servers", "json", 300, 0)
    assert figures["spark"] == {"refused": "no such join"}
    assert figures["weir"]["events_per_second_per_core"] == 400
    assert bench.found.figures() == {"failed": {"servers from json on flink": "out of memory"}}


@pytest.mark.scenario
@pytest.mark.spark
@pytest.mark.usefixtures("no_spark", "forked")
def test_spark_and_weir_have_the_same_windows(tmp_path, monkeypatch):
    def drive_here(command, log_path, *, name):
        """A process of its own takes longer to start a JVM than the query takes."""
        assert spark_driver.main(command[-1]) == 0
        return Usage(1.0, 1.0, 1)

    monkeypatch.setattr(spark, "run_measured", drive_here)
    path, systems = tmp_path / "result.json", ["spark", "weir"]
    with pytest.raises(SystemExit) as ended:
        peers(json=path, only=["q7"], system=systems, format=["json"], events=0, compared_events=40_000)
    assert ended.value.code == 0
    assert json.loads(path.read_text())["json"]["q7"]["equal_to_spark"] is True
