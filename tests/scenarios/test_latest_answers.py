"""Answers of the latest state lie between what is proven to be counted and what has been sent, whatever happens.

A count that a reader of committed records has seen before a question is asked has been counted for good: no answer may
be lower. None may be higher than what was sent before it came.
"""

import itertools
import json
import signal
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer

from experiments.scaling import rescale
from tests.kafka_topics import make_topics
from tests.scenarios.losses import task_manager_of
from tests.scenarios.test_connected import ask

pytestmark = [pytest.mark.service, pytest.mark.scenario]

WORDS = [f"word-{number:02}" for number in range(12)]
STAGE = 1
SETTINGS = {
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 3000,
    "controlPlane.restart_attempts": 20,
    "taskManager.niceness": 2,
}


class Truth(threading.Thread):
    """Sends words and reads their counts, until it is told to end: how often each was counted at least, and at most."""

    def __init__(self, bootstrap):
        super().__init__()
        self.lowest, self.highest, self.ends = Counter(), Counter(), threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "truth",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe(["truth-counts"])

    def run(self):
        for word in itertools.cycle(WORDS):
            if self.ends.is_set():
                break
            self.highest[word] += 1
            self._producer.produce("truth-texts", word)
            self._producer.poll(0)
            for message in self._consumer.consume(100, 0.005):
                if message.error() is None:
                    row = json.loads(message.value())
                    self.lowest[row["word"]] = max(self.lowest[row["word"]], row["count"])
        self._producer.flush(30)
        self._consumer.close()


class Asker(threading.Thread):
    """Asks one process for single words and for all of them, in turn; notes each answer that cannot be true."""

    def __init__(self, address, truth):
        super().__init__()
        self.address, self.truth, self.ends = address, truth, threading.Event()
        #: By status; the process that was asked may be gone, too.
        self.told, self.wrong = Counter(), []

    def run(self):
        for word in itertools.cycle([*WORDS, None]):
            if self.ends.is_set():
                break
            lowest = dict(self.truth.lowest)
            path = f"/state/count/words/{word}" if word else "/state/count/words?consistency=latest"
            try:
                status, answer = ask(self.address, path, timeout_s=1)
            except OSError:
                # It is dead, or does not wake up in time.
                self.told["gone"] += 1
                time.sleep(0.1)
                continue
            self._check(status, json.loads(answer), word, lowest)
            time.sleep(0.005)

    def _check(self, status, answer, word, lowest):
        self.told[status] += 1
        if status == 503:
            if "try again" not in answer["error"]:
                self.wrong.append((status, answer))
            return
        if status == 404:
            found, asked = {}, [word]
        elif word:
            found, asked = {answer["key"]: answer["value"]}, [word]
        else:
            found, asked = {row["key"]: row["value"] for row in answer.get("rows", ())}, WORDS
        for each in asked:
            if not lowest.get(each, 0) <= found.get(each, 0) <= self.truth.highest[each]:
                self.wrong.append((each, lowest.get(each, 0), self.truth.highest[each], status, answer))


def test_no_answer_is_stale_or_ahead_while_the_job_is_rescaled_and_its_owners_die_or_sleep(
    make_cluster, kafka_bootstrap
):
    make_topics(kafka_bootstrap, "truth-texts", "truth-counts")
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"bootstrap": kafka_bootstrap, "topic": "truth-texts", "target": "truth-counts"}
    cluster.start_control_plane("weir.examples.word_count", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    status = cluster.wait_for(
        lambda status: len(status["task_managers"]) == 3 and status["state"] == "RUNNING", "the job"
    )
    truth = Truth(kafka_bootstrap)
    instances = [f"127.0.0.1:{cluster.http_port}", *(item["http"] for item in status["task_managers"])]
    askers = [Asker(instance, truth) for instance in instances]

    def counted_on(what):
        """What is sent from now on is counted, which a reader sees; and each process that lives has answered."""
        wanted = max(truth.highest.values())
        cluster.wait_for(
            lambda _: min(truth.lowest[word] for word in WORDS) >= wanted, f"later counts after {what}", 150
        )

    for thread in (truth, *askers):
        thread.start()
    try:
        counted_on("the start")
        for parallelism in (3, 1, 2):
            rescale(cluster, STAGE, parallelism)
            counted_on(f"a rescale to {parallelism}")
        # It sleeps for longer than its lease: others have its keys when it wakes up, and it is asked at that moment.
        sleeper = task_manager_of(cluster, STAGE)
        generation = cluster.status()["generation"]
        sleeper.popen.send_signal(signal.SIGSTOP)
        cluster.wait_for(
            lambda status: status["generation"] > generation and status["state"] == "RUNNING", "a restart"
        )
        counted_on("the loss of an owner that sleeps")
        sleeper.popen.send_signal(signal.SIGCONT)
        counted_on("its return")
        task_manager_of(cluster, STAGE).popen.kill()
        counted_on("the death of an owner")
    finally:
        for thread in (*askers, truth):
            thread.ends.set()
            thread.join()
    assert [asker.wrong[:3] for asker in askers] == [[]] * len(askers)
    assert all(asker.told[200] > 100 for asker in askers), [asker.told for asker in askers]
    assert all(set(asker.told) <= {200, 404, 503, "gone"} for asker in askers), [
        asker.told for asker in askers
    ]
