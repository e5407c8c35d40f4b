"""Words from a real Kafka, counts in a real Cassandra, questions by HTTP to any process, counts to Kafka once."""

import io
import json
import time
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
TEXTS, COUNTS = "connected-texts", "connected-counts"
STAGE = 1
#: A slow machine takes its time.
PATIENCE_S = 60


def ask(address, path, accept="application/json", timeout_s=60):
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
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


def told_rows_of(address, question):
    """As :func:`rows_of`, once it is answered."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (rows := rows_of(address, question)) is None:
        assert time.monotonic() < deadline_s, f"{question} is not answered"
        time.sleep(0.1)
    return rows


class Words:
    """Words that were sent to Kafka, and what is told of their counts."""

    def __init__(self, bootstrap):
        make_topics(bootstrap, TEXTS, COUNTS)
        self.bootstrap, self.sent, self._seen = bootstrap, Counter(), 0
        self._producer = Producer({"bootstrap.servers": bootstrap})

    def supply(self):
        """Send each country once more."""
        for line in COUNTRIES:
            self._producer.produce(TEXTS, line)
            self.sent.update(row["word"] for row in word_count.split({"line": line}))
        assert self._producer.flush(60) == 0

    def wait_until_all_are_counted(self, cluster, instances):
        """A count of a checkpoint that is answered is never below an earlier one."""
        for consistency in ("latest", "checkpoint"):
            for instance in instances:
                cluster.wait_for(
                    lambda _, at=instance, how=consistency: self._are_counted(at, how), "all counts", 120
                )

    def _are_counted(self, instance, consistency):
        # Some pages each.
        found = rows_of(instance, f"limit=20&consistency={consistency}")
        if found is None:
            return False
        if consistency == "checkpoint":
            count = dict(found).get("belgium", 0)
            assert count >= self._seen
            self._seen = count
        return found == sorted(self.sent.items())

    def check_answers(self, instance):
        """One key, ranges in both directions, counts and Arrow."""
        status, answer = ask(instance, "/state/count/words/belgium")
        assert (status, json.loads(answer)["value"]) == (200, self.sent["belgium"])
        assert ask(instance, "/state/count/words/atlantis")[0] == 404
        everything = sorted(self.sent.items())
        among = [(word, count) for word, count in everything if "lithuania" <= word <= "moldova"]
        assert told_rows_of(instance, "from=lithuania&to=moldova&limit=100") == among
        assert told_rows_of(instance, "from=lithuania&to=moldova&limit=2&reverse=true") == among[::-1]
        assert [word for word, _ in told_rows_of(instance, "prefix=bel")] == ["belarus", "belgium"]
        assert json.loads(ask(instance, "/state/count/words?count=true")[1])["count"] == len(everything)
        status, answer = ask(instance, "/state/count/words?limit=1000", ARROW)
        assert status == 200
        assert pl.read_ipc_stream(io.BytesIO(answer)).rows() == everything

    def check_that_each_count_was_sent_once(self):
        rows = sum(self.sent.values())
        counts = defaultdict(list)
        for values in read_committed(self.bootstrap, COUNTS, lambda count: count >= rows).values():
            for row in map(json.loads, values):
                counts[row["word"]].append(row["count"])
        assert counts == {word: list(range(1, count + 1)) for word, count in self.sent.items()}


def test_words_of_kafka_are_counted_in_cassandra_and_asked_for_anywhere(
    make_cluster, kafka_bootstrap, cassandra_node
):
    """Through a rescale and the loss of a task manager."""
    settings = {
        "taskManager.state_backend": "cassandra",
        "taskManager.cassandra.port": cassandra_node.port,
        "taskManager.cassandra.username": "cassandra",
        "taskManager.cassandra.password": "cassandra",
        "taskManager.cassandra.states": "count.counts=true",
        "controlPlane.restart_attempts": 20,
    }
    words, cluster = Words(kafka_bootstrap), make_cluster(settings=settings)
    parameters = {"bootstrap": kafka_bootstrap, "topic": TEXTS, "target": COUNTS}
    cluster.start_control_plane("weir.examples.word_count", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    words.supply()
    status = cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "three task managers")
    instances = [f"127.0.0.1:{cluster.http_port}", *(item["http"] for item in status["task_managers"])]
    words.wait_until_all_are_counted(cluster, instances)
    for instance in instances:
        words.check_answers(instance)
    rescale(cluster, STAGE, 2)
    words.supply()
    words.wait_until_all_are_counted(cluster, instances)
    task_manager_of(cluster, STAGE).popen.kill()
    words.supply()
    words.wait_until_all_are_counted(cluster, instances[:1])
    words.check_that_each_count_was_sent_once()
