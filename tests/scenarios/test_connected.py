"""Words from a real Kafka, counts in a real Cassandra, questions by HTTP to any process, counts to Kafka once."""

import io
import json
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Producer

from experiments.scaling import rescale
from tests.kafka_topics import make_topics, read_committed
from tests.scenarios.losses import task_manager_of
from weir.examples import word_count

pytestmark = [pytest.mark.service, pytest.mark.scenario]

COUNTRIES = Path(word_count.__file__).with_name("countries.txt").read_text().lower().split("\n")
ARROW = "application/vnd.apache.arrow.stream"
STAGE = 1


def ask(address, path, accept="application/json"):
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def rows_of(address, question):
    """All rows of a range, page by page; None: it is not answered now, with the reason."""
    rows, path = [], f"/state/count/words?{question}"
    while True:
        status, answer = ask(address, path)
        if status != 200:
            assert (status, json.loads(answer).get("error") is not None) == (503, True), answer
            return None
        page = json.loads(answer)
        rows += [(row["key"], row["value"]) for row in page["rows"]]
        if not page.get("continuation"):
            return rows
        path = f"/state/count/words?{question}&continuation={page['continuation']}"


def test_words_of_kafka_are_counted_in_cassandra_and_asked_for_anywhere(
    make_cluster, kafka_bootstrap, cassandra_node
):
    """Through a rescale and the loss of a task manager: a count that is answered is never below an earlier one."""
    make_topics(kafka_bootstrap, "connected-texts", "connected-counts")
    producer, wanted = Producer({"bootstrap.servers": kafka_bootstrap}), Counter()

    def supply():
        for line in COUNTRIES:
            producer.produce("connected-texts", line)
            wanted.update(row["word"] for row in word_count.split({"line": line}))
        assert producer.flush(60) == 0

    settings = {
        "taskManager.state_backend": "cassandra",
        "taskManager.cassandra.port": cassandra_node.port,
        "taskManager.cassandra.username": "cassandra",
        "taskManager.cassandra.password": "cassandra",
        "taskManager.cassandra.states": "count.counts=true",
        "controlPlane.restart_attempts": 20,
    }
    cluster = make_cluster(settings=settings)
    topics = {"topic": "connected-texts", "target": "connected-counts"}
    parameters = {"bootstrap": kafka_bootstrap, **topics}
    cluster.start_control_plane("weir.examples.word_count", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    supply()
    status = cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "three task managers")
    instances = [f"127.0.0.1:{cluster.http_port}", *(item["http"] for item in status["task_managers"])]
    seen = 0

    def complete(instance, consistency):
        nonlocal seen
        found = rows_of(instance, f"limit=7&consistency={consistency}")
        if found is None:
            return False
        count = dict(found).get("belgium", 0)
        assert consistency == "latest" or count >= seen
        seen = max(seen, count) if consistency == "checkpoint" else seen
        return found == sorted(wanted.items())

    def wait_until_all_is_counted(instances):
        for consistency in ("latest", "checkpoint"):
            for instance in instances:
                cluster.wait_for(lambda _, at=instance, how=consistency: complete(at, how), "all counts", 120)

    wait_until_all_is_counted(instances)
    among = [(word, count) for word, count in sorted(wanted.items()) if "lithuania" <= word <= "moldova"]
    for instance in instances:
        status, answer = ask(instance, "/state/count/words/belgium")
        assert (status, json.loads(answer)["value"]) == (200, wanted["belgium"])
        assert ask(instance, "/state/count/words/atlantis")[0] == 404
        assert rows_of(instance, "from=lithuania&to=moldova&limit=100") == among
        assert rows_of(instance, "from=lithuania&to=moldova&limit=2&reverse=true") == among[::-1]
        assert [word for word, _ in rows_of(instance, "prefix=bel")] == ["belarus", "belgium"]
        assert json.loads(ask(instance, "/state/count/words?count=true")[1])["count"] == len(wanted)
        status, answer = ask(instance, "/state/count/words?limit=1000", ARROW)
        assert status == 200
        assert pl.read_ipc_stream(io.BytesIO(answer)).rows() == sorted(wanted.items())
    rescale(cluster, STAGE, 2)
    supply()
    wait_until_all_is_counted(instances)
    lost = task_manager_of(cluster, STAGE)
    lost.popen.kill()
    supply()
    wait_until_all_is_counted(instances[:1])
    rows = sum(wanted.values())
    found = read_committed(kafka_bootstrap, "connected-counts", lambda count: count >= rows)
    counts = defaultdict(list)
    for values in found.values():
        for row in map(json.loads, values):
            counts[row["word"]].append(row["count"])
    assert counts == {word: list(range(1, count + 1)) for word, count in wanted.items()}
