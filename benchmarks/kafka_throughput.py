"""Records of a real Kafka counted by key, beside the client library alone, which only reads their bytes.

Two task managers on one side, two processes with the client on the other; the broker runs on the same machine. Records
are JSON objects of about 100 bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import SEED
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from experiments.ports import free_port
from services import kafka

BARS = (
    Bar("ratio_to_client", "at least", 0.7),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
)
_TOPIC, _PARTITIONS, _CLIENTS = "events", 4, 2
_TIMEOUT_S = 600.0
_CHUNK = 50_000


@dataclass(frozen=True)
class KafkaOptions:
    """Command-line options."""

    events: int = 2_000_000
    keys: int = 100_000
    repeat: int = 3


def run(options: KafkaOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Start a broker, fill a topic, then run the job and the client ``repeat`` times, in turn.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: records were lost or came twice.
        ServiceError: there is no Java or no Maven.
    """
    directory = Path(tempfile.mkdtemp(prefix="weir-kafka-"))
    try:
        report("starting Kafka", 0.0)
        bootstrap = kafka.start(directory / "broker", base_port=free_port())
        _fill(bootstrap, options, report)
        runs = [
            _one_run(options, bootstrap, directory / str(number), f"run {number} of {options.repeat}", report)
            for number in range(1, options.repeat + 1)
        ]
    finally:
        kafka.stop(directory / "broker", wipe=True)
        shutil.rmtree(directory, ignore_errors=True)
    config = {"job": "benchmarks.kafka_job", "events": options.events, "keys": options.keys}
    return BenchmarkResult("kafka", config, runs, BARS)


def _fill(bootstrap: str, options: KafkaOptions, report: Callable[[str, float], None]) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    rng = np.random.default_rng(SEED)
    for first in range(0, options.events, _CHUNK):
        stop = min(first + _CHUNK, options.events)
        servers = rng.integers(0, options.keys, stop - first).tolist()
        sizes = rng.integers(0, 1 << 20, stop - first).tolist()
        for number, server, size in zip(range(first, stop), servers, sizes, strict=True):
            value = f'{{"id":{number},"server_name":"server-{server}","method":"GET","status":200,"bytes":{size}}}'
            while True:
                try:
                    producer.produce(_TOPIC, value, partition=number % _PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        report("filling the topic", stop / options.events)
    if producer.flush(60):
        raise BenchmarkError("the broker did not take all records")


def _one_run(
    options: KafkaOptions,
    bootstrap: str,
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    report(f"{label}: engine", 0.0)
    setup = EngineSetup(
        "benchmarks.kafka_job",
        {"bootstrap": bootstrap, "topic": _TOPIC, "parallelism": 2},
        settings={"taskManager.operator_quota": 32},
    )
    engine = run_engine(setup, directory, lambda events: report(f"{label}: engine", events / options.events))
    figures = {
        **engine.figures(),
        "lost": max(0, options.events - engine.events_out),
        "duplicated": max(0, engine.events_out - options.events),
    }
    report(f"{label}: client", 0.0)
    client = _clients(options, bootstrap)
    figures["client"] = client
    figures["ratio_to_client"] = figures["events_per_second"] / client["events_per_second"]
    return figures


def _clients(options: KafkaOptions, bootstrap: str) -> dict[str, Any]:
    """The client library in processes of its own, each with its share of the partitions."""
    shares = [range(first, _PARTITIONS, _CLIENTS) for first in range(_CLIENTS)]
    command = [sys.executable, "-m", "benchmarks.kafka_throughput", bootstrap, str(options.events)]
    processes = [
        subprocess.Popen([*command, *map(str, share)], stdout=subprocess.PIPE, env=os.environ)
        for share in shares
    ]
    facts = [json.loads(process.communicate(timeout=_TIMEOUT_S)[0]) for process in processes]
    events = sum(fact["events"] for fact in facts)
    if events != options.events:
        raise BenchmarkError(f"the client read {events} records of {options.events}")
    seconds = max(fact["ended"] for fact in facts) - min(fact["began"] for fact in facts)
    cpu_seconds = sum(fact["cpu_seconds"] for fact in facts)
    return {
        "events_per_second": events / seconds,
        "cpu_seconds_per_million_events": cpu_seconds / events * 1e6,
        "bytes_per_event": sum(fact["bytes"] for fact in facts) / events,
    }


def main(bootstrap: str, events: str, *partitions: str) -> None:
    """One process with the client: the bytes of every value are taken, and that is all."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "client", "enable.auto.commit": False}
    consumer = Consumer(settings | {"enable.partition.eof": True, "queued.max.messages.kbytes": 32 << 10})
    began, began_cpu_s = time.time(), time.process_time()
    consumer.assign([TopicPartition(_TOPIC, int(number), 0) for number in partitions])
    ended: set[int] = set()
    seen = size = 0
    while len(ended) < len(partitions):
        for message in consumer.consume(16_384, 1.0):
            if message.error() is not None:
                ended.add(message.partition() or 0)
                continue
            seen += 1
            size += len(message.value() or b"")
    facts = {"events": seen, "bytes": size, "began": began, "ended": time.time()}
    print(json.dumps({**facts, "cpu_seconds": time.process_time() - began_cpu_s}))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
