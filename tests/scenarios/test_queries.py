"""Questions to a running job: right or "try again", before, while and after it is rescaled and a process is killed."""

import re
import threading
import time
from pathlib import Path

import pytest

import weir
from experiments.scaling import rescale
from tests.scenarios.conftest import SERVERS
from weir.client import AskError

pytestmark = pytest.mark.scenario

PAGE = Path(__file__).resolve().parents[2] / "docs/queries.md"
EVENTS = 6_000
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.restart_attempts": 5,
}


class Asker(threading.Thread):
    """Asks for one key again and again: what it is told must never go back while nothing fails."""

    def __init__(self, address, key):
        super().__init__()
        self.connection, self.key = weir.connect(address, patience_s=0), key
        self.seen, self.refused, self.ends = [], [], threading.Event()

    def run(self):
        count = self.connection.state("seen", "seen")
        while not self.ends.is_set():
            try:
                self.seen.append(count.get(self.key, default=0))
            except AskError as error:
                self.refused.append(error)
            time.sleep(0.002)
        self.connection.close()


def test_questions_while_a_job_runs_is_rescaled_and_fails(make_cluster, tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    parameters = {"input": events, "release": tmp_path / "release"}
    cluster = make_cluster(settings=SETTINGS)
    cluster.start_control_plane("flow_queries", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")
    address = f"127.0.0.1:{cluster.http_port}"
    servers = sorted({f"server-{number % SERVERS}" for number in range(EVENTS)})
    stages = cluster.status()["stages"]
    stage = next(stage["stage"] for stage in stages if "seen" in stage["name"].split(" -> "))

    # Any instance answers for all, the one without a subtask too.
    instances = [item["http"] for item in cluster.status()["task_managers"]]
    assert len(instances) == 3
    askers = [Asker(instance, servers[0]) for instance in (address, *instances)]
    for asker in askers:
        asker.start()
    for parallelism in (3, 1):
        rescale(cluster, stage, parallelism)
    for asker in askers:
        asker.ends.set()
        asker.join()
        assert asker.seen == sorted(asker.seen), "an answer was older than one before it"
        assert len(set(asker.seen)) > 1
        assert {error.status for error in asker.refused} <= {503}
        assert all("try again" in str(error) for error in asker.refused)

    def check(consistency, instance):
        with weir.connect(instance) as job:
            count, states = job.state("seen", "seen"), job.state
            for server in servers[:3]:
                ids = [number for number in range(EVENTS) if f"server-{number % SERVERS}" == server]
                assert count.get(server, consistency=consistency) == len(ids)
                given = {"consistency": consistency}
                assert states("states", "count").get(server, **given) == len(ids)
                assert states("states", "most").get(server, **given) == max(number % 1_000 for number in ids)
                assert states("states", "total").get(server, **given) == sum(ids) / 2
                assert states("states", "text").get(server, **given).endswith(f".{ids[-1]}")
                assert states("states", "recent").get(server, **given)[-1] == ids[-1]
                digits = states("states", "digits").get(server, **given)
                assert sum(item["value"] for item in digits) == len(ids)
                assert states("states", "digits").get(server, first=3, last=3, **given) in (
                    [item for item in digits if item["key"] == 3] or None,
                )
                versions = states("states", "versions")
                assert versions.get(server, **given) == ids[-1]
                assert versions.get(server, as_of=ids[-3], **given) == ids[-3]
                assert versions.get(server, as_of=0, **given) is None
                history = versions.get(server, first=ids[-3], reverse=True, **given)
                assert [version["value"] for version in history] == ids[:-4:-1]
                windows = states("states", "windows").get(server, first=EVENTS - 500, **given)
                assert [window["value"] for window in windows] == [
                    sum(number >= EVENTS - 500 for number in ids)
                ]
                assert states("states", "visits").get(server, **given)[-1]["end"] == ids[-1]
            assert count.get("nobody") is None

    everything = cluster.status()["totals"]
    cluster.wait_for(
        lambda status: status["totals"]["events_out"] >= 2 * EVENTS, f"all rows, after {everything}"
    )
    for instance in (address, *instances):
        check("latest", instance)
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest, "a checkpoint of everything")
    check("checkpoint", instances[-1])
    with weir.connect(instances[0]) as job:
        job.state("seen", "seen").range()
    with weir.connect(address) as job:
        count = job.state("seen", "seen")
        frame = count.range()
        assert frame["key"].to_list() == servers
        assert frame["value"].sum() == EVENTS
        assert count.range(servers[1], servers[2])["key"].to_list() == servers[1:3]
        assert count.range(prefix="server-1", reverse=True)["key"].to_list() == [
            server for server in servers[::-1] if server.startswith("server-1")
        ]
        pages = list(count.pages(limit=2))
        assert [row["key"] for page in pages for row in page["rows"]] == servers
        assert len({page["checkpoint"] for page in pages}) == 1
        assert count.count() == len(servers)
        for step, state, status in (("seen", "none", 404), ("none", "n", 404), ("events", "n", 404)):
            with pytest.raises(AskError) as refused:
                job.state(step, state).get("a")
            assert refused.value.status == status
    assert cluster.http("GET", "/state/seen/seen?consistency=latest")[0] == 400
    entries = [{"key": key, "value": value} for key, value in zip(frame["key"], frame["value"], strict=True)]
    for path, answer in {
        f"/keyvalue/{servers[0]}": entries[0],
        "/all": entries,
        "/reverseAll": entries[::-1],
        f"/range/{servers[1]}/{servers[2]}": entries[1:3],
        f"/reverseRange/{servers[1]}/{servers[2]}": entries[2:0:-1],
        "/prefixScan/server-1": [entry for entry in entries if entry["key"].startswith("server-1")],
        "/approximateNumEntries": {"key": "approximateNumEntries", "value": len(servers)},
    }.items():
        assert cluster.http("GET", f"{path}?step=seen") == (200, answer)
    assert cluster.http("GET", "/all")[0] == 400
    examples = re.findall(r'^curl "localhost:9008(/[^"]*)"', PAGE.read_text(), re.MULTILINE)
    assert len(examples) > 10
    for example in examples:
        assert cluster.http("GET", example)[0] == 200, example
    assert cluster.http("GET", "/state/states/recent")[0] == 501

    place = cluster.status()["stages"][stage]["subtasks"][0]["task_manager"]
    victim = next(process for process in cluster.processes.values() if place.endswith(f":{process.port}"))
    victim.popen.kill()
    with weir.connect(address, patience_s=30) as job:
        # What is answered is right, or what the checkpoint had, which has everything.
        assert job.state("seen", "seen").get(servers[0]) == frame["value"][0]
