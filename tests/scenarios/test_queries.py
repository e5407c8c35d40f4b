"""Questions to a running job: right or "try again", before, while and after it is rescaled and a process is killed."""

import re
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import weir
from experiments.processes import ClusterError
from tests.scenarios.conftest import SERVERS
from tests.scenarios.losses import task_manager_of
from tests.scenarios.patience import rescale_patiently
from weir.questions.client import AskError

pytestmark = pytest.mark.scenario

PAGE = Path(__file__).resolve().parents[2] / "docs/queries.md"
EVENTS = 6_000
KEYS = sorted({f"server-{number % SERVERS}" for number in range(EVENTS)})
#: A slow machine takes its time.
PATIENCE_S = 120
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 1_000,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
    # The askers never rest. By default rows would wait for whatever else runs on the machine, and then for their lease.
    "taskManager.niceness": 2,
}


class Asker(threading.Thread):
    """Asks for one key again and again, without asking a refused question again."""

    def __init__(self, address, key, step="seen", state="seen"):
        super().__init__()
        self.connection = weir.connect(address, timeout_s=PATIENCE_S, patience_s=0)
        self.path = f"/state/{step}/{state}/{key}"
        self.seen, self.refused, self.failure, self.ends = [], [], None, threading.Event()

    def run(self):
        while not self.ends.is_set():
            try:
                _, answer = self.connection.ask(self.path, {})
                value = answer.get("value", 0)
                # Of windows the one that is open: all rows of a key are one session.
                self.seen.append(
                    (answer["generation"], value if isinstance(value, int) else value[0]["value"])
                )
            except AskError as error:
                self.refused.append(error)
            except weir.WeirError as error:
                self.failure = error
                break
            time.sleep(0.01)
        self.connection.close()

    def finish(self):
        """What it was told never goes back, unless the job begins anew from a checkpoint."""
        self.ends.set()
        self.join()
        assert self.failure is None
        assert self.seen == sorted(self.seen), "an answer was older than one before it"
        assert self.seen
        assert {error.status for error in self.refused} <= {503}
        assert all("try again" in str(error) for error in self.refused)


def patient(address):
    return weir.connect(address, timeout_s=PATIENCE_S, patience_s=PATIENCE_S)


def get(cluster, path):
    """Status and answer of a page, once it is not "try again"."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        status, answer = cluster.http("GET", path)
        if status not in (429, 503) or time.monotonic() > deadline_s:
            return status, answer
        time.sleep(0.1)


def had(address):
    """How many rows each part of the last checkpoint has, and whether the newest of each key are there."""
    with patient(address) as job:
        counts = {name: int(job.state(name, state).range()["value"].sum()) for name, state in COUNTS}
        sessions = job.state("sessions", "rides").range().explode("value").unnest("value")
        marks = job.state("ruled", "broadcast").get("latest", consistency="checkpoint")
        newest = (
            job.state("newest", "top").range()["value"].list.first().struct.field("value").struct.field("id")
        )
    is_newest = set(newest) >= set(range(EVENTS - 1, EVENTS - SERVERS - 1, -1))
    return counts | {"sessions": int(sessions["value"].sum()), "marks": marks, "has newest": is_newest}


#: What :func:`had` returns when all rows are there.
ALL = {"states": EVENTS, "seen": EVENTS, "sessions": EVENTS, "marks": EVENTS - 1_000, "has newest": True}
COUNTS = [("states", "count"), ("seen", "seen")]


def wait_for_all(cluster, address):
    """Wait until the last checkpoint has every row."""
    found = {}

    def has_all(_):
        found.update(had(address))
        return found == ALL

    try:
        cluster.wait_for(has_all, "a checkpoint of everything", PATIENCE_S)
    except ClusterError as error:
        error.add_note(f"it had {found}")
        raise


def check_keys(address, consistency):
    """What each kind of state has for some keys."""
    given = {"consistency": consistency}
    with patient(address) as job:
        of = {
            name: job.state("states", name)
            for name in (
                "count",
                "most",
                "total",
                "text",
                "recent",
                "digits",
                "versions",
                "windows",
                "visits",
            )
        }
        for key in KEYS[:3]:
            ids = [number for number in range(EVENTS) if f"server-{number % SERVERS}" == key]
            assert job.state("seen", "seen").get(key, **given) == len(ids)
            assert of["count"].get(key, **given) == len(ids)
            assert of["most"].get(key, **given) == max(number % 1_000 for number in ids)
            assert of["total"].get(key, **given) == sum(ids) / 2
            assert of["text"].get(key, **given).endswith(f".{ids[-1]}")
            assert of["recent"].get(key, **given)[-1] == ids[-1]
            digits = of["digits"].get(key, **given)
            assert sum(item["value"] for item in digits) == len(ids)
            assert of["digits"].get(key, limit=2, reverse=True, **given) == digits[:-3:-1]
            threes = [item for item in digits if item["key"] == 3]
            assert (of["digits"].get(key, first=3, last=3, **given) or []) == threes
            assert of["versions"].get(key, **given) == ids[-1]
            assert of["versions"].get(key, as_of=ids[-3], **given) == ids[-3]
            assert of["versions"].get(key, as_of=0, **given) is None
            history = of["versions"].get(key, first=ids[-3], reverse=True, **given)
            assert [version["value"] for version in history] == ids[:-4:-1]
            windows = of["windows"].get(key, first=EVENTS - 500, **given)
            assert [window["value"] for window in windows] == [sum(number >= EVENTS - 500 for number in ids)]
            assert of["visits"].get(key, **given)[-1]["end"] == ids[-1]
        assert job.state("seen", "seen").get("nobody", **given) is None


def ids_of(key):
    return [number for number in range(EVENTS) if f"server-{number % SERVERS}" == key]


def check_windows(address, consistency):
    """Windows that are open, sessions and top rows, of one key and of all."""
    given = {"consistency": consistency}
    with patient(address) as job:
        for state, of_ids in (("rides", len), ("total", sum), ("kinds", len), ("middle", middle_of)):
            hops = job.state("hops", state)
            ranged = {row["key"]: row["value"] for row in hops.range(**given).to_dicts()}
            assert sorted(ranged) == KEYS
            late = {
                row["key"]: row["value"] for row in hops.range(time_from=EVENTS - 250, **given).to_dicts()
            }
            for key in KEYS[:3]:
                windows = hops.get(key, **given)
                assert ranged[key] == windows
                assert [window["start"] for window in windows][-1] == EVENTS - 250
                for window in windows:
                    within = [number for number in ids_of(key) if window["start"] <= number < window["end"]]
                    assert window["value"] == pytest.approx(of_ids(within), rel=0.011)
                    assert state == "middle" or window["value"] == of_ids(within)
                assert late[key] == windows[-1:] == hops.get(key, first=EVENTS - 250, **given)
        assert job.state("hops", "rides").count(**given) == len(KEYS)
        sessions, newest = job.state("sessions", "rides"), job.state("newest", "top")
        for key in KEYS[:3]:
            ids = ids_of(key)
            assert sessions.get(key, **given) == [{"start": ids[0], "end": ids[-1] + 500, "value": len(ids)}]
            rows = newest.get(key, **given)
            assert [(row["rank"], row["value"]["id"]) for row in rows] == list(enumerate(ids[:-4:-1], 1))
            assert sessions.get(key, last=ids[0] - 1, **given) is None
            assert job.state("sessions", "kinds").get(key, **given)[0]["value"] == len(ids)
        pages = list(sessions.pages(limit=2, **given))
        assert [row["key"] for page in pages for row in page["rows"]] == KEYS
        assert newest.range(KEYS[1], KEYS[2], **given)["key"].to_list() == KEYS[1:3]
        versions = job.state("states", "versions")
        as_of = EVENTS - 1_000
        before = [max(number for number in ids_of(key) if number <= as_of) for key in KEYS]
        assert versions.range(as_of=as_of, **given)["value"].to_list() == before
        digits = job.state("states", "digits").range(prefix=KEYS[0], **given)
        assert digits["key"].to_list() == [key for key in KEYS if key.startswith(KEYS[0])]
        assert sum(item["value"] for item in digits["value"][0].to_list()) == len(ids_of(KEYS[0]))


def middle_of(ids):
    """As ``weir.quantile`` has it: the element of that rank."""
    return sorted(ids)[(len(ids) - 1) // 2]


def check_kept_rows(address, consistency):
    """What steps keep as rows: windows for code of the author, joins, and the dict of a broadcast."""
    given = {"consistency": consistency}
    with patient(address) as job:
        kept, paired, ruled = (
            job.state(step, state)
            for step, state in (("kept", "rows"), ("paired", "rows"), ("ruled", "broadcast"))
        )
        ranged = {row["key"]: row["value"] for row in kept.range(**given).to_dicts()}
        pairs = {row["key"]: row["value"] for row in paired.range(**given).to_dicts()}
        assert sorted(ranged) == sorted(pairs) == KEYS
        for key in KEYS[:3]:
            windows = kept.get(key, **given)
            assert (windows[-1]["start"], windows[-1]["end"]) == (EVENTS - 500, EVENTS)
            for window in windows:
                within = [n for n in ids_of(key) if window["start"] <= n < window["end"]]
                assert [row["id"] for row in window["value"]] == within
            assert ranged[key] == windows
            told = paired.get(key, **given)
            marks = [mark["value"]["id"] for mark in told["right"]]
            assert all(mark["time"] == mark["value"]["id"] for mark in told["right"])
            # Those whose partners may come; a checkpoint may have more.
            late = [number for number in ids_of(key) if number % 10 == 0 and number >= EVENTS - 500]
            assert marks[len(marks) - len(late) :] == late
            assert pairs[key]["right"][-1:] == told["right"][-1:]
            assert told["left"][-1]["time"] == ids_of(key)[-1]
        found = {number: {"server": f"server-{number % SERVERS}"} for number in range(0, EVENTS, 1_000)}
        assert ruled.get("latest", **given) == EVENTS - 1_000
        assert {number: ruled.get(str(number), **given) for number in found} == found
        assert ruled.get("1", **given) is None
        assert ruled.count(**given) == len(found) + 1
        pages = ruled.pages("1000", "5000", limit=2, **given)
        rows = [row for page in pages for row in page["rows"]]
        assert rows == [{"key": str(number), "value": found[number]} for number in list(found)[1:]]


def check_min_checkpoint(address):
    """A checkpoint that is to come is waited for; one that is far is not."""
    with patient(address) as job:
        page = next(job.state("seen", "seen").pages(limit=1))
        wanted = page["checkpoint"] + 1
        page = next(job.state("seen", "seen").pages(limit=1, min_checkpoint=wanted))
        assert page["checkpoint"] >= wanted
        assert job.state("seen", "seen").get(KEYS[0], min_checkpoint=wanted) == len(ids_of(KEYS[0]))
    with weir.connect(address, timeout_s=PATIENCE_S, patience_s=0) as job, pytest.raises(AskError) as refused:
        job.state("seen", "seen").get(KEYS[0], min_checkpoint=10**9)
    assert refused.value.status == 503
    assert "the last one is" in str(refused.value)


def check_latest_ranges(address, entries):
    """Ranges over keys as their owners have them now, when everything is in."""
    with patient(address) as job:
        count, given = job.state("seen", "seen"), {"consistency": "latest"}
        assert count.range(**given).to_dicts() == entries
        assert count.range(prefix="server-1", reverse=True, **given).to_dicts() == [
            entry for entry in entries[::-1] if entry["key"].startswith("server-1")
        ]
        pages = list(count.pages(limit=2, **given))
        assert [row for page in pages for row in page["rows"]] == entries
        for page in pages:
            assert page["consistency"] == "latest"
            assert sum(part["key_groups"] for part in page["parts"]) == 16
            assert all(part["watermark_ms"] is not None for part in page["parts"])
        assert count.count(**given) == len(KEYS)
        ends = [job.state("states", "text").range(**each)["value"].to_list() for each in (given, {})]
        assert ends[0] == ends[1]


def check_ranges(address):
    """Ranges over keys; returns keys and values as the paths of a state store show them."""
    with patient(address) as job:
        count = job.state("seen", "seen")
        frame = count.range()
        assert frame["key"].to_list() == KEYS
        assert frame["value"].sum() == EVENTS
        assert count.range(KEYS[1], KEYS[2])["key"].to_list() == KEYS[1:3]
        assert count.range(prefix="server-1", reverse=True)["key"].to_list() == [
            key for key in KEYS[::-1] if key.startswith("server-1")
        ]
        pages = list(count.pages(limit=2))
        assert [row["key"] for page in pages for row in page["rows"]] == KEYS
        assert len({page["checkpoint"] for page in pages}) == 1
        assert count.count() == len(KEYS)
        for step, state in (("seen", "none"), ("none", "n"), ("events", "n")):
            with pytest.raises(AskError) as refused:
                job.state(step, state).get("a")
            assert refused.value.status == 404
    return frame.to_dicts()


def check_pages(cluster, entries):
    """The paths of a state store, refusals, and the examples of the documentation."""
    for path, answer in {
        f"/keyvalue/{KEYS[0]}": entries[0],
        "/all": entries,
        "/reverseAll": entries[::-1],
        f"/range/{KEYS[1]}/{KEYS[2]}": entries[1:3],
        f"/reverseRange/{KEYS[1]}/{KEYS[2]}": entries[2:0:-1],
        "/prefixScan/server-1": [entry for entry in entries if entry["key"].startswith("server-1")],
        "/approximateNumEntries": {"key": "approximateNumEntries", "value": len(KEYS)},
    }.items():
        assert get(cluster, f"{path}?step=seen") == (200, answer)
    for path, status in {
        "/all": 400,
        "/state/states/recent?time_from=1": 400,
    }.items():
        assert get(cluster, path)[0] == status
    examples = re.findall(r'^curl "localhost:9008(/[^"]*)"', PAGE.read_text(), re.MULTILINE)
    assert len(examples) > 10
    for example in examples:
        assert get(cluster, example)[0] == 200, example


def test_questions_while_a_job_runs_is_rescaled_and_fails(make_cluster, tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": events, "release": tmp_path / "release"}
    cluster.start_control_plane("flow_queries", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    status = cluster.wait_for(
        lambda status: len(status["task_managers"]) == 3 and (status["latest_checkpoint"] or 0) >= 1,
        "three task managers and a checkpoint",
    )
    address = f"127.0.0.1:{cluster.http_port}"
    # Any instance answers for all, the one without a subtask too.
    instances = [address, *(item["http"] for item in status["task_managers"])]
    stage = next(stage["stage"] for stage in status["stages"] if "seen" in stage["name"].split(" -> "))

    windows = next(stage["stage"] for stage in status["stages"] if "sessions" in stage["name"].split(" -> "))
    askers = [Asker(instance, KEYS[0]) for instance in instances]
    askers += [Asker(instances[0], KEYS[0], "sessions", "rides")]
    askers += [Asker(instances[1], KEYS[0], "sessions", "kinds")]
    askers += [Asker(instances[1], "latest", "ruled", "broadcast")]
    for asker in askers:
        asker.start()
    for parallelism in (3, 1):
        rescale_patiently(cluster, stage, parallelism)
    if windows != stage:
        rescale_patiently(cluster, windows, 3)
    cluster.wait_for(lambda _: all(asker.seen or asker.failure for asker in askers), "an answer to each")
    for asker in askers:
        asker.finish()

    wait_for_all(cluster, address)
    for instance in instances:
        check_keys(instance, "latest")
    check_keys(instances[-1], "checkpoint")
    check_windows(instances[1], "latest")
    check_windows(instances[-1], "checkpoint")
    check_kept_rows(instances[1], "latest")
    check_kept_rows(address, "checkpoint")
    check_min_checkpoint(instances[1])
    entries = check_ranges(address)
    assert check_ranges(instances[1]) == entries
    check_latest_ranges(instances[-1], entries)
    check_pages(cluster, entries)
    _, answer = get(cluster, f"/state/states/versions/{KEYS[0]}?consistency=checkpoint")
    assert answer["watermark_ms"] > 0
    wanted = ("weir_questions_total{", 'step="seen"', 'consistency="latest"', 'result="answered"')
    for instance in instances:
        with urllib.request.urlopen(f"http://{instance}/metrics", timeout=PATIENCE_S) as page:
            lines = page.read().decode().splitlines()
        assert any(all(part in line for part in wanted) for line in lines), f"{instance} has answered"

    task_manager_of(cluster, stage).popen.kill()
    with patient(address) as job:
        # What is answered is right, or what the checkpoint had, which has everything.
        assert job.state("seen", "seen").get(KEYS[0]) == entries[0]["value"]
    check_windows(address, "latest")
