"""Jobs of all kinds say on real processes what they say in ``weir.run``, through rescales, bad rows and a kill -9."""

import json
from collections import Counter
from pathlib import Path

import pytest

import weir
from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from tests.effort import IS_LONG
from tests.equal.equal_jobs import JOBS, flow_of
from tests.equal.equal_rows import write_input
from tests.equal.equal_runs import differences, said, said_in_one_process
from tests.equal.row_jobs import POISON
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.patience import rescale_patiently

pytestmark = pytest.mark.scenario

ROWS = 120
#: Those whose stages are rescaled; a subtask of the last one is lost.
RESCALED = ["session", "join_within_full", "process_histories"]
#: A function that raises: its rows are put aside after a restart.
POISONED = "poison_of_process"
QUIET = "union_of_quiet"
CHOSEN = [
    *("sliding", "lateness_session_changes", "early_late", "window_process", "window_top", "triggered"),
    *("join_between_left", "join_ttl_full", "as_of_left", "join_all_within", "join_then_sessions"),
    *("odd_batches", "process_expiring", "process_sides", "process_of_join", "broadcast_then_windows"),
    *("top", "deduplicate_within", "running", "join_changes", "map_async_unordered", "assigned_process"),
    *("bad_lines", "bad_times", "put_aside", "sql_over"),
]
OTHERS = [name for name in JOBS if name not in [*RESCALED, POISONED, QUIET, *CHOSEN]]
#: Each in one dataflow.
PARTS = {"chosen": CHOSEN} | ({f"others_{part}": OTHERS[part::4] for part in range(4)} if IS_LONG else {})
SETTINGS = {
    "taskManager.operator_quota": 1_000,
    "taskManager.batch_size": 20,
    "controlPlane.checkpoint_interval_ms": 1_000,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.restart_attempts": 20,
    "controlPlane.poison_attempts": 1,
}


def stage_of(cluster, step):
    return next(
        node["stage"] for node in cluster.http("GET", "/plan")[1]["operators"] if node["name"] == step
    )


def said_on_processes(cluster, output, compare):
    """As :func:`tests.equal.equal_runs.said_in_one_process`."""

    def rows_of(name):
        for part in (output / name).glob("part-*"):
            for line in part.read_text().splitlines():
                row = json.loads(line)
                yield row | {"_event_time_ms": row.pop("time_ms")}

    letters = Counter()
    for path in (cluster.directory / "dead_letters").rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            letter = json.loads(line)
            columns = (letter[column] for column in ("source", "position", "reason", "raw"))
            letters[path.name.partition(".")[0], *columns] += 1
    found = {name: said(rows_of(name), kind) for name, kind in compare.items()}
    return found | {"late rows": cluster.status()["totals"]["rows_late"], "dead letters": dict(letters)}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_jobs_say_the_same_as_in_one_process(make_cluster, tmp_path, release, part):
    names = [*RESCALED, POISONED, QUIET, *part]
    write_input(tmp_path, ROWS)
    quiet_release = Path(f"{release}_quiet")
    keep_back(release, 0.75)
    keep_back(quiet_release, 0.5)
    # Status pages of so many subtasks cost more than what is waited for.
    cluster = make_cluster(settings=SETTINGS, poll_s=0.4)
    parameters = {"input": tmp_path, "output": tmp_path / "out", "names": ",".join(names)}
    parameters |= {"parallelism": 2, "release": release}
    cluster.start_control_plane("flow_equal", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)

    flow, compare = flow_of(tmp_path, names, 2)
    expected = said_in_one_process(weir.run(flow), compare)

    def read_on(kept_back, what):
        before = cluster.status()["totals"]["events_in"]
        keep_back(release, kept_back)
        cluster.wait_for(lambda status: status["totals"]["events_in"] > before, what)

    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")
    for job in RESCALED:
        rescale_patiently(cluster, stage_of(cluster, job), 3)
    read_on(0.5, "rows after the rescales")
    # The rows that functions cannot stand are among them.
    cluster.wait_for(lambda status: status["generation"] > 1 and status["state"] == "RUNNING", "the restart")
    lose_task_manager(cluster, stage_of(cluster, RESCALED[-1]), -1)
    read_on(0.25, "rows after the loss")
    rescale_patiently(cluster, stage_of(cluster, RESCALED[0]), 1)
    # Windows of both inputs do not wait for the one that has no rows for now.
    cluster.wait_for(lambda _: list((tmp_path / "out" / QUIET).glob("part-*")), "windows of both inputs")
    for path in (release, quiet_release):
        path.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 300)
    assert (status["state"], status["cause"]) == ("FINISHED", "")

    found = said_on_processes(cluster, tmp_path / "out", compare)
    poison = {letter for letter in found["dead letters"] if letter[0] == POISONED}
    assert {json.loads(letter[-1])["v"] for letter in poison} == POISON
    kept = (cluster.directory / "dead_letters").rglob(f"{POISONED}.*")
    assert sum(found["dead letters"].pop(letter) for letter in poison) == len(POISON), [
        path.read_text() for path in kept
    ]
    wrong = differences(expected, found)
    # pytest cuts long ones.
    few = {name: [list(items.items())[:5] for items in both] for name, both in wrong.items()}
    assert not wrong, "\n".join(f"{name}: expected {want}, found {got}" for name, (want, got) in few.items())
