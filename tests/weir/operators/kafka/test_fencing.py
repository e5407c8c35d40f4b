"""Against a real broker: what a killed process leaves open is ended by the next deployment, and not by a time-out."""

import json
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer

from tests.weir.operators.kafka.sinks import delivered, rows, sink, through_json
from weir.errors import FailureKind, InputError
from weir.operators.kafka.slots import SLOTS

pytestmark = [pytest.mark.scenario, pytest.mark.service]

#: A transaction that nobody ends is open for ten minutes.
TIMEOUT_MS = 600_000
SOON_S = 20


@pytest.fixture(scope="module")
def killed(kafka_bootstrap):
    """Runs a sink in a process until it dies; returns its snapshots, by checkpoint."""
    command = [sys.executable, "-m", "tests.weir.operators.kafka.killed_sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:

        def run(topic, directory, steps):
            print(json.dumps([kafka_bootstrap, topic, str(directory), steps]), file=maker.stdin, flush=True)
            snapshots = []
            while isinstance(told := json.loads(maker.stdout.readline()), dict):
                snapshots.append(told)
            assert told == signal.SIGKILL
            numbers = [int(step[1:]) for step in steps.split(",") if step.startswith("s")]
            return dict(zip(numbers, snapshots, strict=True))

        yield run


def finish(kafka_bootstrap, topic, directory, restored, again):
    """The next deployment: the source sends ``again`` what the checkpoint does not cover."""
    writer = sink(kafka_bootstrap, topic, directory, 2, restored, transaction_timeout_ms=TIMEOUT_MS)
    for number in again:
        writer.process(rows(number))
    writer.snapshot(0)
    writer.commit(0)


@pytest.mark.parametrize("latest", [None, 1, 2, 3])
def test_readers_go_on_after_a_kill_with_transactions_in_slots_that_the_checkpoint_has_not_seen(
    kafka_bootstrap, killed, topic, tmp_path, latest
):
    # Checkpoint 3 may be complete: nobody has said so. One transaction more is open.
    snapshots = killed(topic, tmp_path, "1,s1,2,s2,3,s3,4,s4,5")
    restored = {} if latest is None else {0: snapshots[latest]}
    finish(kafka_bootstrap, topic, tmp_path, restored, range((latest or 0) + 1, 6))
    assert delivered(kafka_bootstrap, topic, SOON_S) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "steps",
    ["1,s1", "1,s1,2", "1,s1,c1", "1,s1,c1,w", "1,s1,2,c1,s2", "1,s1,2,c1,w,s2,3", "1,s1,2,s2,3,s3,c3"],
)
def test_each_row_comes_once_wherever_the_process_is_killed(kafka_bootstrap, killed, topic, tmp_path, steps):
    snapshots = killed(topic, tmp_path, steps)
    latest = max(snapshots)
    rest = [int(step) for step in steps.split(",") if step.isdigit() and int(step) > latest]
    finish(kafka_bootstrap, topic, tmp_path, {0: snapshots[latest]}, [*rest, 9])
    assert delivered(kafka_bootstrap, topic, SOON_S) == [*range(1, latest + 1), *rest, 9]


def test_subtasks_that_no_checkpoint_names_are_fenced_when_a_rescale_is_lost(
    kafka_bootstrap, topic, tmp_path
):
    settings = {"transaction_timeout_ms": TIMEOUT_MS}
    first = sink(kafka_bootstrap, topic, tmp_path, **settings)
    first.process(rows(1))
    listed = through_json(first.snapshot(1))
    # A rescale adds two subtasks; all die before a checkpoint has them, and the job begins with one.
    for index in (1, 2):
        added = sink(kafka_bootstrap, topic, tmp_path, index=index, indices=(0, 1, 2), **settings)
        added.process(rows(2))
        added.flush()
    finish(kafka_bootstrap, topic, tmp_path, {0: listed}, [2, 3])
    assert delivered(kafka_bootstrap, topic, SOON_S) == [1, 2, 3]
    assert not list(tmp_path.glob(".rows-*"))


def test_rows_go_on_in_the_log_while_all_slots_wait_and_keep_their_order(kafka_bootstrap, topic, tmp_path):
    numbers = range(1, 2 * SLOTS + 1)
    writer = sink(kafka_bootstrap, topic, tmp_path, partition="part")
    for number in numbers:
        writer.process(rows(number, part=0))
        listed = through_json(writer.snapshot(number))
    assert len(listed["transactions"]) == len(numbers)
    # One checkpoint covers half of them: rows may be sent again, after those of the log.
    writer.commit(SLOTS + 2)
    writer.await_commit()
    writer.process(rows(20, part=0))
    writer.settle()
    writer.process(rows(21, part=0))
    writer.snapshot(0)
    writer.commit(0)
    assert delivered(kafka_bootstrap, topic, key=lambda _: 0) == [*numbers, 20, 21]


@pytest.mark.parametrize("how", ["by a flush", "by more rows"])
def test_a_client_that_was_fenced_with_rows_under_way_says_so(kafka_bootstrap, topic, tmp_path, how):
    """Also where a transaction timed out: the client then raises what is no exception, from within its callbacks."""
    writer = sink(kafka_bootstrap, topic, tmp_path)
    writer.process(rows(1))
    writer.flush()
    usurper = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": f"{writer._group}/0"})
    usurper.init_transactions(30)

    def go_on():
        writer.process(rows(2))
        for _ in range(3_000):
            if how == "by a flush":
                writer.flush()
            else:
                writer.process(rows(3))
                time.sleep(0.01)

    with pytest.raises(InputError, match="another process writes under the same transactional id") as told:
        go_on()
    assert told.value.failure_kind is FailureKind.OUTAGE
    assert "transaction_timeout_ms (60000 ms), which must be longer" in str(told.value)
    writer.close()
