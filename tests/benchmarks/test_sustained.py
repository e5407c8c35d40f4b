"""What a machine cannot do says nothing of the engine: a lower rate is tried, or nothing is judged."""

from __future__ import annotations

import json
from functools import partial

import pytest

from benchmarks import rescale
from benchmarks.command_line import execute
from benchmarks.queries import check_refusal
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.sustained import OverloadedError, at_a_rate_that_lasts, behind_s, check_quick

BARS = (Bar("p99_ms", "at most", 60), Bar("lost", "at most", 0))


def up_to(limit, tried):
    def attempt(rate):
        tried.append(rate)
        if rate > limit:
            raise OverloadedError("the job is 7.8 s behind its schedule")
        return {"p99_ms": 5.0, "lost": 0}

    return attempt


@pytest.mark.parametrize(
    ("limit", "tried", "how"),
    [
        (80_000, [50_000], "as given"),
        (20_000, [50_000, 25_000, 12_500], "found: the machine does not keep up with more"),
    ],
)
def test_the_figures_say_at_which_rate_they_are(limit, tried, how):
    met, said = [], []
    figures = at_a_rate_that_lasts(50_000, up_to(limit, met), lambda step, done: said.append(step))
    assert met == tried
    assert figures["p99_ms"] == 5.0
    assert (figures["judged"], figures["rate"], figures["rate_given"]) == (1, tried[-1], 50_000)
    assert figures["rate_is"] == how
    assert len(said) == len(tried) - 1


def test_what_cannot_be_judged_is_said_and_not_failed(tmp_path, capsys):
    tried = []
    figures = at_a_rate_that_lasts(50_000, up_to(100, tried), lambda step, done: None)
    assert tried == [50_000, 25_000, 12_500, 6_250]
    document = BenchmarkResult("rescale", {}, [figures], BARS).as_json()
    assert document["bars"] == []
    with pytest.raises(SystemExit) as ended:
        execute(lambda report: document, tmp_path / "result.json")
    assert ended.value.code == 4
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["judged"] == 0
    assert written["not_judged"] == "at 6,250 events/s the job is 7.8 s behind its schedule"
    assert "not judged: this machine does not keep up; at 6,250 events/s" in capsys.readouterr().err


def test_a_wrong_result_is_no_overload():
    def wrong(rate):
        raise ValueError("3 events lost")

    with pytest.raises(ValueError, match="3 events lost"):
        at_a_rate_that_lasts(50_000, wrong, lambda step, done: None)


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_question_that_comes_too_late_is_an_overload(status):
    with pytest.raises(OverloadedError, match="takes longer than 5 s"):
        check_refusal(status, "the question takes longer than 5 s: ask for less, or with a limit")


def test_a_question_that_is_refused_otherwise_is_a_fault():
    check_refusal(0, "")
    with pytest.raises(BenchmarkError, match="no state") as raised:
        check_refusal(404, "there is no state")
    assert not isinstance(raised.value, OverloadedError)


def test_a_job_is_behind_by_what_was_due():
    status = {"started_ms": 10_000, "totals": {"events_in": 2_000}}
    assert behind_s(status, 1_000.0, 12.0) == 0
    assert behind_s(status, 1_000.0, 19.5) == 7.5


def test_rows_that_take_long_before_anything_happens_are_an_overload():
    check_quick({"events": 10, "p50_ms": 20.0})
    with pytest.raises(OverloadedError, match="behind its schedule: its p50 is 7,800 ms"):
        check_quick({"events": 10, "p50_ms": 7_800.0})
    with pytest.raises(OverloadedError, match="nothing is delivered in time"):
        check_quick({"events": 0, "p50_ms": None})


@pytest.mark.scenario
def test_a_rate_that_no_machine_sustains_is_halved(tmp_path, monkeypatch, forked):
    twice = partial(at_a_rate_that_lasts, rates_max=2)
    monkeypatch.setattr(rescale, "at_a_rate_that_lasts", twice)
    # Each row is a call of a Python function.
    options = rescale.RescaleOptions(
        state="user-records",
        state_bytes=1e6,
        rate=4_000_000,
        duration_s=0.5,
        settle_s=2.5,
        before_s=0.2,
        data_root=tmp_path,
    )
    said = []
    document = rescale.run(options, lambda step, done: said.append(step)).as_json()
    assert (document["judged"], document["rate_given"]) == (0, 4_000_000)
    assert any("not keep up: at 4,000,000 events/s the job is" in step for step in said)
    assert document["not_judged"].startswith("at 2,000,000 events/s the job is ")
