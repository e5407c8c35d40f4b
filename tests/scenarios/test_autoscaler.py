"""A stage of a job on real processes that grows by itself when its load does, and shrinks when that is over."""

import json
import sys
from collections import Counter

import pytest

from experiments.cluster import FINAL_STATES
from experiments.page_clusters import PageCluster

pytestmark = pytest.mark.scenario

SCORE = 3
#: Times of minutes are of seconds here.
QUICK = {
    "autoscaler.enabled": "true",
    "autoscaler.window_s": 2,
    "autoscaler.cool_down_s": 0.5,
    "autoscaler.catch_up_s": 10,
    # A stage keeps its subtasks twelve times as long while its load moves, as a load of next to nothing always does.
    "autoscaler.scale_down_after_s": 1,
    # After a change of another stage this one would wait. From the first rows alone it could seem to need one subtask.
    "autoscaler.stages": "score=2..8,views=off,count=off,out=off",
}


def parallelism(status):
    return status["stages"][SCORE]["parallelism"]


def test_a_loaded_stage_grows_and_shrinks_by_itself_and_no_row_is_lost(tmp_path, forks):
    told = tmp_path / "told"
    (tmp_path / "hook.py").write_text(
        f"import os; open({str(told)!r}, 'w').write(os.environ['WEIR_SLOTS_MISSING'])"
    )
    hook = f"{sys.executable},{tmp_path / 'hook.py'}"
    # As many slots as the job has subtasks: those that are added are on the task manager that comes.
    settings = {**QUICK, "taskManager.operator_quota": 3, "autoscaler.hook_command": hook}
    # What changes owners waits behind rows of 7 ms each.
    settings["taskManager.operator_bufferSize"] = 10
    even = {"has_hot_key": False, "popen": forks.popen}
    with PageCluster(tmp_path / "job", task_managers=3, settings=settings, **even) as cluster:
        # Of the 400 rows a second of both sources each takes 7 ms: three subtasks have to work nearly all of the time.
        cluster.slow_down(7_000)
        # For 200 seconds: the job must not end before it has shrunk, which ends it.
        cluster.run_job(events=40_000, rate=200.0)
        status = cluster.wait_for(lambda status: status["autoscaler"]["slots_missing"] > 0, "missing slots")
        assert "missing: start task managers" in status["autoscaler"]["text"]
        cluster.wait_for(lambda status: told.exists() and told.read_text() != "", "a call of the hook")
        assert int(told.read_text()) >= 1
        cluster.start_task_manager()
        grown = cluster.wait_for(lambda status: parallelism(status) > 2, "subtasks that were added")
        decided = grown["autoscaler"]["decisions"][0]
        assert (decided["stage"], decided["before"]) == (SCORE, 2)
        assert decided["text"].startswith("scales stage 3 `score` from 2 to ")
        cluster.slow_down(0)
        shrunk = cluster.wait_for(lambda status: parallelism(status) < 3, "subtasks that were taken away")
        assert shrunk["autoscaler"]["decisions"][-1]["after"] < 3
        assert shrunk["generation"] == 1
        metrics = cluster.http("GET", "/metrics")[1]
        assert 'weir_autoscaler_decisions_total{direction="up",job="face"}' in metrics
        savepoint = cluster.directory / "savepoints" / "end"
        assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
        status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
        assert status["state"] == "STOPPED"
    parts = (cluster.directory / "out").glob("part-*")
    counts = [json.loads(line)["count"] for part in parts for line in part.read_text().splitlines()]
    # What was read before the end is all there, once: of each key the counts are those from 1 on.
    assert len(counts) == status["totals"]["events_in"] > 1_000
    by_count = Counter(counts)
    assert [by_count[n] for n in range(1, max(counts) + 1)] == sorted(by_count.values(), reverse=True)
