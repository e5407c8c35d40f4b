"""The text of SQL that reads Kafka and writes Delta Lake, on Spark: started again it says each result once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Producer

from tests.kafka_topics import make_topics
from weir.console.given_job import GivenJob
from weir.spark.running import run_batch, run_stream

pytestmark = [pytest.mark.spark, pytest.mark.service]

#: Word for word as in the documentation, but for the place, and that it ends.
TEXT = """
CREATE SOURCE bids (auction BIGINT, price BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '2' SECOND) WITH (
    connector = 'kafka', topic = 'bids', bootstrap = '{bootstrap}', format = 'json', bounded = 'true');
CREATE VIEW per_auction AS SELECT auction, window_end, COUNT(*) AS n
FROM HOP(bids, at, INTERVAL '10' SECOND, INTERVAL '60' SECOND) GROUP BY auction, window_start, window_end;
CREATE SINK hot WITH (connector = 'delta', path = '{path}') AS SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC, auction) AS r FROM per_auction)
WHERE r <= 3;
"""
WEIR = [sys.executable, "-m", "weir"]
BEGIN, STEP_MS, AUCTIONS, PARTITIONS = datetime(2026, 1, 1), 100, 20, 3
FIRST, ROWS = 600, 1_500
ALL_MS = 10**9
#: Of steps in a stream: each of them is a deployment of its own in each trigger.
KEY_GROUPS = 2


def auction_of(row):
    return random.Random(row).randrange(AUCTIONS)


def produce(bootstrap, start, stop, *, transactional_id=None):
    """Bids, in the order of time in each partition; those of a transaction are committed."""
    more = {} if transactional_id is None else {"transactional.id": transactional_id}
    producer = Producer({"bootstrap.servers": bootstrap, **more})
    if transactional_id is not None:
        producer.init_transactions(60)
        producer.begin_transaction()
    for row in range(start, stop):
        at = BEGIN + timedelta(milliseconds=STEP_MS * row)
        value = {
            "auction": auction_of(row),
            "price": row,
            "at": at.isoformat(sep=" ", timespec="milliseconds"),
        }
        producer.produce("bids", json.dumps(value), partition=row % PARTITIONS)
    if transactional_id is None:
        producer.produce("bids", b'{"auction": "none"', partition=0)
        producer.produce(
            "bids", b'{"auction": "none", "price": 1, "at": "2026-01-01 00:00:00.000"}', partition=0
        )
        assert producer.flush(60) == 0
    else:
        producer.commit_transaction(60)


def expected(rows, told_ms):
    """The three auctions with most bids of each window that ends at a time or before; in plain Python."""
    counts = Counter()
    for row in range(rows):
        first = STEP_MS * row // 10_000 * 10_000
        for start in range(first - 50_000, first + 1, 10_000):
            counts[start + 60_000, auction_of(row)] += 1
    windows = {}
    for (end, auction), n in counts.items():
        windows.setdefault(end, []).append((-n, auction))
    return sorted(
        (BEGIN + timedelta(milliseconds=end), auction, -n, rank)
        for end, found in windows.items()
        if end <= told_ms
        for rank, (n, auction) in enumerate(sorted(found)[:3], 1)
    )


def written(path):
    return sorted(pl.read_delta(str(path)).select("window_end", "auction", "n", "r").rows())


def watermark_ms(rows):
    return STEP_MS * (rows - 1) - 2_000


def end_when_committed(text, table, checkpoints):
    """Run the text as users do, in a process that is killed once the table has another version."""
    command = [*WEIR, "run", text, "--runner", "spark", "--master", "local[2]", "--streaming"]
    more = ["--checkpoints", checkpoints, "--set", f"controlPlane.max_parallelism={KEY_GROUPS}"]
    versions = len(list((table / "_delta_log").glob("*.json")))
    # Its JVM and Python processes end with it.
    with subprocess.Popen([*command, *more], cwd=text.parent, start_new_session=True) as process:
        try:
            while len(list((table / "_delta_log").glob("*.json"))) == versions:
                assert process.poll() is None, "it ended, and wrote nothing"
                time.sleep(0.001)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_what_goes_from_kafka_to_delta_is_there_once_however_often_the_query_is_started(
    spark, kafka_bootstrap, tmp_path
):
    make_topics(kafka_bootstrap, "bids", partitions=PARTITIONS)
    produce(kafka_bootstrap, 0, FIRST)
    text, table, checkpoints = tmp_path / "hot.sql", tmp_path / "out", str(tmp_path / "checkpoints")
    text.write_text(TEXT.format(bootstrap=kafka_bootstrap, path=table))
    graph = GivenJob(str(text), [], None, [f"controlPlane.max_parallelism={KEY_GROUPS}"]).graph()
    put_aside = []
    run_stream(spark, graph, checkpoints, put_aside=put_aside.append)
    assert written(table) == expected(FIRST, watermark_ms(FIRST))
    assert sum(put_aside[-1]["bids"].values()) == 2, "one that ends too soon, one of another type"

    produce(kafka_bootstrap, FIRST, ROWS, transactional_id="bids")
    told = expected(ROWS, watermark_ms(ROWS))
    end_when_committed(text, table, checkpoints)
    assert written(table) == told

    # Where the process ended too late, the query had committed as well: taken away, it is as if it had not.
    commits = Path(checkpoints, "hot", "commits")
    for path in commits.glob("*1*"):
        path.unlink()
    assert {path.name for path in commits.iterdir() if path.name.isdecimal()} == {"0"}
    for _ in range(2):
        run_stream(spark, graph, checkpoints)
        assert written(table) == told
    assert (commits / "1").exists()

    run_batch(spark, graph)
    assert written(table) == sorted([*told, *expected(ROWS, ALL_MS)])
