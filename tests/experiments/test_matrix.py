"""The latency experiments: labels, events, and small runs on real processes."""

import json
import time
from pathlib import Path

import polars as pl
import pytest

from experiments.matrix import OURS, PREDECESSOR, Configuration, configurations, write_events
from experiments.matrix_report import BEGIN, END, update_page
from experiments.matrix_run import Run, RunSettings, percentiles, run_matrix
from experiments.quiet import OthersShare, wait_for_idle
from experiments.scaling import Rescale
from weir.errors import InputError

ROOT = Path(__file__).parents[2]


def test_labels_have_the_form_of_the_predecessor():
    labels = {configuration.name: configuration.label(None) for configuration in PREDECESSOR}
    assert labels["local1"] == "local1: source=18, count=12, replicas=1, localkv, junk=5"
    assert labels["hybrid2"].endswith(
        "source=9, count=12, replicas=1, hybridkv, junk=5, cache=no, migrate=no"
    )
    scaled = PREDECESSOR[-1].label(1795201372576)
    assert scaled == (
        "hybrid5: source=9, count=12, replicas=2, hybridkv, junk=5, cache=yes, migrate=yes, migrate2=1795201372576"
    )


def test_all_configurations_do_the_same_work():
    everything = configurations("seeds")
    assert len({configuration.name for configuration in everything}) == len(everything) == 12
    assert {(item.count_ms, item.junk) for item in everything} == {(12.0, 5)}
    # Scaling out relieves a full stage in the one set, and is not needed in the other.
    assert {item.load for item in PREDECESSOR if item.scaled} == {1.0}
    assert {item.load for item in OURS} == {0.75}
    assert configurations("ours", ["calm_local"]) == [OURS[0]]


def test_three_of_every_four_events_pass_the_filter(tmp_path):
    write_events(tmp_path / "a", 400, 10)
    write_events(tmp_path / "b", 400, 10)
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    events = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [event["id"] % 4 != 0 for event in events] == [number % 4 != 0 for number in range(400)]
    assert {event["id"] for event in events} <= set(range(1, 101))
    assert {event["server_name"] for event in events} == {f"server-{number}" for number in range(1, 11)}


def test_phases_begin_with_the_request_and_end_with_the_completion():
    latencies = pl.DataFrame({"arrival_ms": [10, 20, 30, 40], "latency_ms": [1.0, 2.0, 3.0, 4.0]})
    report = {"phases": {"PLANNING": 20, "HANDING_OVER": 22, "MIGRATING": 25, "COMPLETE": 40}}
    figures = Run(latencies, Rescale(20, 21, report)).figures()
    assert [figures[name]["max_ms"] for name in ("before", "during", "after")] == [1.0, 3.0, 4.0]
    assert (figures["owned_ms"], figures["rescale_ms"]) == (5, 20)
    assert figures["phases_ms"] == {"PLANNING": 2, "HANDING_OVER": 3, "MIGRATING": 15}
    assert percentiles(latencies.head(0)) == {"events": 0}


def test_settled_begins_when_the_queue_is_gone():
    latencies = pl.DataFrame(
        {"arrival_ms": [10, 20, 30, 40, 50], "latency_ms": [1.0, 90.0, 80.0, 20.0, 25.0]}
    )
    report = {"phases": {"PLANNING": 15, "MIGRATING": 18, "COMPLETE": 25}}
    figures = Run(latencies, Rescale(15, 16, report), idle_latency_ms=22.0).figures()
    assert figures["after"]["max_ms"] == 80.0
    assert (figures["settled"]["max_ms"], figures["queue_gone_ms"]) == (25.0, 25)
    never = Run(latencies, Rescale(15, 16, report), idle_latency_ms=10.0).figures()
    assert (never["settled"], never["queue_gone_ms"]) == ({"events": 0}, None)


@pytest.mark.scenario
def test_results_and_sidecars_are_written(tmp_path, forked):
    settings = RunSettings(events=1400, warm_up_s=0.5, scale_after_s=4.5, repeat=1, keys=20)
    common = {"count_ms": 0.5, "junk": 1}
    lines = []
    paths = run_matrix(
        [
            Configuration("calm", 5, hybrid=False, **common),
            Configuration("scaled", 5, hybrid=True, scaled=True, **common),
        ],
        settings,
        tmp_path / "zout",
        lines.append,
    )
    assert [path.name for path in paths] == ["calm.txt", "scaled.txt"]
    assert [line.split(":")[0] for line in lines] == ["1/1 calm", "1/1 scaled"]
    for path in paths:
        rows = [line.split(",") for line in path.read_text().splitlines()]
        # Three quarters of what is read after the warm-up.
        assert len(rows) == 1_050
        assert rows == sorted(rows, key=lambda row: int(row[0]))
    calm, scaled = (json.loads(path.with_suffix(".json").read_bytes()) for path in paths)
    assert calm["label"] == "calm: source=5, count=0.5, replicas=1, localkv, junk=1"
    assert "scale_requested_ms" not in calm
    assert scaled["label"].endswith(f"cache=no, migrate=no, migrate2={scaled['scale_requested_ms']}")
    assert scaled["scale_requested_ms"] < scaled["scale_owned_ms"] <= scaled["scale_completed_ms"]
    assert (scaled["rescale"]["from"], scaled["rescale"]["to"]) == (1, 2)
    assert scaled["settings"]["taskManager.useCache"] == "false"
    assert scaled["figures"]["before"]["events"] > 20
    assert scaled["figures"]["after"]["events"] > 20
    assert scaled["machine"]["cores"] >= 1
    assert 0 <= scaled["figures"]["others_cpu_share"] <= 1
    assert scaled["repetitions"] == [scaled["figures"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed"], "there is no set 'seed'; there are seeds, predecessor, ours"),
        (["ours", "--only", "local1"], "--only local1: set ours has calm_local"),
    ],
)
def test_unknown_names_are_refused(tmp_path, arguments, message, monkeypatch, experiments):
    monkeypatch.chdir(tmp_path)
    code, output, errors = experiments("run", *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_the_report_judges_medians_of_repetitions(tmp_path):
    local, hybrid = (configurations("seeds", [name])[0] for name in ("calm_local", "calm_hybrid"))
    part = {"events": 9, "p50_ms": 18.0, "p99_ms": 30.0, "max_ms": 40.0}
    slow = {**part, "p50_ms": 23.0, "p99_ms": 51.0}

    def run(after):
        return {
            "all": part,
            "before": part,
            "during": {"events": 0},
            "after": after,
            "settled": after,
            "owned_ms": 7,
            "rescale_ms": 9,
            "queue_gone_ms": 10,
            "machine_stall_ms": 3.0,
            "others_cpu_share": 0.1,
        }

    machine = {"cores": 2, "processor": "some", "python": "3.11", "load_average_1_min": 0.5}
    (tmp_path / "calm_local.json").write_text(
        json.dumps({"repetitions": [run(part), run(part), run(slow)], "machine": machine})
    )
    (tmp_path / "calm_hybrid.json").write_text(
        json.dumps({"repetitions": [run(part), run(slow), run(slow)], "machine": machine})
    )
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    assert update_page(page, tmp_path) == 2
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "\nold\n" not in text
    lines = text.splitlines()
    assert f"| p50 after at most 22 ms | {local.name} | 18.00 | met |" in lines
    assert f"| p50 settled at most 22 ms | {hybrid.name} | 23.00 | MISSED |" in lines
    assert f"| p99 after at most 50 ms | {hybrid.name} | 51.00 | MISSED |" in lines
    assert f"| p50 after at most 1.2 times local's | {hybrid.name} | 1.28 | MISSED |" in lines
    assert any(
        "| 18.0 / 30.0 / 40.0 |  | 23.0 / 51.0 / 40.0 | 23.0 / 51.0 / 40.0 | 7 | 9 | 10 |" in x for x in lines
    )
    (tmp_path / "empty.md").write_text("")
    with pytest.raises(InputError, match="needs the lines"):
        update_page(tmp_path / "empty.md", tmp_path)
    with pytest.raises(InputError, match="no results in"):
        update_page(page, tmp_path / "nothing")


def test_others_are_told_from_the_own_processes():
    mine, theirs = OthersShare(), OthersShare()
    began_s = time.process_time()
    while time.process_time() < began_s + 0.3:
        pass
    used_s = time.process_time() - began_s
    assert theirs.share(0.0) > mine.share(used_s)
    assert not wait_for_idle(0.0)
