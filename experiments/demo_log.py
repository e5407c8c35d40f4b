"""The demo's third run: from the replicated log to the replicated log, with nothing but Weir's own processes."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from pathlib import Path

import weir
import weir.log
from experiments.demo_display import Display
from experiments.demo_steps import DEMO_DIRECTORY, EVENTS_DIRECTORY, DemoError, empty_directory
from experiments.log_cluster import LogCluster

EVENTS_MAX = 100_000
_BROKERS = 3
_EVENTS, _COUNTS = "events", "counts"
_PART = 10_000


def run_through_the_log(display: Display, events_max: int = EVENTS_MAX) -> str:
    """Send events to three brokers, count them in a job from one topic to another, and check what it wrote.

    Returns:
        A sentence with the figures.

    Raises:
        DemoError: the counts in the log are not those of the events.
        ClusterError: the brokers do not start.
    """
    started_s = time.monotonic()
    directory = DEMO_DIRECTORY / "log"
    empty_directory(directory)
    lines = _first_lines(EVENTS_DIRECTORY, events_max)
    display.command("weir log start --brokers 3", f"--dir {directory}")
    with LogCluster(directory, _BROKERS) as cluster:
        for topic in (_EVENTS, _COUNTS):
            weir.log.create_topic(cluster.addresses, topic)
        began_s = time.monotonic()
        with weir.log.Producer(cluster.addresses, topic=_EVENTS, linger_ms=5, compression="lz4") as producer:
            for first in range(0, len(lines), _PART):
                some = lines[first : first + _PART]
                producer.send_many(range(first, first + len(some)), some)
        weir.run(_dataflow(cluster.addresses))
        took_s = time.monotonic() - began_s
        counts: dict[str, int] = {}
        for record in weir.log.Reader(cluster.addresses, topic=_COUNTS):
            row = json.loads(record.data)
            counts[row["server_name"]] = max(row["count"], counts.get(row["server_name"], 0))
    expected = Counter(json.loads(line)["server_name"] for line in lines)
    if counts != expected:
        raise DemoError(f"the log has counts of {len(counts)} server names, the events have {len(expected)}")
    said = f"{len(lines):,} events into the log, counted, and back into it in {took_s:.1f} s, without a Kafka"
    display.done(said, started_s)
    return said


def _first_lines(directory: Path, count: int) -> list[bytes]:
    """Return so many lines of the workload, without their line breaks."""
    files = (path.open("rb") for path in sorted(directory.glob("part-*")))
    return [line.rstrip() for line in itertools.islice(itertools.chain.from_iterable(files), count)]


def _dataflow(bootstrap: str) -> weir.Dataflow:
    flow = weir.Dataflow("through_the_log")
    source = weir.LogSource(
        bootstrap=bootstrap, topic=_EVENTS, schema={"id": int, "server_name": str}, bounded=True
    )
    counted = flow.source("events", source).key_by("server_name").count("count")
    counted.sink("out", weir.LogSink(_COUNTS, bootstrap=bootstrap, key="server_name"))
    return flow
