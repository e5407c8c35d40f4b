"""Records of a real Kafka counted by key, beside the client library alone, which only reads their bytes.

Two task managers on one side, two processes with the client on the other; the broker runs on the same machine. Records
are JSON objects of about 100 bytes. The same job then reads the same records from one broker of Weir's own log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weir.log
from benchmarks.engine_run import EngineRun, EngineSetup, run_engine
from benchmarks.events_file import SEED
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from experiments.log_cluster import LogCluster
from experiments.ports import free_port
from services import kafka

BARS = (
    Bar("ratio_to_client", "at least", 0.7),
    Bar("ratio_log_to_kafka", "at least", 1.0),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
    Bar("log_lost", "at most", 0),
    Bar("log_duplicated", "at most", 0),
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
        with LogCluster(directory / "log", brokers=1) as log:
            _fill_log(log.addresses, options, report)
            runs = [
                _one_run(
                    options,
                    bootstrap,
                    log.addresses,
                    directory / str(number),
                    f"run {number} of {options.repeat}",
                    report,
                )
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
    for first, values in _chunks(options):
        for number, value in enumerate(values, first):
            while True:
                try:
                    producer.produce(_TOPIC, value, partition=number % _PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        report("filling the topic", (first + len(values)) / options.events)
    if producer.flush(60):
        raise BenchmarkError("the broker did not take all records")


def _chunks(options: KafkaOptions) -> Iterator[tuple[int, list[bytes]]]:
    """Number of the first of some records, and their values."""
    rng = np.random.default_rng(SEED)
    for first in range(0, options.events, _CHUNK):
        stop = min(first + _CHUNK, options.events)
        servers = rng.integers(0, options.keys, stop - first).tolist()
        sizes = rng.integers(0, 1 << 20, stop - first).tolist()
        yield (
            first,
            [
                f'{{"id":{number},"server_name":"server-{server}","method":"GET","status":200,"bytes":{size}}}'.encode()
                for number, server, size in zip(range(first, stop), servers, sizes, strict=True)
            ],
        )


def _fill_log(bootstrap: str, options: KafkaOptions, report: Callable[[str, float], None]) -> None:
    weir.log.create_topic(bootstrap, _TOPIC, partitions=_PARTITIONS, replication=1)
    producers = [
        weir.log.Producer(bootstrap, topic=_TOPIC, partition=partition, compression="lz4")
        for partition in range(_PARTITIONS)
    ]
    for first, values in _chunks(options):
        for partition, producer in enumerate(producers):
            # As in Kafka: by their numbers.
            chosen = range((partition - first) % _PARTITIONS, len(values), _PARTITIONS)
            producer.send_many([first + place for place in chosen], [values[place] for place in chosen])
        report("filling the log", (first + len(values)) / options.events)
    for producer in producers:
        producer.close()


def _one_run(
    options: KafkaOptions,
    bootstrap: str,
    log_bootstrap: str,
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    def run_job(job: str, place: str) -> EngineRun:
        what = f"{label}: {job}"
        report(what, 0.0)
        setup = EngineSetup(
            f"benchmarks.{job}",
            {"bootstrap": place, "topic": _TOPIC, "parallelism": 2},
            settings={"taskManager.operator_quota": 32},
        )
        return run_engine(setup, directory / job, lambda events: report(what, events / options.events))

    engine = run_job("kafka_job", bootstrap)
    figures = {
        **engine.figures(),
        "lost": max(0, options.events - engine.events_out),
        "duplicated": max(0, engine.events_out - options.events),
    }
    report(f"{label}: client", 0.0)
    client = _clients(options, bootstrap)
    figures["client"] = client
    log = run_job("log_job", log_bootstrap)
    figures["log"] = log.figures()
    figures["log_lost"] = max(0, options.events - log.events_out)
    figures["log_duplicated"] = max(0, log.events_out - options.events)
    figures["ratio_log_to_kafka"] = figures["log"]["events_per_second"] / figures["events_per_second"]
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
